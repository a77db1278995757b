from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from enlace import EnlaceError
from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.data.loader import Batch
from enlace.data.shards import Shards
from enlace.train.backends import Runtime
from enlace.train.optim import Muon
from enlace.train.run import fingerprint, first_rows, make_trainer, records_csv, validator
from enlace.train.trainer import MAX_SKIPPED_IN_A_ROW, Trainer


def cpu_runtime(precision: str = "float32") -> Runtime:
    return Runtime(torch.device("cpu"), precision, (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH))  # type: ignore[arg-type]


@pytest.fixture
def trainer(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> Trainer:
    return make_trainer(model_config, train_config, mixture, small_shards, cpu_runtime(), 8, tmp_path / "run")


def _gradients(trainer: Trainer, batch: Batch) -> list[torch.Tensor]:
    trainer.model.zero_grad()
    trainer._forward_backward(batch, int(batch.mask.sum()))
    return [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_micro_batches_add_up_to_the_whole_batch(trainer: Trainer, micro: int) -> None:
    # The decay phase mixes rows with few trained tokens and rows with many: a mean of means would differ.
    batch = trainer.loader.batch(trainer.train.stable_end)
    per_row = batch.mask.sum(dim=1)
    assert per_row.min() < per_row.max()
    whole = _gradients(trainer, batch)
    trainer.micro_batch_size = micro
    for a, b in zip(whole, _gradients(trainer, batch), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_parameters_stay_float32_in_every_precision(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> None:
    for precision in ("float32", "bfloat16", "float16"):
        trainer = make_trainer(
            model_config, train_config, mixture, small_shards, cpu_runtime(precision), 8, tmp_path / precision
        )
        record = trainer.train_step(0)
        assert math.isfinite(record["loss"])
        assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in trainer.model.parameters())


def test_float16_overflow_skips_the_step_halves_the_scale_and_is_counted(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> None:
    trainer = make_trainer(
        model_config, train_config, mixture, small_shards, cpu_runtime("float16"), 8, tmp_path / "run"
    )
    trainer.train_step(0)
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 2.0**40})
    before = [p.clone() for p in trainer.model.parameters()]
    momentum = [s["momentum_buffer"].clone() for s in trainer.optimizers[0].state.values()]
    record = trainer.train_step(1)
    assert record["skipped"] == 1 and record["grad_norm"] is None
    assert trainer.scaler.get_scale() == 2.0**39
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    after = [s["momentum_buffer"] for s in trainer.optimizers[0].state.values()]
    assert all(torch.equal(a, b) for a, b in zip(momentum, after, strict=True))


def test_clipping_comes_after_unscaling(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> None:
    norms = []
    for precision in ("float32", "float16"):
        trainer = make_trainer(
            model_config, train_config, mixture, small_shards, cpu_runtime(precision), 8, tmp_path / precision
        )
        norms.append(trainer.train_step(0)["grad_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=0.05)  # the scale of 65536 would show


def test_too_many_bad_steps_end_the_run_with_a_way_out(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.embed_tokens.weight[0] = math.nan
    with pytest.raises(EnlaceError, match=r"train\.lr") as error:
        trainer.fit()
    assert str(MAX_SKIPPED_IN_A_ROW + 1) in str(error.value)
    assert all(record["loss"] is None for record in trainer.log.records())  # NaN is not JSON


def test_every_parameter_is_in_one_group_and_only_layer_matrices_decay(trainer: Trainer) -> None:
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    seen = [names[id(p)] for group in groups for p in group["params"]]
    assert sorted(seen) == sorted(names.values())
    undecayed = {names[id(p)] for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert undecayed == {n for n in names.values() if "norm" in n or n.startswith("embed_tokens")}


def test_muon_moves_as_torchs_own() -> None:
    torch.manual_seed(0)
    ours = [torch.randn(24, 16, requires_grad=True), torch.randn(16, 24, requires_grad=True)]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    mine = Muon(ours, lr=0.1, momentum=0.9, weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02)  # torch's iterates in bfloat16


def test_validation_changes_nothing_in_the_training(trainer: Trainer, small_shards: Shards, tmp_path: Path) -> None:
    validate = validator(small_shards, trainer.train, torch.device("cpu"), 8)
    figures = trainer._validated(validate)
    assert set(figures) == {"val_loss", "val_chat_loss"}
    assert all(0 < value < 10 for value in figures.values())
    assert trainer.model.training
    assert trainer._validated(validate) == figures


def test_the_run_is_named_by_model_recipe_mixture_data_and_source(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards
) -> None:
    names = {
        fingerprint(model_config, train_config, mixture, small_shards),
        fingerprint(model_config.model_copy(update={"n_layers": 3}), train_config, mixture, small_shards),
        fingerprint(model_config, train_config.model_copy(update={"lr": 0.5}), mixture, small_shards),
        fingerprint(model_config, train_config, PhaseMixture(stable=mixture.decay, decay=mixture.decay), small_shards),
    }
    assert len(names) == 4
    assert fingerprint(model_config, train_config, mixture, small_shards) in names


def test_the_log_becomes_a_table_with_empty_cells() -> None:
    table = records_csv([{"step": 0, "loss": 2.5}, {"step": 1, "loss": None, "val_loss": 2.0}])
    assert table.decode() == "step,loss,val_loss\n0,2.5,\n1,,2.0\n"


def test_first_rows_takes_what_there_is(trainer: Trainer) -> None:
    rows = trainer.loader.sources["corpus"]
    assert len(first_rows(rows, 3).inputs) == 3
    assert len(first_rows(rows, 10**6).inputs) == len(rows)
