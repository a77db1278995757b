"""The words of many texts at once, as numbers: what the language test, near duplicates and decontamination count.

A word is a run of letters and digits, folded: lower case, without accents, and with everything outside Latin-1 taken
for white space. Its number is a polynomial over its bytes modulo 2^64, mixed, which numpy finds for all words of a
megabyte of text in a few passes; unlike `hash`, it is the same in every process. A longer text, which may have 32, is
taken by the megabyte, since those passes need 40 bytes for each of its own.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]
Number = TypeVar("Number", bound=np.generic)

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_BLOCK = 1 << 20  # bytes


def _folding() -> bytes:
    """What each byte of Latin-1 becomes: lower case without accent, or a space."""
    table = bytearray()
    for code in range(256):
        plain = unicodedata.normalize("NFD", chr(code).lower())[0]
        table.append(ord(plain) if chr(code).isalnum() and ord(plain) < 256 else 32)
    return bytes(table)


_FOLDED = _folding()


@dataclass(frozen=True)
class Words:
    """All words of some texts, one text after another; those of text i are `numbers[starts[i] : starts[i + 1]]`."""

    numbers: Numbers
    starts: npt.NDArray[np.int64]

    def counts(self) -> npt.NDArray[np.int64]:
        """Words of each text."""
        return np.diff(self.starts)

    def of(self, texts: npt.NDArray[np.bool_]) -> Words:
        """The words of these texts only."""
        counts = self.counts()
        return Words(self.numbers[np.repeat(texts, counts)], np.concatenate(([0], np.cumsum(counts[texts]))))

    def grams(self, n: int) -> tuple[Numbers, npt.NDArray[np.int64]]:
        """The numbers of all runs of `n` words, text by text, and where those of each text start; a text that has
        fewer words is one run."""
        runs = np.maximum(self.counts() - n + 1, (self.counts() > 0).astype(np.int64))
        starts = np.concatenate(([0], np.cumsum(runs)))
        first = np.arange(starts[-1]) + np.repeat(self.starts[:-1] - starts[:-1], runs)
        last = np.repeat(self.starts[1:], runs)
        grams = np.zeros(len(first), dtype=np.uint64)
        padded = np.concatenate((self.numbers, np.zeros(n, dtype=np.uint64)))
        for i in range(n):
            inside = (first + i < last).astype(np.uint64)
            grams = grams * np.uint64(_BASE) + padded[first + i] * inside
        return mixed(grams), starts


def words_of(texts: Sequence[str]) -> Words:
    """The words of `texts`."""
    parts = [text.encode("latin-1", "replace").translate(_FOLDED) for text in texts]
    data = np.frombuffer(b" ".join(parts) + b" ", dtype=np.uint8)
    ends_of_texts = np.cumsum([len(part) + 1 for part in parts])
    letter = data != 32
    edges = np.flatnonzero(np.diff(letter, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    numbers = np.empty(len(starts), dtype=np.uint64)
    cuts = np.searchsorted(starts, np.arange(0, len(data) + _BLOCK, _BLOCK))
    for first, last in pairwise(cuts):
        if first < last:
            here = starts[first]
            numbers[first:last] = _numbers(
                data[here : ends[last - 1]], starts[first:last] - here, ends[first:last] - here
            )
    return Words(numbers, np.concatenate(([0], np.searchsorted(starts, ends_of_texts))))


def _numbers(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Numbers:
    """The number of each word `data[start:end]`."""
    powers, inverses = _powers(len(data))
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(data * powers[: len(data)], dtype=np.uint64)))
    return mixed((sums[ends] - sums[starts]) * inverses[starts])


def numbers_of(words: Iterable[str]) -> Numbers:
    """The sorted numbers of single words, each written without accents or with them."""
    return np.unique(words_of(list(words)).numbers)


def contained(numbers: Numbers, sorted_set: Numbers) -> npt.NDArray[np.bool_]:
    """Which of `numbers` are in `sorted_set`."""
    if not len(sorted_set):
        return np.zeros(len(numbers), dtype=np.bool_)
    at = np.minimum(np.searchsorted(sorted_set, numbers), len(sorted_set) - 1)
    return sorted_set[at] == numbers


def mixed(x: Numbers) -> Numbers:
    """splitmix64's finaliser: every input bit changes every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_known: list[tuple[Numbers, Numbers]] = []


def _powers(length: int) -> tuple[Numbers, Numbers]:
    """Powers of the base and of its inverse, at least `length` of each; kept for the next call."""
    pair = _known[0] if _known else None
    if pair is None or len(pair[0]) < length:
        size = max(length, _BLOCK)
        inverse = pow(_BASE, -1, 1 << 64)
        pair = _powers_of(_BASE, size), _powers_of(inverse, size)
        _known[:] = [pair]
    return pair


def _powers_of(base: int, size: int) -> Numbers:
    factors = np.full(size, base, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def each(values: npt.NDArray[Number], starts: npt.NDArray[np.int64], operation: np.ufunc) -> npt.NDArray[Number]:
    """`operation` reduced over the values of each text; 0 for a text that has none."""
    result = np.zeros(len(starts) - 1, dtype=values.dtype)
    some = np.flatnonzero(np.diff(starts))
    if len(some):
        result[some] = operation.reduceat(values, starts[some])
    return result
