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


def shares_words(query: str, said: Iterable[str]) -> float:
    """Share of the words of `query` (from three letters, or figures) that stand in what was said; 0 without words.

    A query of a person's own words finds what they asked, and cannot carry off what was read in a page.
    """
    words = _words(query)
    known = {word for text in said for word in _words(text)}
    return sum(word in known for word in words) / len(words) if words else 0.0


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", normalise(text).casefold()) if len(word) > 2 or word.isdigit()]
