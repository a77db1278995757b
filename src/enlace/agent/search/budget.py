"""What the model reads of a search, within so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from enlace.agent.search.outcome import Kind, Outcome, Result
from enlace.agent.search.text import shorten
from enlace.config.schema import SearchConfig

Count = Callable[[str], int]

# Only the first says that there is nothing, so that the model can say so instead of inventing.
_WORDS: dict[Kind, str] = {
    "no_results": "Sin resultados.",
    "blocked": "Búsqueda no hecha: el buscador no la admite ahora. No se sabe qué hay.",
    "unreadable": "Búsqueda fallida: no se entiende lo que contestó el buscador.",
    "unreachable": "Búsqueda fallida: el buscador no contesta.",
}


def for_model(outcome: Outcome, count: Count, budget: int, config: SearchConfig) -> str:
    """The text of `outcome` for the model, in at most `budget` tokens as counted by `count`.

    "Sin resultados." where nothing was found, and only there. Empty when `budget` does not hold even the first result
    cut to a word, or one of these sentences.
    """
    if outcome.results:
        return _shown(fit(outcome.results, count, budget, config))
    text = _WORDS[outcome.kind]
    return text if count(text) <= budget else ""


def fit(results: Sequence[Result], count: Count, budget: int, config: SearchConfig) -> tuple[Result, ...]:
    """The first of `results`, trimmed, as `for_model` shows them: those that are its sources.

    Titles and snippets are cut at a word boundary. Whole results go from the end before the first is cut further.
    """
    trimmed = [
        replace(r, title=shorten(r.title, config.title_chars), snippet=shorten(r.snippet, config.snippet_chars))
        for r in results[: config.results]
    ]
    while len(trimmed) > 1 and count(_shown(trimmed)) > budget:
        trimmed.pop()
    for shorter in _shorter(trimmed[0]) if trimmed else ():
        if count(_shown([shorter, *trimmed[1:]])) <= budget:
            return (shorter, *trimmed[1:])
    return ()


def _shorter(result: Result) -> list[Result]:
    """`result`, and what is left of it word by word: first the snippet goes, then the title."""
    snippet, title = result.snippet.split(), result.title.split()
    cut = [replace(result, snippet=" ".join(snippet[:n]) + "…") for n in range(len(snippet) - 1, 0, -1)]
    bare = replace(result, snippet="")
    return [result, *cut, bare, *(replace(bare, title=" ".join(title[:n]) + "…") for n in range(len(title) - 1, 0, -1))]


def _shown(results: Sequence[Result]) -> str:
    """Numbered, without full addresses: they are the dearest part of a result, and the model does not follow them."""
    return "\n".join(
        f"{number}. {r.title} ({', '.join(filter(None, (r.host, r.date)))})" + (f"\n{r.snippet}" if r.snippet else "")
        for number, r in enumerate(results, start=1)
    )
