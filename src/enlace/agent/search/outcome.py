"""What a search gives: results, or one of four reasons why there are none, never confused with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

# An answer came: results, no_results (it says that there is nothing), blocked (it refused to search), unreadable (it is
# not what this program knows how to read). No answer came: unreachable.
Kind = Literal["results", "no_results", "blocked", "unreadable", "unreachable"]


def host_of(url: str) -> str:
    """The host of `url`, without port."""
    return urlsplit(url).hostname or ""


@dataclass(frozen=True)
class Result:
    """One page that was found. All text is plain, on one line, NFC, without control characters."""

    title: str  # never empty: the host where the page has none
    url: str  # http or https; where the link really leads
    snippet: str = ""
    date: str = ""  # YYYY-MM-DD where the service knows it

    @property
    def host(self) -> str:
        """Where the page is, as people are shown it: without port and "www."."""
        return host_of(self.url).removeprefix("www.")


@dataclass(frozen=True)
class Outcome:
    """The answer to one search."""

    kind: Kind
    results: tuple[Result, ...] = ()  # empty unless `kind` is "results"
    detail: str = ""  # in Spanish, for the person: what went wrong and what to do; empty when nothing did
    age_seconds: float | None = None  # how long ago it was asked for, when it comes out of the cache

    def __post_init__(self) -> None:
        if (self.kind == "results") != bool(self.results):
            raise ValueError(f"{self.kind} with {len(self.results)} results")
