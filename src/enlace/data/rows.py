"""Rows: the numbered lists of `seq_len` + 1 tokens that the loader draws from, one list for each source.

Two kinds: consecutive windows over a stream of tokens, and whole conversations.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from enlace import EnlaceError
from enlace.data.shards import Shards, Stream, let_go

Row = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]


class Rows(Protocol):
    """A numbered list of training rows."""

    digest: str

    def __len__(self) -> int: ...

    def row(self, index: int, shift: int) -> Row:
        """Ids [T + 1] and whether each may be a target [T + 1]; `shift` differs from epoch to epoch."""
        ...

    def let_go(self) -> None:
        """Keep nothing in memory of the rows that were read."""
        ...


class TokenWindows:
    """Consecutive windows over a stream of tokens: neighbours share one token, so that each is a target once.

    Every epoch cuts the stream at other places (by its shift), so that no token always lacks the same context.
    Works on uint16 shards and on plain bytes alike.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], seq_len: int, digest: str, name: str) -> None:
        self.arrays, self.seq_len, self.digest = arrays, seq_len, digest
        self.ends = np.cumsum([len(array) for array in arrays])
        self.length = (int(self.ends[-1]) - seq_len) // seq_len
        if self.length < 1:
            raise EnlaceError(
                f"«{name}» tiene {self.ends[-1]} tokens y hacen falta {2 * seq_len} para train.seq_len={seq_len}: "
                f"añade texto o baja train.seq_len."
            )

    @classmethod
    def of_bytes(cls, path: Path, seq_len: int) -> TokenWindows:
        """Windows over the bytes of a file: a vocabulary of 256 and no tokenizer, for smoke tests."""
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        return cls([data], seq_len, hashlib.sha256(data.tobytes()).hexdigest(), str(path))

    def __len__(self) -> int:
        return self.length

    def row(self, index: int, shift: int) -> Row:
        """Window `index`, moved right by `shift` modulo `seq_len`; every id is a target."""
        start = index * self.seq_len + shift % self.seq_len
        ids = self._slice(start, start + self.seq_len + 1)
        return ids, np.ones(len(ids), dtype=np.bool_)

    def let_go(self) -> None:
        """See `shards.let_go`."""
        let_go(self.arrays)

    def _slice(self, start: int, end: int) -> npt.NDArray[np.int64]:
        pieces: list[npt.NDArray[np.int64]] = []
        while start < end:
            shard = int(np.searchsorted(self.ends, start, side="right"))
            offset = start - (int(self.ends[shard - 1]) if shard else 0)
            piece = self.arrays[shard][offset : offset + end - start].astype(np.int64)
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces)


Piece = tuple[int, int, int]  # shard, start, end


class ChatRows:
    """Rows of whole conversations, best fit first; what is left of a row is padding and not trained.

    A conversation longer than a row loses its oldest exchanges, but not its system message; where not even the last
    exchange fits, the end of its answer is cut. How many of each is counted in `shortened` and `cut`, and in `dropped`
    those that keep nothing to train. No conversation goes on in another row.
    """

    def __init__(self, stream: Stream, seq_len: int, padding: int, digest: str) -> None:
        self.stream, self.seq_len, self.padding, self.digest = stream, seq_len, padding, digest
        self.shortened = self.cut = self.dropped = 0
        conversations = [pieces for pieces in self._conversations() if pieces]
        lengths = [sum(end - start for _, start, end in pieces) for pieces in conversations]
        self.rows = [[piece for i in row for piece in conversations[i]] for row in best_fit(lengths, seq_len + 1)]

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int, shift: int) -> Row:
        """Row `index`; `shift` does nothing, since a conversation is not cut."""
        ids = np.full(self.seq_len + 1, self.padding, dtype=np.int64)
        mask = np.zeros(self.seq_len + 1, dtype=np.bool_)
        at = 0
        assert self.stream.masks is not None
        for shard, start, end in self.rows[index]:
            ids[at : at + end - start] = self.stream.tokens[shard][start:end]
            mask[at : at + end - start] = self.stream.masks[shard][start:end]
            at += end - start
        return ids, mask

    def let_go(self) -> None:
        """See `shards.let_go`."""
        let_go((*self.stream.tokens, *(self.stream.masks or ())))

    def _conversations(self) -> Iterator[list[Piece]]:
        """What is read of each conversation."""
        room = self.seq_len + 1
        assert self.stream.masks is not None
        for shard, ends in enumerate(self.stream.doc_ends):
            for first, last in pairwise([0, *map(int, ends)]):
                parts = [(0, last - first)]
                if last - first > room:
                    whole = slice(first, last)
                    parts = fitting(self.stream.tokens[shard][whole], self.stream.masks[shard][whole], room)
                    if not parts:
                        self.dropped += 1
                    elif parts[-1][1] < last - first:
                        self.cut += 1
                    else:
                        self.shortened += 1
                yield [(shard, first + start, first + end) for start, end in parts]


def fitting(ids: npt.NDArray[np.uint16], mask: npt.NDArray[np.uint8], room: int) -> list[tuple[int, int]]:
    """The parts, as (start, end), of a conversation of more than `room` ids that are kept; none: nothing is trained.

    Turns are told by <|im_start|>, which opens every conversation and never comes out of text; the turns of the user,
    by what follows it in the turn before the first answer.
    """
    trained = np.flatnonzero(mask)
    if not len(trained):
        return []
    turns = np.flatnonzero(ids == ids[0])
    question = int(turns[max(0, np.searchsorted(turns, trained[0], side="right") - 2)])
    questions = [int(turn) for turn in turns if turn >= question and ids[turn + 1] == ids[question + 1]]
    for start in questions:
        if question + len(ids) - start <= room:
            return [(0, question), (start, len(ids))] if question else [(start, len(ids))]
    last = questions[-1]
    if len(ids) - last <= room:
        return [(last, len(ids))]
    return [(last, last + room)] if mask[last : last + room].any() else []


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which items go into each row of `room`, which none exceeds: the longest first, each where it leaves least."""
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # rows by what is left of them
    rooms: list[int] = []  # the keys of that, in order
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect_left(rooms, lengths[i])
        if at < len(rooms):
            left = rooms[at]
            row = with_room[left].pop()
            if not with_room[left]:
                del with_room[left], rooms[at]
        else:
            left, row = room, len(rows)
            rows.append([])
        rows[row].append(i)
        left -= lengths[i]
        if left not in with_room:
            insort(rooms, left)
        with_room.setdefault(left, []).append(row)
    return [sorted(row) for row in rows]


def corpus_rows(shards: Shards, split: str, seq_len: int) -> TokenWindows:
    """All corpus streams of a split, one after another."""
    streams = shards.of_kind(split, "corpus")
    arrays = [tokens for stream in streams for tokens in stream.tokens]
    return TokenWindows(arrays, seq_len, _digest(shards, streams), f"corpus ({split})")


def chat_rows(shards: Shards, split: str, seq_len: int) -> ChatRows | None:
    """The conversations of a split; None when there are none, or none that fits."""
    streams = shards.of_kind(split, "chat")
    if not streams:
        return None
    padding = shards.manifest.end_of_text_id  # any id would do: what it fills is not trained
    rows = ChatRows(streams[0], seq_len, padding, _digest(shards, streams))
    return rows if len(rows) else None


def _digest(shards: Shards, streams: Sequence[Stream]) -> str:
    names = {(s.split, s.name) for s in streams}
    records = [r for r in shards.manifest.streams if (r.split, r.name) in names]
    return hashlib.sha256("".join(r.model_dump_json() for r in records).encode()).hexdigest()
