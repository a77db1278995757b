"""Is a text Spanish? By the share of its words that are common Spanish words, against those of the neighbours.

Needs no model and no network. A word that several languages share counts for each of them, so what decides between
Spanish and Portuguese or Catalan are the words that only one has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from enlace.data.words import Words, each, numbers_of

# The commonest words of each language, without accents, as `words` folds them.
_COMMON = {
    "es": """
        de la que el en y a los se del las un por con no una su para es al lo como mas o pero sus le ha me
        si sin sobre este ya entre cuando todo esta ser son dos tambien fue habia era muy hasta desde nos
        durante uno ni contra ese eso mi he tiene donde quien porque cada otro otros estos hay puede asi
        solo vez nombre hacia luego ellos ella te tu
    """,
    "en": """
        the of and to in a is that for it as was with be by on not he i this are or his from at which but
        have an had they you were their one all we can her has there been if more when will would who so no
        do my your what out up its into
    """,
    "pt": """
        de a o que e do da em um para com nao uma os no se na por mais as dos como mas foi ao ele das tem
        seu sua ou ser quando muito ha nos ja esta eu tambem so pelo pela ate isso ela entre era depois sem
        mesmo aos seus quem nas me esse
    """,
    "gl": """
        de a o que e do da en un para con non unha os no se na por mais as dos como pero foi ao das ten seu
        sua ou ser cando moi nos xa esta tamen so polo pola ata isto ela entre era despois sen mesmo aos
        seus nas me ese
    """,
    "ca": """
        de la i el que en a les els un per del una es amb al va no se dels com ha o l d son mes pel aquest
        entre tambe era seva seu aquesta fou pero quan molt on hi van ser als sobre tot han ja si sense fins
        s n
    """,
    "fr": """
        de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont avec
        ou cette aux son mais comme on nous l d elle sa ses ont ete etait leur s n je vous
    """,
    "it": """
        di e il la che in a un per non una con del si da della i le dei nel alla piu come sono al gli anche
        lo ma delle era dal suo ha l d nella sua ai questo fu stato o se ci
    """,
    "de": """
        der die und in den von zu das mit sich des auf fur ist im dem nicht ein eine als auch es an werden
        aus er hat dass sie nach wird bei einer um am sind noch wie einem uber so zum war haben nur oder
        aber
    """,
}
_NUMBERS = numbers_of(" ".join(_COMMON.values()).split())
_IN_LANGUAGE = np.stack([np.isin(_NUMBERS, numbers_of(words.split())) for words in _COMMON.values()])
_ENOUGH = 30  # words; of fewer, the comparison with other languages says little
_MARGIN = 1.2  # by how much another language must win: foreign names and titles bring its words along


def is_spanish(words: Words, least: float) -> npt.NDArray[np.bool_]:
    """Which texts have a share of at least `least` of common Spanish words, and no other language clearly more."""
    counts = words.counts()
    at = np.minimum(np.searchsorted(_NUMBERS, words.numbers), len(_NUMBERS) - 1)
    known = _NUMBERS[at] == words.numbers
    hits = np.stack([each((mask[at] & known).astype(np.int64), words.starts, np.add) for mask in _IN_LANGUAGE])
    spanish, others = hits[0], hits[1:].max(axis=0)
    return (spanish >= least * np.maximum(counts, 1)) & ((_MARGIN * spanish >= others) | (counts < _ENOUGH))
