"""What a model writes by itself: how varied, how repetitive, and how much of it is copied from the training text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]

SEED_TOKENS = 5  # shorter copies are any language's common phrases
_BLOCK = 2**20  # training tokens looked at at once: some 50 MB
_BASE = 0x9E3779B97F4A7C15  # odd, so that no power of it is 0 modulo 2^64
_GAP = 2**16  # between texts; no token


def distinct(texts: Sequence[str], n: int) -> float:
    """Different n-grams of words over all n-grams, in all texts together (Li et al., arXiv 1510.03055)."""
    grams = [gram for text in texts for gram in _ngrams(text, n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def repetition(texts: Sequence[str], n: int) -> float:
    """Share of n-grams of words that stood before in the same text (Welleck et al., arXiv 1908.04319: seq-rep-n)."""
    counts = [(len(grams), len(set(grams))) for text in texts if (grams := list(_ngrams(text, n)))]
    total = sum(all_ for all_, _ in counts)
    return 1 - sum(different for _, different in counts) / total if total else 0.0


def _ngrams(text: str, n: int) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return zip(*(words[i:] for i in range(n)))


@dataclass(frozen=True)
class Copy:
    """The longest piece of a text that stands in the training text, in tokens; of length 0 below `SEED_TOKENS`."""

    start: int
    length: int


def longest_copies(texts: Sequence[Ids], training: Iterable[Ids]) -> list[Copy]:
    """The longest copy in each of `texts`, exact, in one pass over `training` in bounded memory.

    The index is of the texts, which are few: the hash of every run of `SEED_TOKENS` tokens. Blocks of the training
    text are looked up in it, and what is found is compared token by token as far as it goes.
    """
    flat = np.concatenate([np.append(np.asarray(text, np.int64), _GAP) for text in texts])
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    best = np.zeros(len(flat), np.int64)  # longest copy that begins at each place
    hashes = _hashes(flat)
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    for tokens in training:
        for block in range(0, len(tokens) - SEED_TOKENS + 1, _BLOCK):
            looked_up = _hashes(tokens[block : block + _BLOCK + SEED_TOKENS - 1])
            first, last = (np.searchsorted(ranked, looked_up, side) for side in ("left", "right"))
            hits = np.flatnonzero(last > first)
            counts = (last - first)[hits]
            there = np.repeat(hits + block, counts)
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            here = order[np.repeat(first[hits], counts) + offsets]
            np.maximum.at(best, here, _common(flat, here, tokens, there))
    best[best < SEED_TOKENS] = 0  # a chance collision of hashes
    found = []
    for text in range(len(texts)):
        of_text = best[starts[text] : starts[text + 1]]
        place = int(of_text.argmax())
        found.append(Copy(place, int(of_text[place])))
    return found


def _hashes(tokens: Ids) -> npt.NDArray[np.uint64]:
    n = max(0, len(tokens) - SEED_TOKENS + 1)
    sums = np.zeros(n, np.uint64)
    for i in range(SEED_TOKENS):
        sums += (tokens[i : i + n].astype(np.uint64) + np.uint64(1)) * np.uint64(pow(_BASE, i, 2**64))
    return sums


def _common(a: Ids, a_at: npt.NDArray[np.intp], b: Ids, b_at: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """How many tokens `a` from each of `a_at` and `b` from each of `b_at` have in common."""
    lengths = np.zeros(len(a_at), np.int64)
    alive = np.arange(len(a_at))
    length = 0
    while len(alive):
        alive = alive[(a_at[alive] + length < len(a)) & (b_at[alive] + length < len(b))]
        alive = alive[a[a_at[alive] + length] == b[b_at[alive] + length]]
        length += 1
        lengths[alive] = length
    return lengths
