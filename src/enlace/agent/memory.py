"""Episodic memory: what was said and found at home, in one SQLite file that is searched by its words."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Episode:
    """Something said or found."""

    time: float  # seconds since 1970, UTC
    speaker: str  # "user", "assistant", "web"...
    text: str
    source: str = ""  # where it comes from: the URL of a search result, or the name of a conversation
    id: int | None = None  # its number in the memory; None before it is written


class Memory:
    """The episodes in one file. May be used from several threads and processes at once."""

    def __init__(self, path: Path, half_life_days: float = 30, clock: Callable[[], float] = time.time) -> None:
        raise NotImplementedError

    def write(self, episode: Episode) -> bool:
        """Remember `episode`, durably; the same text of the same speaker and source again only becomes newer.

        Returns:
            Whether it is new.
        """
        raise NotImplementedError

    def recall(self, query: str, k: int, exclude: Collection[str] = ()) -> list[Episode]:
        """At most `k` episodes that share words with `query`, best first: by relevance (bm25) and by age.

        Args:
            query: any text; nothing in it is syntax.
            k: how many.
            exclude: texts that the reader has before them already, such as the turns in the context.
        """
        raise NotImplementedError

    def find(self, text: str) -> list[Episode]:
        """Every episode that has all the words of `text`, newest first."""
        raise NotImplementedError

    def forget(self, ids: Collection[int]) -> int:
        """Delete these episodes for real: their bytes leave the file. Returns how many there were."""
        raise NotImplementedError

    def episodes(self) -> Iterator[Episode]:
        """All of them, oldest first."""
        raise NotImplementedError

    def export(self, path: Path) -> int:
        """Write all to a JSONL file; returns how many."""
        raise NotImplementedError

    def import_(self, path: Path) -> tuple[int, int]:
        """Write every episode of a JSONL file, or none if a line is wrong; returns how many were new, and not new."""
        raise NotImplementedError
