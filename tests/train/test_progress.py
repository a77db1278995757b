from __future__ import annotations

import dataclasses
import errno
import io
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.text import Text

from enlace import console
from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.data.shards import Shards
from enlace.train.distributed import World
from enlace.train.log import Record
from enlace.train.progress import Meter, _losses, bytes_per_token, figures, fit_with_progress, read_status
from enlace.train.run import make_trainer, validator
from enlace.train.stopping import Interrupted
from enlace.train.trainer import Trainer
from tests.train.test_trainer import cpu_runtime


@pytest.fixture
def trainer(
    model_config: ModelConfig, train_config: TrainConfig, mixture: PhaseMixture, small_shards: Shards, tmp_path: Path
) -> Trainer:
    return make_trainer(model_config, train_config, mixture, small_shards, cpu_runtime(), 8, tmp_path / "run")


def _record(step: int, **more: float) -> Record:
    return {"step": step, "loss": 2.0, "lr": 0.01, "grad_norm": 1.0, "scale": 1.0, "skipped": 0, **more}


def test_rates_are_of_elapsed_time_and_of_this_process_only(trainer: Trainer) -> None:
    """999,424 tokens in 48.30 s are 20,692 tokens/s, whatever the clock reads and however far the run was."""
    steps = 999_424 // trainer.train.batch_tokens
    clock = (1_000_000 + i * 48.30 / steps for i in count())
    meter = Meter(trainer, bytes_per_token=4.0, watts=200.0, peak_flops=None, clock=lambda: next(clock))
    for step in range(10_000, 10_000 + steps):
        status = meter.read(_record(step))
    assert status.tokens_per_second == pytest.approx(20_692, abs=1)
    assert status.kwh == pytest.approx(48.30 * 200 / 3.6e6)
    assert status.utilisation is None and "MFU n/a" in figures(status)


def test_the_first_step_which_compiles_says_nothing_of_the_others(trainer: Trainer) -> None:
    clock = iter([0.0, 60.0, 61.0])  # begun, and two steps
    meter = Meter(trainer, 4.0, watts=None, peak_flops=1e12, clock=lambda: next(clock))
    first = meter.read(_record(0))
    assert first.tokens_per_second is None and first.seconds_left is None and "MFU n/a" in figures(first)
    second = meter.read(_record(1))
    assert second.tokens_per_second == trainer.train.batch_tokens and second.seconds_left == trainer.train.steps - 2


def test_several_cards_draw_as_much_each_and_can_do_as_much_each(trainer: Trainer) -> None:
    trainer.world = World(0, 4)
    clock = (3600.0 * i for i in count())
    meter = Meter(trainer, 4.0, watts=250.0, peak_flops=1e12, clock=lambda: next(clock))
    assert meter.read(_record(0)).kwh == pytest.approx(0.25), "on a processor all share one computer"
    trainer.runtime = dataclasses.replace(trainer.runtime, device=torch.device("cuda"))
    meter = Meter(trainer, 4.0, watts=250.0, peak_flops=1e12, clock=lambda: next(clock))
    meter.read(_record(0))
    status = meter.read(_record(1))
    assert status.kwh == pytest.approx(2 * 4 * 0.25)
    assert status.utilisation == pytest.approx(status.tokens_per_second * meter.flops / 4e12)


def test_a_known_card_shows_how_much_of_it_is_used(trainer: Trainer) -> None:
    clock = (float(i) for i in count())
    meter = Meter(trainer, 4.0, watts=None, peak_flops=1e12, clock=lambda: next(clock))
    meter.read(_record(0))
    status = meter.read(_record(1))
    assert status.tokens_per_second == trainer.train.batch_tokens
    assert status.utilisation == pytest.approx(trainer.train.batch_tokens * meter.flops / 1e12)


def test_what_is_left_and_bits_per_byte(trainer: Trainer) -> None:
    clock = (float(i) for i in count())
    meter = Meter(trainer, bytes_per_token=4.0, watts=None, peak_flops=None, clock=lambda: next(clock))
    meter.read(_record(2))
    status = meter.read(_record(3, val_loss=2.772588722239781))
    assert status.bits_per_byte == pytest.approx(1.0)
    assert status.seconds_left == trainer.train.steps - 4
    assert status.kwh is None and "kWh" not in figures(status)
    assert meter.read(_record(4)).bits_per_byte == status.bits_per_byte, "the last that was measured"
    assert "no finita" in figures(dataclasses.replace(status, loss=None))


def test_another_terminal_reads_how_the_run_is_doing(trainer: Trainer, small_shards: Shards) -> None:
    assert read_status(trainer.run) is None
    validate = validator(small_shards, trainer.train, trainer.runtime.device, 8)
    fit_with_progress(trainer, validate, Meter(trainer, bytes_per_token(small_shards), watts=None, peak_flops=None))
    status = read_status(trainer.run)
    assert status is not None and status.step == status.steps == trainer.train.steps
    last = trainer.log.records()[-1]
    assert (status.loss, status.val_loss) == (last["loss"], last["val_loss"])
    assert status.memory_gib > 0 and status.tokens_per_second is not None
    assert status.environments == 1
    (trainer.run / "estado.json").write_text("{")
    assert read_status(trainer.run) is None


def test_the_speed_is_known_to_another_terminal_as_soon_as_it_is(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step has none: it compiles. Steps of a second each; the status is written every two."""
    written: list[bool] = []
    monkeypatch.setattr(
        "enlace.train.progress._write", lambda _, status: written.append(bool(status.tokens_per_second))
    )
    clock = count(100)
    fit_with_progress(trainer, lambda _: {}, Meter(trainer, 3.0, None, None, lambda: float(next(clock))))
    assert written[:3] == [False, True, True]


def test_a_terminal_that_was_closed_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is done with a bar: the model is still to be exported after it."""

    def write(text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    terminal = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=terminal, force_terminal=True))
    with console.progress() as bar:
        bar.add_task("Entrenando", total=1)
        monkeypatch.setattr(terminal, "write", write)


def test_bytes_per_token_is_that_of_the_held_out_corpus(small_shards: Shards) -> None:
    stream = next(s for s in small_shards.streams if s.split == "val" and s.kind == "corpus")
    assert bytes_per_token(small_shards) == stream.n_bytes / stream.n_tokens > 1


def test_the_status_of_a_stopped_run_is_that_of_its_last_step(
    trainer: Trainer, small_shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written every two seconds, it would be some steps behind."""
    save = trainer.save

    def stop() -> None:
        save()
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(trainer, "save", stop)
    with pytest.raises(Interrupted):
        fit_with_progress(trainer, lambda step_loss: {}, Meter(trainer, 4.0, watts=None, peak_flops=None))
    status = read_status(trainer.run)
    assert status is not None and status.step == trainer.step < trainer.train.steps


def test_figures_go_below_the_bar_and_fit_80_columns(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Console(force_terminal=True, width=80, file=io.StringIO())
    monkeypatch.setattr(console, "console", shown)
    fit_with_progress(trainer, lambda step_loss: {}, Meter(trainer, 4.0, watts=None, peak_flops=None))
    assert isinstance(shown.file, io.StringIO)
    lines = Text.from_ansi(shown.file.getvalue()).plain.splitlines()
    assert any("Entrenando" in line and "24/24" in line and "quedan" in line for line in lines)
    assert any(line.startswith("pérdida") for line in lines) and "…" not in "".join(lines)


def test_what_is_said_of_a_validation_fits_80_columns() -> None:
    record = _record(123_456, loss=10.5, val_loss=10.25, val_chat_loss=11.125)
    assert len(f"paso 123457/200000: {_losses(record)}") <= 80


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process does not inherit the peak of its parent")
def test_the_memory_shown_is_of_the_training_alone() -> None:
    """DVC, which starts it, may have held more."""
    measure = "import torch; from enlace.train.progress import _memory_gib; print(_memory_gib(torch.device('cpu')))"
    big = f"import subprocess, sys; held = b'x' * (2 << 30); subprocess.run([sys.executable, '-c', {measure!r}])"
    shown = subprocess.run([sys.executable, "-c", big], capture_output=True, text=True, check=True).stdout
    assert 0 < float(shown) < 1.5
