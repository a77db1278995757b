"""Rows: windows and whole conversations, each token where it should be and trained once."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enlace import EnlaceError
from enlace.config.schema import TrainConfig
from enlace.data.chat import Message, encode_conversation
from enlace.data.rows import TokenWindows, best_fit, chat_rows, fitting
from enlace.data.shards import Encoded, Shards, open_shards, write_manifest, write_stream
from enlace.data.tokenizer import Tokenizer


def counting(length: int, seq_len: int) -> TokenWindows:
    """Windows over 0, 1, 2…, cut in three uneven shards."""
    numbers = np.arange(length, dtype=np.uint16)
    return TokenWindows(np.split(numbers, [length // 5, length // 2]), seq_len, "count", "count")


def test_windows_cover_each_target_once_per_epoch() -> None:
    rows = counting(1000, 32)
    for shift in (0, 7, 31):
        targets = np.concatenate([rows.row(i, shift)[0][1:] for i in range(len(rows))])
        assert len(set(targets.tolist())) == len(targets) == len(rows) * 32
        assert targets.max() <= 999


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(EnlaceError, match=r"train\.seq_len=512"):
        counting(600, 512)


def test_bytes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texto.txt"
    path.write_bytes("El niño comió ñoquis. ".encode() * 20)
    rows = TokenWindows.of_bytes(path, 16)
    ids, mask = rows.row(0, 0)
    assert bytes(ids.astype(np.uint8)) == path.read_bytes()[:17]
    assert mask.all()


def test_conversations_are_whole_and_each_is_in_one_row(small_shards: Shards) -> None:
    rows = chat_rows(small_shards, "train", 64)
    assert rows is not None
    stream = small_shards.stream("train", "chat")
    found: Counter[bytes] = Counter()
    for i in range(len(rows)):
        ids, mask = rows.row(i, 0)
        assert len(ids) == len(mask) == 65
        assert mask.any() and not mask.all()
        end_of_text = small_shards.manifest.end_of_text_id
        for part in np.split(ids, np.flatnonzero(ids == end_of_text) + 1):
            if (part != end_of_text).any():
                found[part.tobytes()] += 1
    expected = Counter(ids.astype(np.int64)[-65:].tobytes() for ids, _ in stream.documents())
    assert found == expected


@given(st.lists(st.integers(1, 64), max_size=200))
def test_best_fit_packs_every_item_once_and_wastes_little(lengths: list[int]) -> None:
    rows = best_fit(lengths, 64)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    filled = [sum(lengths[i] for i in row) for row in rows]
    assert all(0 < total <= 64 for total in filled)
    # Two rows that would fit in one are the mark of a packing that does not look for room.
    assert all(a + b > 64 for a, b in itertools.combinations(filled, 2))
    assert len(rows) <= 11 / 9 * -(-sum(lengths) // 64) + 1 + sum(length > 32 for length in lengths)


def _chat(tokenizer: Tokenizer, *turns: str, system: str = "Breve.") -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask of a conversation: system, then questions and answers by turns."""
    messages = [Message("system", system)] if system else []
    messages += [Message(("user", "assistant")[i % 2], text) for i, text in enumerate(turns)]
    ids, mask = encode_conversation(tokenizer, messages)
    return np.array([*ids, 0], dtype=np.uint16), np.array([*mask, 0], dtype=np.uint8)


@pytest.mark.parametrize("system", ["Breve.", ""])
def test_a_long_conversation_loses_its_oldest_exchanges_whole(small_shards: Shards, system: str) -> None:
    tokenizer = Tokenizer.load(small_shards.tokenizer_path)
    turns = ["¿Uno?", "Uno es uno.", "¿Dos?", "Dos son dos.", "¿Tres?", "Tres son tres."]
    ids, mask = _chat(tokenizer, *turns, system=system)
    for kept in (2, 1):  # exchanges
        short_ids, short_mask = _chat(tokenizer, *turns[-2 * kept :], system=system)
        parts = fitting(ids, mask, len(short_ids))
        assert np.concatenate([ids[a:b] for a, b in parts]).tolist() == short_ids.tolist()
        assert np.concatenate([mask[a:b] for a, b in parts]).tolist() == short_mask.tolist()


def test_an_answer_that_does_not_fit_is_cut_with_its_mask_and_nothing_trained_is_nothing(small_shards: Shards) -> None:
    """huggingface/transformers#34494: a truncated answer lost its mask, or kept that of another."""
    tokenizer = Tokenizer.load(small_shards.tokenizer_path)
    ids, mask = _chat(tokenizer, "¿Uno?", "Uno es uno. " * 30, system="Breve.")
    question, _ = _chat(tokenizer, "¿Uno?", "x", system="")
    (part,) = fitting(ids, mask, 40)
    assert part[1] - part[0] == 40
    header = int(np.flatnonzero(mask)[0]) - part[0]
    assert mask[slice(*part)].sum() == 40 - header and len(question) > header
    ids, mask = _chat(tokenizer, "¿Uno? " * 40, "Uno.", system="Breve.")
    assert fitting(ids, mask, 40) == []
    assert fitting(ids, np.zeros_like(mask), 40) == []


def test_rows_count_what_was_shortened_cut_and_dropped(
    small_shards: Shards, tmp_path: Path, train_config: TrainConfig
) -> None:
    tokenizer = Tokenizer.load(small_shards.tokenizer_path)
    chats = [
        _chat(tokenizer, "¿Uno?", "Uno."),
        _chat(tokenizer, *["¿Uno?", "Uno."] * 5),
        _chat(tokenizer, "¿Uno?", "Uno. " * 30),
        _chat(tokenizer, "¿Uno? " * 30, "Uno."),
    ]
    documents = [Encoded(ids, mask, 1) for ids, mask in chats]
    record = write_stream(tmp_path, "train", "chat", "chat", documents, vocab_size=320, shard_tokens=10**6)
    manifest = small_shards.manifest.model_copy(update={"streams": (record,)})
    write_manifest(tmp_path, manifest)
    shutil.copy(small_shards.tokenizer_path, tmp_path)
    rows = chat_rows(open_shards(tmp_path), "train", 63)
    assert rows is not None and (rows.shortened, rows.cut, rows.dropped) == (1, 1, 1)
    for i in range(len(rows)):
        ids, mask = rows.row(i, 0)
        assert mask.any()
        # Padding is <|endoftext|>, never trained; every <|im_end|> of an answer is.
        assert not mask[ids == manifest.end_of_text_id].any()
    assert chat_rows(open_shards(tmp_path), "train", 8) is None
