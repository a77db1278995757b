"""Answers that were already given, on disk, so that the household's repeated questions survive a restart."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from enlace.agent.search.outcome import Outcome, Result

T = TypeVar("T")

_BUSY_SECONDS = 5.0
_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, stored REAL NOT NULL, results TEXT NOT NULL)"


class Cache:
    """Outcomes by key, for `ttl` seconds of wall time (those without results for `empty_ttl`).

    Only "results" and "no_results" are kept. A cache that cannot be read or written is an empty one, never an error:
    what it holds can be asked for again.
    """

    def __init__(self, path: Path, ttl: float, empty_ttl: float, max_entries: int, clock: Callable[[], float]) -> None:
        self._path = path
        self._ttl = ttl
        self._empty_ttl = empty_ttl
        self._max_entries = max_entries
        self._clock = clock

    def get(self, key: str) -> Outcome | None:
        """The answer under `key` with its age; None when there is none that is still good.

        A negative age (the machine's clock was set back) is as bad as an old one: nobody knows how old it is.
        """
        row = self._do(lambda c: c.execute("SELECT stored, results FROM answers WHERE key = ?", (key,)).fetchone())
        if row is None:
            return None
        with suppress(ValueError, TypeError):
            results = tuple(Result(**result) for result in json.loads(row[1]))
            age = self._clock() - row[0]
            if 0 <= age < (self._ttl if results else self._empty_ttl):
                return Outcome("results" if results else "no_results", results, age_seconds=age)
        return None

    def put(self, key: str, outcome: Outcome) -> None:
        """Keep `outcome`, if it is of those that are kept; what is out of date or too much goes."""
        if outcome.kind not in ("results", "no_results"):
            return
        now = self._clock()
        results = json.dumps([asdict(result) for result in outcome.results])
        longest = max(self._ttl, self._empty_ttl)

        def keep(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, now, results))
            connection.execute("DELETE FROM answers WHERE stored <= ? OR stored > ?", (now - longest, now))
            connection.execute(
                "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY stored DESC LIMIT -1 OFFSET ?)",
                (self._max_entries,),
            )

        self._do(keep)

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """What `work` gives, in a transaction over a connection of its own, so that threads share nothing."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # for nobody else's eyes
            with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as connection, connection:
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute(_SCHEMA)
                return work(connection)
        except sqlite3.OperationalError:  # locked, full, read-only
            return None
        except sqlite3.DatabaseError:  # damaged, or no database at all
            with suppress(OSError):
                self._path.unlink()
            return None
        except OSError:
            return None
