"""The search tool as the model sees it: the call that it writes and the box that the results come in.

    assistant   buscar: Qué es el mate
    tool        [1] Mate (es.wikipedia.org): El mate es una infusión de hojas de yerba mate...
    assistant   una infusión de hojas de yerba mate

One word, and then the question as it was asked, without its signs: a model of two million parameters learns the word
in a few hundred examples and the rest is copying, which is the first thing that attention learns, while JSON or a
query in other words would cost it capacity and fail in more ways. A turn is a call as a whole or not at all, so
nothing that an answer quotes can search.

What is retrieved is data. In our own model it cannot close its turn, since turns are closed by ids that no text has;
`as_data` also takes from it what could close a box or open a turn in any other model, or pass for a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from enlace.data.clean import normalise

CALL = "buscar:"
NO_RESULTS = "Sin resultados."

_CALL = re.compile(rf"{CALL} *(?P<query>[^\n]*)")
# Angle brackets make the marks of ChatML and its relatives, square ones those of others and the numbers of our sources.
_HARMLESS = str.maketrans({"<": "‹", ">": "›", "[": "(", "]": ")"})


def call(query: str) -> str:
    """The turn of the assistant that searches for `query`."""
    return f"{CALL} {query}"


def parse_call(text: str) -> str | None:
    """What a turn of the assistant searches for (may be empty: nothing was said); None when it is not a call."""
    match = _CALL.fullmatch(normalise(text))
    return match["query"].strip() if match else None


def may_be_call(beginning: str) -> bool:
    """Whether a turn that begins so can still be a call: until it cannot, nothing of it is shown."""
    text = beginning.lstrip()
    return text.startswith(CALL) or CALL.startswith(text)


def question_query(question: str) -> str:
    """The query of a question as it was asked: its words without the signs around them."""
    return " ".join(normalise(question).split()).strip("¿?¡! .")


def as_data(text: str) -> str:
    """Retrieved text on one line, without anything that a model could take for a mark, a turn or a source's number."""
    return " ".join(normalise(text).translate(_HARMLESS).split())


def source_line(number: int, title: str, host: str, text: str) -> str:
    """One result: `[1] title (host): text`."""
    where = f" ({as_data(host)})" if host else ""
    return f"[{number}] {as_data(title)}{where}: {as_data(text)}"


# Words that are in any question: sharing them says nothing.
_COMMON = re.compile(
    "qué|quién(es)?|cuál(es)?|cuándo|dónde|cómo|cuánt[oa]s?|por|para|con|los|las|del|una|unos?|unas|que|fue|fueron|eran?|son"
    "|están?|estaba|hay|tiene"
)


def is_about(query: str, said: Iterable[str]) -> bool:
    """Whether `query` is about what was said: every name in it was said, and at least half of its other words.

    A query of a person's own words finds what they asked, where a small model makes up names; and it cannot carry off
    what was read in a page.
    """
    known = {word.casefold() for text in said for word in _words(text)}
    words = [word for word in _words(query) if not _COMMON.fullmatch(word.casefold())]
    names = [word for word in words if not word.islower()]
    heard = sum(word.casefold() in known for word in words)
    return bool(words) and 2 * heard >= len(words) and all(name.casefold() in known for name in names)


def _words(text: str) -> list[str]:
    """Words of three letters or more, and figures."""
    return [word for word in re.findall(r"\w+", normalise(text)) if len(word) > 2 or word.isdigit()]
