from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enlace import EnlaceError
from enlace.config.schema import Mixture, PhaseMixture, TrainConfig
from enlace.data.loader import Batch, Loader, permuted, rows_per_source, stable_end
from enlace.data.rows import TokenWindows, chat_rows, corpus_rows
from enlace.data.shards import Shards
from tests.data.test_rows import counting

STATM = Path("/proc/self/statm")
CORPUS_ONLY = PhaseMixture(stable=Mixture(corpus=1.0, chat=0.0), decay=Mixture(corpus=1.0, chat=0.0))


def _digest(batch: Batch) -> str:
    parts = (batch.inputs, batch.targets, batch.mask)
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()


@pytest.fixture
def loader(small_shards: Shards, train_config: TrainConfig, mixture: PhaseMixture) -> Loader:
    chat = chat_rows(small_shards, "train", train_config.seq_len)
    assert chat is not None
    return Loader({"corpus": corpus_rows(small_shards, "train", 32), "chat": chat}, train_config, mixture)


def test_the_target_is_the_next_token_also_across_shards(train_config: TrainConfig) -> None:
    loader = Loader({"corpus": counting(1000, 32)}, train_config, CORPUS_ONLY)
    for step in range(40):
        batch = loader.batch(step)
        assert torch.equal(batch.targets, batch.inputs + 1)
        assert batch.mask.all()


def test_each_epoch_is_a_complete_permutation_even_after_a_resume_in_its_middle(train_config: TrainConfig) -> None:
    train = train_config.model_copy(update={"batch_tokens": 32 * 4})
    rows = counting(7 * 32 + 32 + 5, 32)
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
    other = Loader({"corpus": counting(1000, 32)}, train_config, CORPUS_ONLY)
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


def test_a_share_without_data_is_an_error_that_names_it(train_config: TrainConfig, mixture: PhaseMixture) -> None:
    with pytest.raises(EnlaceError, match=r"data\.mixture\.decay\.chat"):
        Loader({"corpus": counting(1000, 32)}, train_config, mixture)


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
