from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.nn.parallel import DistributedDataParallel

from enlace import EnlaceError
from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.data.loader import Batch, stable_end
from enlace.data.rows import corpus_rows
from enlace.data.shards import Shards
from enlace.data.special_tokens import IM_START_ID
from enlace.model.transformer import Transformer
from enlace.train import checkpoint
from enlace.train.backends import Runtime
from enlace.train.distributed import World
from enlace.train.family import fingerprint
from enlace.train.generators import generator_states
from enlace.train.log import records_csv
from enlace.train.optim import Muon
from enlace.train.progress import Meter, bytes_per_token, fit_with_progress
from enlace.train.run import VALIDATION_ROWS, make_trainer, sample_rows, validator
from enlace.train.trainer import MAX_SKIPPED_IN_A_ROW, StepLoss, Trainer, _Ahead


def cpu_runtime(precision: str = "float32") -> Runtime:
    return Runtime(torch.device("cpu"), precision, (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH), "esta")  # type: ignore[arg-type]


RUNTIME = cpu_runtime()
WRAPPINGS = ("plain", "compiled", "ddp", "compiled ddp")
Make = Callable[..., Trainer]


@pytest.fixture
def trainer(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> Trainer:
    return make_trainer(model_config, train_config, mixture, small_shards, cpu_runtime(), 8, tmp_path / "run")


@pytest.fixture
def make(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> Make:
    """Makes the trainer of one run, with changes to its recipe."""

    def make(runtime: Runtime = RUNTIME, world: World = World(), **changes: Any) -> Trainer:  # noqa: B008  frozen
        train = train_config.model_copy(update=changes)
        return make_trainer(model_config, train, mixture, small_shards, runtime, 8, tmp_path / "run", world)

    return make


def _train_and_save(trainer: Trainer) -> None:
    """The next step, and a checkpoint after it."""
    trainer.train_step(trainer.step, trainer.loader.batch(trainer.step))
    trainer.loader.next_step += 1
    trainer.save()


def _gradients(trainer: Trainer, batch: Batch) -> list[torch.Tensor]:
    trainer.model.zero_grad()
    trainer._forward_backward(batch, int(batch.mask.sum()))
    return [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]


def test_documents_of_a_row_are_told_apart_by_their_separator(trainer: Trainer) -> None:
    end = 7
    ids = torch.tensor([[5, 2, end, 3, end, end, 4], [end, 5, 5, 5, 5, 5, 5]])
    documents = StepLoss(trainer.model, end, None)._documents(ids)
    assert documents is not None
    assert documents.tolist() == [[0, 0, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1, 1]]
    conversations = torch.tensor([[IM_START_ID, 2, IM_START_ID, 3, end, IM_START_ID, 2]])  # read without a separator
    documents = StepLoss(trainer.model, end, None)._documents(conversations)
    assert documents is not None and documents.tolist() == [[0, 0, 0, 0, 1, 2, 2]]
    assert StepLoss(trainer.model, None, None)._documents(ids) is None


def test_documents_that_share_a_row_are_trained_as_they_are_scored(trainer: Trainer, small_shards: Shards) -> None:
    """Each as if it were alone, from its first token on, after a separator (`eval.bpb`)."""
    end = small_shards.manifest.end_of_text_id
    ids, _ = corpus_rows(small_shards, "train", 512).row(0, 0)
    documents = np.split(ids, np.flatnonzero(ids == end))[1:]  # what begins in this row
    row = np.concatenate(documents)

    def cross_entropy(separator: int | None, *rows: np.ndarray) -> float:
        step_loss, total = StepLoss(trainer.model, separator, None), 0.0
        for one in rows:
            tokens = torch.from_numpy(one)[None]
            with torch.no_grad():
                total += float(step_loss(tokens[:, :-1], tokens[:, 1:], tokens[:, 1:] >= 0).cross_entropy)
        return total

    alone = [np.append(document, end) for document in documents[:-1]] + documents[-1:]
    assert len(alone) > 3
    assert cross_entropy(end, row) == pytest.approx(cross_entropy(None, *alone), rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 100])
@pytest.mark.parametrize("document_mask", [False, True])
def test_chunks_of_the_loss_change_no_gradient(trainer: Trainer, chunk: int, document_mask: bool) -> None:
    batch = trainer.loader.batch(stable_end(trainer.train))
    if document_mask:
        trainer.step_loss.separator = int(batch.inputs[0, 5])
    whole = _gradients(trainer, batch)
    trainer.step_loss.chunk = chunk
    for a, b in zip(whole, _gradients(trainer, batch), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_batches_made_ahead_are_those_of_their_step_and_no_state(trainer: Trainer) -> None:
    with _Ahead(trainer.loader.batch, trainer.train.steps) as batches:
        for step in (0, 1, 2, 7, 8, trainer.train.steps - 1):
            ahead, now = batches.take(step), trainer.loader.batch(step)
            assert torch.equal(ahead.inputs, now.inputs) and torch.equal(ahead.mask, now.mask)
        assert trainer.loader.state_dict()["next_step"] == 0


def test_a_failure_of_the_loader_reaches_the_training(trainer: Trainer) -> None:
    def broken(step: int) -> Batch:
        raise EnlaceError("shard ilegible")

    with _Ahead(trainer.loader.batch, 10) as batches:
        batches.take(0)
        batches._batch = broken
        batches.take(1)
        with pytest.raises(EnlaceError, match="shard ilegible"):
            batches.take(2)


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_micro_batches_add_up_to_the_whole_batch(trainer: Trainer, micro: int) -> None:
    # The decay phase mixes rows with few trained tokens and rows with many: a mean of means would differ.
    batch = trainer.loader.batch(stable_end(trainer.train))
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
        record = trainer.train_step(0, trainer.loader.batch(0))
        assert math.isfinite(record["loss"])
        assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in trainer.model.parameters())


def test_float16_overflow_skips_the_step_halves_the_scale_and_is_counted(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> None:
    trainer = make_trainer(
        model_config, train_config, mixture, small_shards, cpu_runtime("float16"), 8, tmp_path / "run"
    )
    trainer.train_step(0, trainer.loader.batch(0))
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 2.0**40})
    before = [p.clone() for p in trainer.model.parameters()]
    momentum = [s["momentum_buffer"].clone() for s in trainer.optimizers[0].state.values()]
    record = trainer.train_step(1, trainer.loader.batch(1))
    assert record["skipped"] == 1 and record["grad_norm"] is None
    assert trainer.scaler.get_scale() == 2.0**39
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    after = [s["momentum_buffer"] for s in trainer.optimizers[0].state.values()]
    assert all(torch.equal(a, b) for a, b in zip(momentum, after, strict=True))


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_clipping_comes_after_unscaling(make: Make, precision: str, share: float) -> None:
    norm = make().train_step(0, make().loader.batch(0))["grad_norm"]
    trainer = make(cpu_runtime(precision), grad_clip=share * norm)
    clipped: list[float] = []
    for optimizer in trainer.optimizers:
        optimizer.register_step_pre_hook(lambda *step: clipped.append(_gradient_norm(trainer)))
    record = trainer.train_step(0, trainer.loader.batch(0))
    # The scale of 65536 would show: in what is logged, and in updates that it makes tiny.
    assert record["grad_norm"] == pytest.approx(norm, rel=0.05)
    assert clipped == pytest.approx([min(share, 1) * norm] * len(trainer.optimizers), rel=0.05)


def _gradient_norm(trainer: Trainer) -> float:
    return float(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]).norm())


def test_too_many_bad_steps_end_the_run_with_a_way_out(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.embed_tokens.weight[0] = math.nan
    with pytest.raises(EnlaceError, match=r"Baja train\.lr .* empieza en el paso 0"):
        trainer.fit()
    assert len(trainer.log.records()) == MAX_SKIPPED_IN_A_ROW >= 17, "float16 may need that many halvings to start"
    assert all(record["loss"] is None for record in trainer.log.records())  # NaN is not JSON


def _decays(trainer: Trainer) -> dict[str, float]:
    """Weight decay of each parameter, as its optimizer has it at this moment."""
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    seen = [(names[id(p)], group["weight_decay"]) for group in groups for p in group["params"]]
    assert sorted(name for name, _ in seen) == sorted(names.values()), "each in one group"
    return dict(seen)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_every_parameter_is_in_one_group_and_only_layer_matrices_decay(make: Make, optimizer: str) -> None:
    decays = _decays(make(optimizer=optimizer))
    undecayed = {name for name, decay in decays.items() if decay == 0}
    assert undecayed == {name for name in decays if "norm" in name or name.startswith("embed_tokens")}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_where_there_is_no_gradient_only_layer_matrices_shrink(make: Make, optimizer: str) -> None:
    trainer = make(optimizer=optimizer)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for p in trainer.model.parameters():
        p.grad = torch.zeros_like(p)
    for each in trainer.optimizers:
        each.step()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert set(before) - moved == {name for name in before if "norm" in name or name.startswith("embed_tokens")}
    assert all(p.norm() < before[name].norm() for name, p in trainer.model.named_parameters() if name in moved)


@pytest.mark.parametrize("cut", [2, 8, 16])
def test_the_optimizers_learn_at_the_same_rates_from_the_first_step_after_a_resume(make: Make, cut: int) -> None:
    """Cut in the warm-up, where the rate stands still, and in the decay."""
    rates: list[list[float]] = []

    def train(trainer: Trainer, steps: int) -> list[list[float]]:
        rates.clear()
        for each in trainer.optimizers:
            each.register_step_pre_hook(lambda optimizer, *_: rates.append([g["lr"] for g in optimizer.param_groups]))
        for _ in range(steps):
            trainer.train_step(trainer.step, trainer.loader.batch(trainer.step))
            trainer.loader.next_step += 1
        return rates.copy()

    whole = train(make(), 20)
    first, second = make(), make()
    halves = train(first, cut)
    first.save()
    assert second.resume(pytest.fail)
    for i, (cut_there, not_cut) in enumerate(zip(halves + train(second, 20 - cut), whole, strict=True)):
        assert cut_there == not_cut, i
    assert len({tuple(each) for each in whole}) > 10


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_first_step_after_a_resume_decays_each_parameter_as_the_run_did(make: Make, optimizer: str) -> None:
    first = make(optimizer=optimizer)
    _train_and_save(first)
    second = make(optimizer=optimizer, weight_decay=0.5)
    assert second.resume(pytest.fail)
    seen: list[dict[str, float]] = []
    for each in second.optimizers:
        each.register_step_pre_hook(lambda *step: seen.append(_decays(second)))
    _train_and_save(second)
    assert seen and all(decays == _decays(first) for decays in seen)


def test_groups_in_another_order_are_refused_and_not_exchanged(make: Make) -> None:
    first, second = make(optimizer="adamw"), make(optimizer="adamw")
    _train_and_save(first)
    second.optimizers[0].param_groups.reverse()
    with pytest.raises(ValueError, match="group"):
        second.load_state_dict(first.state_dict())


def test_each_save_holds_the_state_of_its_moment(trainer: Trainer) -> None:
    saved = []
    for _ in range(2):
        _train_and_save(trainer)
        state = torch.load(checkpoint.folder_of(trainer.run, trainer.step) / "state.pt", weights_only=True)
        saved.append([*state["model"].values(), *_moments(state["optimizers"])])
        live = [*trainer.model.parameters(), *_moments([optimizer.state_dict() for optimizer in trainer.optimizers])]
        assert all(torch.equal(a, b) for a, b in zip(saved[-1], live, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*saved, strict=True))


def _moments(optimizers: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [value for each in optimizers for of_one in each["state"].values() for value in of_one.values()]


@pytest.mark.parametrize("missing", ["model", "optimizers", "scaler", "loader", "skipped_in_a_row", "generators"])
def test_a_state_that_lacks_something_is_an_error(trainer: Trainer, missing: str) -> None:
    state = trainer.state_dict()
    del state[missing]
    with pytest.raises(KeyError, match=missing):
        trainer.load_state_dict(state)


@pytest.mark.parametrize("missing", ["torch", "cuda", "python", "numpy"])
def test_a_state_that_lacks_a_generator_is_an_error(trainer: Trainer, missing: str) -> None:
    state = trainer.state_dict()
    del state["generators"][missing]
    with pytest.raises(KeyError, match=missing):
        trainer.load_state_dict(state)


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, so that it can wrap its model as two would."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("saved", WRAPPINGS)
@pytest.mark.parametrize("loaded", WRAPPINGS)
def test_a_checkpoint_loads_however_the_model_was_and_is_wrapped(make: Make, saved: str, loaded: str) -> None:
    first, second = (
        make(replace(cpu_runtime(), compile="compiled" in how), World(0, 1 + ("ddp" in how))) for how in (saved, loaded)
    )
    assert isinstance(second.spread_loss, DistributedDataParallel) == ("ddp" in loaded)
    with torch.no_grad():
        for parameter in first.model.parameters():
            parameter.normal_()
    first.save()
    assert second.resume(lambda warning: None)
    assert list(second.state_dict()["model"]) == list(Transformer(second.model.config, 320).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"kernels": (SDPBackend.MATH,)}, "sdpa_backends era FLASH_ATTENTION, MATH y es MATH"),
        ({"parallel": "fsdp"}, "parallel era ddp y es fsdp"),
    ],
)
def test_what_decides_the_last_bits_is_told_when_it_changes(make: Make, now: dict[str, Any], says: str) -> None:
    make(world=World(0, 2)).save()
    said: list[str] = []
    assert make(replace(RUNTIME, **now), World(0, 2)).resume(said.append)
    assert said == [f"Continúo, pero no bit a bit: {says}."]


def test_another_instruction_set_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    make().save()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    said: list[str] = []
    assert make().resume(said.append)
    assert said == ["Continúo, pero no bit a bit: instrucciones era AVX512 y es AVX2."]


def test_a_checkpoint_of_a_version_that_noted_less_goes_on_without_a_word(make: Make) -> None:
    trainer = make()
    for key in ("sdpa_backends", "instrucciones"):
        del trainer.environments[-1][key]
    trainer.save()
    assert make().resume(pytest.fail)


@pytest.mark.usefixtures("alone_in_a_group")
def test_only_a_model_in_parts_is_copied_to_be_whole(make: Make) -> None:
    whole, parts = make(), make(replace(RUNTIME, parallel="fsdp"), World(0, 2))
    assert whole.whole_model() is whole.model
    copy = parts.whole_model()
    assert all(type(p) is torch.nn.Parameter for p in copy.parameters())
    assert all(torch.equal(a, b) for a, b in zip(copy.parameters(), whole.model.parameters(), strict=True))


@pytest.mark.usefixtures("alone_in_a_group")
def test_a_card_holds_one_copy_of_the_gradients(make: Make) -> None:
    trainer = make(world=World(0, 2))
    for step in range(2):
        trainer.train_step(step, trainer.loader.batch(step))
        gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        # Those of a bucket share its memory; its first holds all of a model this small.
        assert len({g.untyped_storage().data_ptr() for g in gradients}) == 1 < len(gradients)


def test_a_weight_that_the_model_lacks_or_that_the_state_lacks_is_an_error(trainer: Trainer) -> None:
    state = trainer.state_dict()
    gain = state["model"].pop("norm.weight")
    with pytest.raises(KeyError, match=r"norm\.weight"):
        trainer.load_state_dict(state)
    state["model"] |= {"norm.weight": gain, "_orig_mod.norm.weight": gain}
    with pytest.raises(RuntimeError, match=r"_orig_mod\.norm\.weight"):
        trainer.load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_moves_as_torchs_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours = [torch.randn(24, 16, requires_grad=True), torch.randn(16, 24, requires_grad=True)]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    mine = Muon(ours, lr=0.1, momentum=0.9, weight_decay=0.1, dtype=dtype)
    reference = torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02)  # torch's iterates in bfloat16


def test_validation_is_in_eval_mode_right_and_changes_nothing(trainer: Trainer, small_shards: Shards) -> None:
    validate = validator(small_shards, trainer.train, torch.device("cpu"), 8)
    modes: list[bool] = []

    def watched(step_loss: StepLoss) -> Mapping[str, float]:
        modes.append(step_loss.model.training)
        return validate(step_loss)

    before = (generator_states(), [p.clone() for p in trainer.model.parameters()])
    figures = trainer._validated(watched)
    after = (generator_states(), list(trainer.model.parameters()))
    assert modes == [False] and trainer.model.training
    assert all(torch.equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    assert torch.equal(before[0]["torch"], after[0]["torch"])
    assert before[0]["python"] == after[0]["python"]

    sample = sample_rows(corpus_rows(small_shards, "val", trainer.train.seq_len), VALIDATION_ROWS)
    with torch.no_grad():
        logits = trainer.model.logits(trainer.model(sample.inputs))
    expected = F.cross_entropy(logits.flatten(0, 1), sample.targets.flatten())
    assert figures["val_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert set(figures) == {"val_loss", "val_chat_loss"}


def test_a_figure_that_is_not_finite_is_shown_and_logged_as_such(
    trainer: Trainer, small_shards: Shards, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.no_grad():
        trainer.model.embed_tokens.weight[:] = math.nan
    meter = Meter(trainer, bytes_per_token(small_shards), watts=None, peak_flops=None)
    with pytest.raises(EnlaceError, match="pasos seguidos"):
        fit_with_progress(trainer, validator(small_shards, trainer.train, torch.device("cpu"), 8), meter)
    assert "no finita" in capsys.readouterr().out
    assert "NaN" not in (trainer.run / "log.jsonl").read_text()


def test_the_count_of_bad_steps_continues(trainer: Trainer) -> None:
    trainer.skipped_in_a_row = 7
    state = trainer.state_dict()
    trainer.skipped_in_a_row = 0
    trainer.load_state_dict(state)
    assert trainer.skipped_in_a_row == 7


def test_every_generator_continues_where_it_was_saved(trainer: Trainer) -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.rand())

    draw()
    state = trainer.state_dict()
    drawn = draw()
    trainer.load_state_dict(state)
    assert draw() == drawn


@pytest.mark.parametrize("saved", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("resumed", ["float32", "bfloat16", "float16"])
def test_a_run_moves_to_another_precision_and_says_that_it_is_not_exact(
    model_config: ModelConfig,
    train_config: TrainConfig,
    mixture: PhaseMixture,
    small_shards: Shards,
    tmp_path: Path,
    saved: str,
    resumed: str,
) -> None:
    def trainer(precision: str) -> Trainer:
        return make_trainer(
            model_config, train_config, mixture, small_shards, cpu_runtime(precision), 8, tmp_path / "run"
        )

    first = trainer(saved)
    first.train_step(0, first.loader.batch(0))
    first.loader.next_step = 1
    first.save()
    said: list[str] = []
    second = trainer(resumed)
    assert second.resume(said.append)
    assert ("no bit a bit" in "".join(said)) == (saved != resumed)
    assert math.isfinite(second.train_step(1, second.loader.batch(1))["loss"])
    second.save()
    third = trainer(resumed)
    assert third.resume(pytest.fail)
    trace = [environment["precisión"] for environment in third.environments]
    assert trace == ([saved] if saved == resumed else [saved, resumed]), "who reads it later can tell"


def test_the_run_is_named_by_model_recipe_mixture_data_and_source(
    model_config: ModelConfig,
    train_config: TrainConfig,
    mixture: PhaseMixture,
    small_shards: Shards,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other_mixture = PhaseMixture(stable=mixture.decay, decay=mixture.decay)
    other_data = dataclasses.replace(
        small_shards, manifest=small_shards.manifest.model_copy(update={"tokenizer_sha256": "0"})
    )
    names = [
        fingerprint(model_config, train_config, mixture, small_shards),
        fingerprint(model_config.model_copy(update={"n_layers": 3}), train_config, mixture, small_shards),
        fingerprint(model_config, train_config.model_copy(update={"lr": 0.5}), mixture, small_shards),
        fingerprint(model_config, train_config, other_mixture, small_shards),
        fingerprint(model_config, train_config, mixture, other_data),
    ]
    monkeypatch.setattr("enlace.train.family.SOURCES", ("train/loss.py",))
    names.append(fingerprint(model_config, train_config, mixture, small_shards))
    assert len(set(names)) == len(names)
    assert fingerprint(model_config, train_config, mixture, small_shards) == names[-1]


def test_the_log_becomes_a_table_with_empty_cells() -> None:
    table = records_csv([{"step": 0, "loss": 2.5}, {"step": 1, "loss": None, "val_loss": 2.0}])
    assert table.decode() == "step,loss,val_loss\n0,2.5,\n1,,2.0\n"


def test_sample_rows_takes_what_there_is(trainer: Trainer) -> None:
    rows = trainer.loader.sources["corpus"]
    few = sample_rows(rows, 3)
    assert len(few.inputs) == 3
    last_third = sample_rows(rows, 10**6).inputs[len(rows) * 2 // 3]
    assert torch.equal(few.inputs[2], last_third), "spread over all sources, not the first rows"
    assert len(sample_rows(rows, 10**6).inputs) == len(rows)
