"""What the model reads of a search, within so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enlace.agent.search.outcome import Outcome, Result
from enlace.config.schema import SearchConfig

Count = Callable[[str], int]


def for_model(outcome: Outcome, count: Count, budget: int, config: SearchConfig) -> str:
    """The text of `outcome` for the model, in at most `budget` tokens as counted by `count`.

    "Sin resultados." where nothing was found, and only there. Empty when `budget` does not hold a word.
    """
    raise NotImplementedError


def fit(results: Sequence[Result], count: Count, budget: int, config: SearchConfig) -> tuple[Result, ...]:
    """The first of `results`, trimmed, as `for_model` shows them: those that are its sources.

    Titles and snippets are cut at a word boundary. Whole results go from the end before the first is cut further.
    """
    raise NotImplementedError
