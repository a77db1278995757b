"""Is a text Spanish? By the share of its words that are common Spanish words, and against each neighbour in turn.

Needs no model and no network. What Spanish and Catalan have in common ("de", "la", "que") says nothing between the
two: only the words that one of them has and the other has not are weighed.

Measured on the help of LibreOffice 7.4 in eight languages, paragraphs of 180 characters or more: of the Catalan ones
2.7 % pass for Spanish, of the Galician 2.1 %, of the others 1 % at most; of the 6,141 summaries of the demo one is
refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from enlace.data.words import Words, numbers_of

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
    """,
    "fr": """
        de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont avec
        ou cette aux son mais comme on nous l d elle sa ses ont ete etait leur je vous
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
_SPANISH, *_OTHERS = (np.isin(_NUMBERS, numbers_of(words.split())) for words in _COMMON.values())
# Where a number would be, by its first 20 bits, which no two of them share: eight times sooner than a search.
_LOW_BITS = np.uint64(44)
_PLACES = np.zeros(1 << 20, dtype=np.int16)
_PLACES[_NUMBERS >> _LOW_BITS] = np.arange(len(_NUMBERS))
_MARGIN = 2  # foreign names and titles bring their words along, so one of Spanish outweighs two of another language
_AGAINST = [_MARGIN * (_SPANISH & ~other) - 1.0 * (other & ~_SPANISH) for other in _OTHERS]
_ENOUGH = 15  # words; of fewer, the comparison with other languages says little


def is_spanish(words: Words, least: float) -> npt.NDArray[np.bool_]:
    """Which texts have a share of at least `least` of common Spanish words, and are of no other language instead."""
    counts = words.counts()
    at = _PLACES[words.numbers >> _LOW_BITS]
    known = np.flatnonzero(_NUMBERS[at] == words.numbers)
    word, text = at[known], np.repeat(np.arange(len(counts)), counts)[known]
    spanish, *against = (np.bincount(text, weight[word], len(counts)) for weight in (_SPANISH, *_AGAINST))
    return (spanish >= least * np.maximum(counts, 1)) & ((np.min(against, axis=0) >= 0) | (counts < _ENOUGH))
