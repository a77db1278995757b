from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enlace.eval import written
from enlace.eval.written import SEED_TOKENS, distinct, longest_copies, repetition


def test_distinct_and_repetition() -> None:
    assert distinct(["el perro y el gato"], 1) == 4 / 5
    assert distinct(["el perro", "el perro"], 2) == 1 / 2
    assert repetition(["a b c a b c"], 2) == pytest.approx(1 - 3 / 5)
    assert repetition(["a b c", "a b c"], 2) == 0, "the same in another text is no repetition"
    assert distinct([""], 2) == repetition([], 2) == 0


def _by_hand(text: list[int], training: list[list[int]]) -> int:
    longest = 0
    for tokens in training:
        for i in range(len(text)):
            for j in range(len(tokens)):
                n = 0
                while i + n < len(text) and j + n < len(tokens) and text[i + n] == tokens[j + n]:
                    n += 1
                longest = max(longest, n)
    return longest if longest >= SEED_TOKENS else 0


IDS = st.lists(st.integers(1, 3), max_size=40)


@given(st.lists(IDS, min_size=1, max_size=3), st.lists(IDS, min_size=1, max_size=3))
@settings(max_examples=200)
def test_the_longest_copy_is_that_of_comparing_everything(texts: list[list[int]], training: list[list[int]]) -> None:
    arrays = [[np.array(ids, np.uint16) for ids in part] for part in (texts, training)]
    for text, copy in zip(texts, longest_copies(*arrays), strict=True):
        assert copy.length == _by_hand(text, training)
        piece = text[copy.start : copy.start + copy.length]
        assert not piece or any(
            piece == tokens[j : j + len(piece)] for tokens in training for j in range(len(tokens))
        ), "and it is where it is said to be"


def test_a_copy_across_two_blocks_is_found_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_BLOCK", 16)
    training = np.random.default_rng(0).integers(1, 60000, 200).astype(np.uint16)
    for start in range(0, 170):
        [copy] = longest_copies([training[start : start + 30]], [training])
        assert (copy.start, copy.length) == (0, 30)
