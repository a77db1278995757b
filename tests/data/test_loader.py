from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enlace import EnlaceError
from enlace.config.schema import Mixture, PhaseMixture, TrainConfig
from enlace.data.chat import Message, encode_conversation
from enlace.data.loader import (
    Batch,
    Loader,
    TokenWindows,
    best_fit,
    chat_rows,
    corpus_rows,
    fitting,
    permuted,
    rows_per_source,
    stable_end,
)
from enlace.data.shards import Encoded, Shards, open_shards, write_manifest, write_stream
from enlace.data.tokenizer import Tokenizer

STATM = Path("/proc/self/statm")
CORPUS_ONLY = PhaseMixture(stable=Mixture(corpus=1.0, chat=0.0), decay=Mixture(corpus=1.0, chat=0.0))


def _digest(batch: Batch) -> str:
    parts = (batch.inputs, batch.targets, batch.mask)
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()


def _counting(length: int, seq_len: int) -> TokenWindows:
    """Windows over 0, 1, 2…, cut in three uneven shards."""
    numbers = np.arange(length, dtype=np.uint16)
    return TokenWindows(np.split(numbers, [length // 5, length // 2]), seq_len, "count", "count")


@pytest.fixture
def loader(small_shards: Shards, train_config: TrainConfig, mixture: PhaseMixture) -> Loader:
    chat = chat_rows(small_shards, "train", train_config.seq_len)
    assert chat is not None
    return Loader({"corpus": corpus_rows(small_shards, "train", 32), "chat": chat}, train_config, mixture)


def test_the_target_is_the_next_token_also_across_shards(train_config: TrainConfig) -> None:
    loader = Loader({"corpus": _counting(1000, 32)}, train_config, CORPUS_ONLY)
    for step in range(40):
        batch = loader.batch(step)
        assert torch.equal(batch.targets, batch.inputs + 1)
        assert batch.mask.all()


def test_windows_cover_each_target_once_per_epoch() -> None:
    rows = _counting(1000, 32)
    for shift in (0, 7, 31):
        targets = np.concatenate([rows.row(i, shift)[0][1:] for i in range(len(rows))])
        assert len(set(targets.tolist())) == len(targets) == len(rows) * 32
        assert targets.max() <= 999


def test_each_epoch_is_a_complete_permutation_even_after_a_resume_in_its_middle(train_config: TrainConfig) -> None:
    train = train_config.model_copy(update={"batch_tokens": 32 * 4})
    rows = _counting(7 * 32 + 32 + 5, 32)
    assert len(rows) == 7
    seen = []
    loader = Loader({"corpus": rows}, train, CORPUS_ONLY)
    for batch in itertools.islice(loader, 2):
        seen += [int(first) // 32 for first in batch.inputs[:, 0]]
    resumed = Loader({"corpus": rows}, train, CORPUS_ONLY)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    for batch in itertools.islice(resumed, 5):
        seen += [int(first) // 32 for first in batch.inputs[:, 0]]
    epochs = [seen[i : i + 7] for i in range(0, 28, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_a_resumed_loader_draws_the_same_batches(loader: Loader, small_shards: Shards, mixture: PhaseMixture) -> None:
    whole = [_digest(batch) for batch in itertools.islice(loader, 12)]
    assert len(set(whole)) == 12
    again = Loader(loader.sources, loader.train, mixture)
    first = [_digest(batch) for batch in itertools.islice(again, 5)]
    third = Loader(loader.sources, loader.train, mixture)
    third.load_state_dict(again.state_dict())
    assert first + [_digest(batch) for batch in itertools.islice(third, 7)] == whole


def test_resumed_at_other_steps_it_draws_other_batches(loader: Loader, mixture: PhaseMixture) -> None:
    drawn = []
    for step in (4, 9):
        resumed = Loader(loader.sources, loader.train, mixture)
        resumed.load_state_dict({"next_step": step, "fingerprint": resumed.fingerprint(step)})
        drawn.append({_digest(batch) for batch in itertools.islice(resumed, 5)})
    assert len(drawn[0]) == len(drawn[1]) == 5 and not drawn[0] & drawn[1]


def test_state_of_the_same_shards_in_another_order_is_refused(
    loader: Loader, small_shards: Shards, train_config: TrainConfig, mixture: PhaseMixture
) -> None:
    manifest = small_shards.manifest
    streams = [s.model_copy(update={"shards": s.shards[::-1]}) for s in manifest.streams]
    assert any(len(s.shards) > 1 for s in streams if (s.split, s.kind) == ("train", "corpus"))
    turned = replace(small_shards, manifest=manifest.model_copy(update={"streams": tuple(streams)}))
    other = Loader({**loader.sources, "corpus": corpus_rows(turned, "train", 32)}, train_config, mixture)
    with pytest.raises(EnlaceError, match="otros datos"):
        other.load_state_dict(loader.state_dict())


def test_state_of_other_data_is_refused(loader: Loader, train_config: TrainConfig) -> None:
    other = Loader({"corpus": _counting(1000, 32)}, train_config, CORPUS_ONLY)
    with pytest.raises(EnlaceError, match="otros datos"):
        other.load_state_dict(loader.state_dict())


def test_the_phases_mix_their_shares(loader: Loader) -> None:
    assert loader.rows == {"stable": {"corpus": 8}, "decay": {"corpus": 4, "chat": 4}}
    decay = loader.batch(stable_end(loader.train))
    trained = decay.mask.float().mean(dim=1)
    assert (trained[:4] == 1).all() and (trained[4:] < 1).all()


def test_no_row_is_skipped_or_repeated_where_the_phase_changes(loader: Loader) -> None:
    end = stable_end(loader.train)
    numbers = [
        number
        for step in range(loader.train.steps)
        for first in [loader._rows_before(step, "corpus")]
        for number in range(first, first + loader.rows["stable" if step < end else "decay"]["corpus"])
    ]
    assert numbers == list(range(len(numbers)))


def test_a_batch_does_not_depend_on_how_it_is_cut(loader: Loader) -> None:
    batch = loader.batch(3)
    assert torch.equal(torch.cat([m.inputs for m in batch.micro_batches(3)]), batch.inputs)


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
    with pytest.raises(EnlaceError, match=r"train\.seq_len=8"):
        chat_rows(open_shards(tmp_path), "train", 8)


def test_a_share_without_data_is_an_error_that_names_it(train_config: TrainConfig, mixture: PhaseMixture) -> None:
    with pytest.raises(EnlaceError, match=r"data\.mixture\.decay\.chat"):
        Loader({"corpus": _counting(1000, 32)}, train_config, mixture)


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(EnlaceError, match=r"train\.seq_len=512"):
        _counting(600, 512)


def test_bytes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texto.txt"
    path.write_bytes("El niño comió ñoquis. ".encode() * 20)
    rows = TokenWindows.of_bytes(path, 16)
    ids, mask = rows.row(0, 0)
    assert bytes(ids.astype(np.uint8)) == path.read_bytes()[:17]
    assert mask.all()


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permuted_is_a_permutation(length: int, key: int) -> None:
    assert sorted(permuted(i, length, key) for i in range(length)) == list(range(length))


def test_permuted_will_always_give_this_order() -> None:
    # Written down, so that no edit can change the order under a run that is going on.
    assert [permuted(i, 10, 42) for i in range(10)] == PERMUTATION_OF_10_BY_42


PERMUTATION_OF_10_BY_42 = [4, 6, 1, 3, 0, 9, 5, 8, 7, 2]


@given(st.integers(1, 512), st.floats(0, 1))
def test_no_row_of_a_batch_is_lost(batch_size: int, corpus: float) -> None:
    rows = rows_per_source(Mixture(corpus=corpus, chat=1 - corpus), batch_size)
    assert sum(rows.values()) == batch_size
    assert abs(rows.get("corpus", 0) - corpus * batch_size) <= 1


def _memory() -> int:
    """Bytes that this process holds now, the pages of mapped files too."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="no /proc")
def test_memory_stays_flat_over_many_batches(tmp_path: Path, train_config: TrainConfig) -> None:
    path = tmp_path / "big.bin"
    np.zeros(100_000_000, dtype=np.uint16).tofile(path)  # 200 MB
    rows = TokenWindows([np.memmap(path, dtype="<u2", mode="r")], 32, "big", "big")
    loader = Loader({"corpus": rows}, train_config, CORPUS_ONLY)
    for step in range(50):
        loader.batch(step)
    before = _memory()
    for step in range(50, 3000):
        loader.batch(step)
    assert _memory() - before < 4 * 2**20  # keeping the batches takes 10, and the pages of the file 100 or more
