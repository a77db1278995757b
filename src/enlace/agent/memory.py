"""Episodic memory: what was said and found at home, in one SQLite file that is searched by its words.

Each call opens the file and closes it, so that threads and processes share nothing but the file, and nobody's open
connection keeps alive what another one forgets.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.agent.words import all_of, any_of, loose, words
from enlace.config.paths import agent_dir
from enlace.config.schema import MemoryConfig
from enlace.data.clean import normalise
from enlace.data.jsonl import json_lines
from enlace.durable import reason, write_atomic

_DAY = 86_400.0
_APPLICATION_ID = 0x454E4C43  # "ENLC": whose file this is
_VERSION = 1
# `words.folded` holds the words, since FTS5's own folding turns ñ into n.
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL, speaker TEXT NOT NULL, text TEXT NOT NULL, source TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(folded, tokenize = "unicode61 remove_diacritics 0");
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_COLUMNS = "time, speaker, text, source, id"
_CANDIDATES = 500  # of the best by relevance, from which age chooses
_BUSY_SECONDS = 10.0


@dataclass(frozen=True)
class Episode:
    """Something said or found."""

    time: float  # seconds since 1970, UTC
    speaker: str  # "user", "assistant", "web"...
    text: str
    source: str = ""  # where it comes from: the URL of a search result, or the name of a conversation
    id: int | None = None  # its number in the memory; None before it is written


class Memory:
    """The episodes in one file. May be used from several threads and processes at once.

    Every method raises EnlaceError where the file is not a memory, is damaged, or cannot be written.
    """

    def __init__(self, path: Path, half_life_days: float, clock: Callable[[], float] = time.time) -> None:
        """The memory in the file `path`, made when something is first written or looked for."""
        self.path = path
        self._half_life = half_life_days * _DAY
        self._clock = clock

    @classmethod
    def from_config(cls, config: MemoryConfig) -> Memory:
        """The memory of the household."""
        return cls(agent_dir() / "memory.db", config.half_life_days)

    def write(self, episode: Episode) -> bool:
        """Remember `episode`, durably: once this returns, neither a kill nor a power cut takes it away.

        The same words of the same speaker again make the old episode newer, and what has no words is not remembered.

        Returns:
            Whether it is new.
        """
        return self._write([episode]) == 1

    def recall(self, query: str, k: int, exclude: Collection[str] = ()) -> list[Episode]:
        """At most `k` episodes that share words with `query`, best first; no two say the same.

        The order is that of relevance (bm25), of which age takes up to a third: what was said long ago is still known.

        Args:
            query: any text; nothing in it is syntax.
            k: how many.
            exclude: texts that the reader has before them already, such as the turns in the context.
        """
        if k <= 0 or (expression := any_of(query)) is None:
            return []
        found = self._select(
            f"SELECT {_COLUMNS}, -bm25(words) FROM words JOIN episodes ON id = words.rowid WHERE words MATCH ? "
            f"ORDER BY bm25(words), id DESC LIMIT {_CANDIDATES}",
            (expression,),
        )
        now = self._clock()
        ranked = sorted(found, key=lambda row: -row[5] * self._freshness(now - row[0]))
        seen = [f" {loose(text)} " for text in exclude]
        chosen: list[Episode] = []
        for row in ranked:
            episode = Episode(*row[:5])
            said = f" {loose(episode.text)} "
            if not any(said in other for other in seen):
                chosen.append(episode)
                seen.append(said)
            if len(chosen) == k:
                break
        return chosen

    def find(self, text: str) -> list[Episode]:
        """Every episode that has all the words of `text`, newest first."""
        if (expression := all_of(text)) is None:
            return []
        sql = (
            f"SELECT {_COLUMNS} FROM words JOIN episodes ON id = words.rowid WHERE words MATCH ? ORDER BY time DESC, id"
        )
        return [Episode(*row) for row in self._select(sql, (expression,))]

    def episodes(self) -> list[Episode]:
        """All of them, oldest first."""
        return [Episode(*row) for row in self._select(f"SELECT {_COLUMNS} FROM episodes ORDER BY time, id", ())]

    def forget(self, ids: Collection[int]) -> int:
        """Delete these episodes for real: once this returns, their bytes are in none of the memory's files.

        It also sweeps away what an earlier call could not, so that repeating it is always right.

        Returns:
            How many of them there were.
        """
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            before = connection.total_changes
            connection.executemany("DELETE FROM episodes WHERE id = ?", [(id,) for id in ids])
            gone = connection.total_changes - before
            connection.executemany("DELETE FROM words WHERE rowid = ?", [(id,) for id in ids])
            # Deleting leaves the words in the index, marked; only making it anew takes them out.
            connection.execute("INSERT INTO words(words) VALUES ('rebuild')")
            connection.execute("COMMIT")
            if not _swept(connection):
                raise EnlaceError(
                    f"{self.path}: olvidado, pero otro programa está usando la memoria y quedan restos en el disco. "
                    f"Ciérralo y repite la orden para borrarlos."
                )
        return gone

    def export(self, path: Path) -> int:
        """Write every episode to a new JSONL file, one a line, oldest first. Returns how many."""
        if path.exists():
            raise EnlaceError(f"{path}: ya existe. Elige otro nombre o bórralo antes.")
        lines = [
            json.dumps(
                {"time": _written(e.time), "speaker": e.speaker, "text": e.text, "source": e.source},
                ensure_ascii=False,
            )
            for e in self.episodes()
        ]
        write_atomic(path, "".join(line + "\n" for line in lines).encode())
        return len(lines)

    def import_(self, path: Path) -> tuple[int, int]:
        """Write every episode of a JSONL file as `export` makes them; nothing at all if one line is wrong.

        Returns:
            How many episodes the file has, and how many of them were new.
        """
        episodes = [_read(record, where) for where, record in json_lines(path)]
        return len(episodes), self._write(episodes)

    def _freshness(self, age: float) -> float:
        return (2 + 0.5 ** (max(0.0, age) / self._half_life)) / 3

    def _write(self, episodes: Iterable[Episode]) -> int:
        """Write all in one transaction; returns how many were new."""
        new = 0
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            for episode in episodes:
                text, speaker, source = normalise(episode.text), normalise(episode.speaker), normalise(episode.source)
                if not (found := words(text)):
                    continue
                key = _key(speaker, text)
                # A repetition brings its source too: that is where it was last said.
                renewed = connection.execute(
                    "UPDATE episodes SET source = CASE WHEN ?1 > time THEN ?2 ELSE source END, time = max(time, ?1) "
                    "WHERE key = ?3",
                    (episode.time, source, key),
                )
                if renewed.rowcount == 0:
                    row = (episode.time, speaker, text, source, key)
                    cursor = connection.execute(
                        "INSERT INTO episodes (time, speaker, text, source, key) VALUES (?, ?, ?, ?, ?)", row
                    )
                    connection.execute(
                        "INSERT INTO words (rowid, folded) VALUES (?, ?)", (cursor.lastrowid, " ".join(found))
                    )
                    new += 1
            connection.execute("COMMIT")
        return new

    def _select(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """The file, open; what goes wrong inside is told in Spanish."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # for nobody else's eyes
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
                _prepare(connection)
                yield connection
        except OSError as error:
            raise EnlaceError(f"{self.path}: no se puede abrir la memoria ({reason(error)}).") from error
        except sqlite3.OperationalError as error:
            raise EnlaceError(
                f"{self.path}: no se puede usar la memoria: {_told(error)}. Nada de lo que había se ha perdido."
            ) from error
        except sqlite3.DatabaseError as error:
            raise EnlaceError(
                f"{self.path}: no es una memoria de ENLACE, o está dañada. No se ha tocado: apártala (con sus archivos "
                f"-wal y -shm) y recupera lo último que exportaste con enlace memory importar."
            ) from error


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables where they are missing; refuse what is somebody else's."""
    # In one look: between two, somebody else may be making the tables.
    connection.execute("BEGIN")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    owner, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    connection.execute("COMMIT")
    if tables and owner != _APPLICATION_ID:
        raise sqlite3.DatabaseError("not ours")
    if version > _VERSION:
        raise sqlite3.DatabaseError("of a later version")
    connection.execute("PRAGMA synchronous = FULL")  # a power cut takes nothing that was written
    connection.execute("PRAGMA secure_delete = ON")
    if version < _VERSION:
        _patiently(connection, "PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)


def _swept(connection: sqlite3.Connection) -> bool:
    """Rewrite the file without what was deleted, and empty the log; False where others are in the way."""
    try:
        connection.execute("VACUUM")
        return connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    except sqlite3.OperationalError:
        return False


def _patiently(connection: sqlite3.Connection, sql: str) -> None:
    """Run a statement for which SQLite does not wait by itself while another process has the file."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute(sql).fetchone()
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _told(error: sqlite3.OperationalError) -> str:
    match getattr(error, "sqlite_errorname", "SQLITE_ERROR").split("_")[1]:
        case "BUSY" | "LOCKED":
            return "otro programa la tiene ocupada; ciérralo y repite"
        case "FULL":
            return "disco lleno"
        case "READONLY" | "CANTOPEN" | "PERM":
            return "no se puede escribir ahí"
    return f"fallo de SQLite ({error})"


def _key(speaker: str, text: str) -> str:
    """The same for the same words of the same speaker, whatever their case and spacing; accents count."""
    return hashlib.sha256(json.dumps([speaker, " ".join(text.casefold().split())]).encode()).hexdigest()


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _read(record: dict[str, Any], where: str) -> Episode:
    speaker, text, source = record.get("speaker"), record.get("text"), record.get("source", "")
    try:
        moment = datetime.fromisoformat(record["time"])
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
        _written(seconds)  # a time of the last year there is may be of the next one in another zone
        sound = all(isinstance(value, str) for value in (speaker, text, source))
    except (KeyError, TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise EnlaceError(
            f"{where}: no es un episodio: hacen falta time (2026-11-30T09:00:00+00:00), speaker y text, y puede llevar "
            f"source. No se ha importado nada."
        )
    return Episode(seconds, str(speaker), str(text), str(source))
