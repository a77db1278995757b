"""Which of the cleaned documents, and of the conversations, stay: one of each, whatever order they come in.

Documents are put in the order of their hash, which is also what decides the split. Of copies and of texts that are
alike the first in that order stays, and so, where one of them is held out, a held-out one does: nothing like it is
trained.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from enlace.data.chat import Message
from enlace.data.clean import normalise
from enlace.data.conversations import Conversation
from enlace.data.decontaminate import EvalSet
from enlace.data.dedup import is_held_out
from enlace.data.filters import Report
from enlace.data.near import BANDS, near_duplicates
from enlace.data.shards import beside
from enlace.data.words import Numbers, words_of


class Pieces:
    """Reads pieces of many files, the last used of which stay open: opening one takes longer than reading from it."""

    def __init__(self, most: int = 200) -> None:
        self._open: dict[Path, int] = {}
        self._most = most

    def read(self, path: Path, start: int, length: int) -> bytes:
        """`length` bytes of `path` from `start` on."""
        descriptor = self._open.pop(path, None)
        if descriptor is None:
            if len(self._open) >= self._most:
                os.close(self._open.pop(next(iter(self._open))))
            descriptor = os.open(path, os.O_RDONLY)
        self._open[path] = descriptor
        return os.pread(descriptor, length, start)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])


@dataclass(frozen=True)
class Table:
    """All documents, one entry each, by key: about 40 bytes a document."""

    bases: Sequence[Path]  # of the files of each unit
    key: Numbers
    digest: Numbers
    unit: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]  # within the unit
    start: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint32]
    pieces: Pieces

    @classmethod
    def load(cls, bases: Sequence[Path]) -> Table:
        """The documents of these units."""
        tables = [np.load(beside(base, ".npy")) for base in bases]
        rows = np.concatenate(tables)
        unit = np.repeat(np.arange(len(bases), dtype=np.int32), [len(table) for table in tables])
        position = np.concatenate([np.arange(len(table), dtype=np.int32) for table in tables])
        key = rows["key"].astype(np.uint64)
        unsorted = cls(bases, key, rows["digest"], unit, position, rows["start"], rows["length"], Pieces())
        return unsorted.taken(np.argsort(key, kind="stable"))

    def text(self, i: int) -> str:
        """The text of document `i`."""
        path = beside(self.bases[self.unit[i]], ".txt")
        return self.pieces.read(path, int(self.start[i]), int(self.length[i])).decode("utf-8")

    def taken(self, which: npt.NDArray[np.int64]) -> Table:
        """Only these documents."""
        parts = ("key", "digest", "unit", "position", "start", "length")
        return replace(self, **{part: getattr(self, part)[which] for part in parts})

    def bands(self) -> Iterator[Numbers]:
        """The band keys of all documents, band by band."""
        first = np.concatenate(([0], np.cumsum([_documents(base) for base in self.bases])))
        at = first[self.unit] + self.position
        for band in range(BANDS):
            columns = [np.load(beside(base, ".bands.npy"), mmap_mode="r")[band] for base in self.bases]
            yield np.concatenate(columns)[at]


@dataclass(frozen=True)
class Selection:
    """The documents that stay, and for each key of one that does not the key of the one that stands for it."""

    table: Table
    stands_for: dict[int, int]


def select(table: Table, threshold: float | None, report: Report) -> Selection:
    """Drop copies, and what is alike by `threshold` (None: nothing is), telling `report`."""
    stands_for: dict[int, int] = {}
    table = _without(table, _exact(table), "duplicate", stands_for, report)
    if threshold is not None:
        parent = near_duplicates(table.bands(), table.text, threshold, len(table.key))
        table = _without(table, parent, "near_duplicate", stands_for, report)
    for key, other in stands_for.items():
        while other in stands_for:
            other = stands_for[other]
        stands_for[key] = other
    return Selection(table, stands_for)


def select_conversations(
    conversations: Iterable[Conversation], selection: Selection, val_fraction: float, evals: EvalSet, report: Report
) -> list[Conversation]:
    """The conversations normalised, without those that are empty, repeated, in an evaluation set, or about a document
    that is not held out but has a held-out one that says the same; counted in `report`.

    Of copies about several documents the one with the smallest hash stays, as with documents: the held-out one.
    """
    kept: dict[tuple[Message, ...], Conversation] = {}
    for conversation in sorted(conversations, key=lambda chat: chat.document_hash):
        messages = tuple(Message(message.role, normalise(message.content)) for message in conversation.messages)
        about = int(conversation.document_hash, 16)
        stands = f"{selection.stands_for.get(about, about):016x}"
        if not all(message.content for message in messages):
            report.dropped["empty_conversation"] += 1
        elif messages in kept:
            report.dropped["duplicate_conversation"] += 1
        elif is_held_out(stands, val_fraction) and not is_held_out(conversation.document_hash, val_fraction):
            report.dropped["held_out_conversation"] += 1
        elif _is_contaminated(messages, evals, report):
            report.dropped["contaminated_conversation"] += 1
        else:
            kept[messages] = replace(conversation, messages=messages)
    return sorted(kept.values(), key=lambda chat: (chat.document_hash, [m.content for m in chat.messages]))


def _is_contaminated(messages: Sequence[Message], evals: EvalSet, report: Report) -> bool:
    if not evals.runs:
        return False
    overlapping, items = evals.overlaps(words_of([message.content for message in messages]))
    report.eval_items |= items
    return bool(overlapping.any())


def _exact(table: Table) -> npt.NDArray[np.int64]:
    """For each document the first that says the same, as it was or as it is now."""
    same_key, same_digest = _first_of_equals(table.key), _first_of_equals(table.digest)
    parent = same_digest[same_key]
    better = np.arange(len(parent))
    counts = Counter(same_key[same_key != np.arange(len(same_key))].tolist())
    for first, copies in counts.items():  # copies that differ in capitals or spaces: the one with fewest capitals
        group = range(first, first + copies + 1)
        best = max(group, key=lambda i: (table.text(i), -int(table.unit[i])))
        if parent[first] == first:
            better[first] = best
    return better[parent]


def _first_of_equals(values: Numbers) -> npt.NDArray[np.int64]:
    order = np.argsort(values, kind="stable")
    new = np.concatenate(([True], values[order][1:] != values[order][:-1])) if len(values) else np.zeros(0, bool)
    first = np.empty(len(values), dtype=np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def _without(
    table: Table, parent: npt.NDArray[np.int64], reason: str, stands_for: dict[int, int], report: Report
) -> Table:
    """The documents that are their own parent."""
    own = np.arange(len(parent))
    gone = np.flatnonzero(parent != own)
    report.dropped[reason] += len(gone)
    for i in gone[:5]:
        report.sample(reason, int(table.key[i]).to_bytes(8, "big"), "", table.text(int(i)))
    moved = gone[table.key[gone] != table.key[parent[gone]]]
    stands_for.update(zip(table.key[moved].tolist(), table.key[parent[moved]].tolist(), strict=True))
    return table.taken(np.flatnonzero(parent == own))


def _documents(base: Path) -> int:
    return len(np.load(beside(base, ".npy"), mmap_mode="r"))
