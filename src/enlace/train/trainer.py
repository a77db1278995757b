"""The trainer: one loop, whose every step is decided by what a checkpoint holds.

A step is: batch of that step, forward and backward over its micro-batches, one division by the tokens trained in the
whole step, clip, update. Killed at any instant and resumed, a run ends with the same bits as one never interrupted.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from enlace import EnlaceError
from enlace.config.schema import TrainConfig
from enlace.console import errors
from enlace.data.loader import Batch, Loader, phase
from enlace.durable import reason, write_atomic
from enlace.model.transformer import Transformer
from enlace.train import checkpoint
from enlace.train.backends import Runtime
from enlace.train.loss import loss_sums
from enlace.train.optim import build_optimizers
from enlace.train.schedule import lr_scale

MAX_SKIPPED_IN_A_ROW = 20
Record = dict[str, Any]


class Interrupted(Exception):
    """A signal asked to stop; the state was saved first. `signal_number` says which."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


class Trainer:
    """A model being trained: everything that a checkpoint holds, and the step that changes it."""

    def __init__(
        self, model: Transformer, train: TrainConfig, loader: Loader, runtime: Runtime, micro_batch_size: int, run: Path
    ) -> None:
        self.model = model.to(runtime.device).train()
        self.train, self.loader, self.runtime, self.micro_batch_size, self.run = (
            train,
            loader,
            runtime,
            micro_batch_size,
            run,
        )
        self.optimizers = build_optimizers(self.model, train)
        self.scaler = torch.amp.GradScaler(runtime.device.type, enabled=runtime.precision == "float16")
        self.skipped_in_a_row = 0
        self.log = RunLog(run / "log.jsonl")

    @property
    def step(self) -> int:
        """Steps done."""
        return self.loader.next_step

    def fit(
        self,
        validate: Callable[[Transformer], Mapping[str, float]] | None = None,
        on_step: Callable[[Record], None] = lambda record: None,
    ) -> None:
        """Train from where the state is to `train.steps`, saving every `checkpoint_every` and at the end.

        Args:
            validate: measured every `val_every` steps and at the end; its figures join the step's record.
            on_step: told each record as it is logged.

        Raises:
            Interrupted: SIGTERM or Ctrl-C; the state was saved.
            EnlaceError: too many steps in a row were not finite, or a checkpoint could not be written.
        """
        train = self.train
        with stop_requests() as stop:
            while self.step < train.steps:
                record = self.train_step(self.loader.next_step)
                self.loader.next_step += 1
                if validate and (self.step % train.val_every == 0 or self.step == train.steps):
                    record |= self._validated(validate)
                self.log.append(record)
                on_step(record)
                number = stop()  # asked once: a signal between save and raise would claim a save that was not made
                if self.step % train.checkpoint_every == 0 or self.step == train.steps or number:
                    self.save()
                if number:
                    raise Interrupted(number)

    def train_step(self, step: int) -> Record:
        """One optimizer step; gives its record (plain numbers, the same bits on every run)."""
        batch = self.loader.batch(step)
        n_trained = int(batch.mask.sum())
        scale = float(self.scaler.get_scale())
        lr = lr_scale(step, self.train)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * lr
        cross_entropy = self._forward_backward(batch, n_trained)
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.train.grad_clip))
        loss = float(cross_entropy) / n_trained
        skipped = not (math.isfinite(grad_norm) and math.isfinite(loss))
        if not skipped:
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
        self.scaler.update()
        self._count_skipped(skipped, step, loss, grad_norm)
        return {
            "step": step,
            "phase": phase(step, self.train),
            "loss": loss if math.isfinite(loss) else None,
            "lr": lr * self.train.lr,
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "scale": scale,
            "trained_tokens": n_trained,
            "skipped": int(skipped),
        }

    def _forward_backward(self, batch: Batch, n_trained: int) -> Tensor:
        """Gradients of the mean loss over `n_trained` tokens, summed over micro-batches; gives the summed loss."""
        total = torch.zeros((), device=self.runtime.device)
        for micro in batch.micro_batches(self.micro_batch_size):
            inputs, targets, mask = (
                tensor.to(self.runtime.device) for tensor in (micro.inputs, micro.targets, micro.mask)
            )
            with self.runtime.compute():
                sums = loss_sums(self.model.logits(self.model(inputs)), targets, mask)
                loss = sums.total(self.train.z_loss) / n_trained
            self.scaler.scale(loss).backward()
            total += sums.cross_entropy.detach()
        return total

    def _count_skipped(self, skipped: bool, step: int, loss: float, grad_norm: float) -> None:
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if self.skipped_in_a_row > MAX_SKIPPED_IN_A_ROW:
            raise EnlaceError(
                f"Paso {step}: {self.skipped_in_a_row} pasos seguidos sin pérdida o gradiente finitos "
                f"(loss={loss}, grad_norm={grad_norm}). Baja train.lr y train.muon_lr en params.yaml y repite; "
                f"los puntos de guardado de esta ejecución siguen en {self.run}."
            )

    def _validated(self, validate: Callable[[Transformer], Mapping[str, float]]) -> Record:
        self.model.eval()
        with torch.no_grad(), self.runtime.compute():
            figures = validate(self.model)
        self.model.train()
        return {name: value if math.isfinite(value) else None for name, value in figures.items()}

    def save(self) -> None:
        """Write a checkpoint; the log up to here is durable before it."""
        self.log.sync()
        checkpoint.save(self.run, self.step, self.state_dict(), self.train.keep_checkpoints)

    def resume(self, warn: Callable[[str], None]) -> bool:
        """Continue from the newest whole checkpoint of the run; False when there is none and the run begins."""
        state = checkpoint.load_newest(self.run, self.runtime.device, warn)
        if state is None:
            self.log.cut(0)
            return False
        now = environment(self)
        differences = [
            f"{key} era {value} y es {now[key]}" for key, value in state["environment"].items() if now[key] != value
        ]
        if differences:
            warn(f"Continúo, pero no bit a bit: {'; '.join(differences)}.")
        self.load_state_dict(state)
        self.log.cut(self.step)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next step: tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "scaler": self.scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "skipped_in_a_row": self.skipped_in_a_row,
            "generators": generator_states(),
            "environment": environment(self),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave; anything missing is an error, never a silent default."""
        self.loader.load_state_dict(state["loader"])
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if state["scaler"]:  # empty where the run was saved in a precision that needs no scaler
            self.scaler.load_state_dict(state["scaler"])
        self.skipped_in_a_row = state["skipped_in_a_row"]
        restore_generators(state["generators"])


class RunLog:
    """The records of a run, one JSON object a line; cut back to the checkpoint when a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Record) -> None:
        """Add one record; not yet durable."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise EnlaceError(
                f"{self.path}: no se puede escribir ({reason(error)}). Arréglalo y repite el comando para continuar."
            ) from error

    def cut(self, step: int) -> None:
        """Keep the records of steps before `step`; a torn last line goes too."""
        if self.path.exists():
            kept = [line for line in self.path.read_bytes().split(b"\n") if line and _step_of(line) < step]
            write_atomic(self.path, b"".join(line + b"\n" for line in kept))

    def sync(self) -> None:
        """Make what was appended durable."""
        if self.path.exists():
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """All records, by step."""
        return [json.loads(line) for line in self.path.read_bytes().split(b"\n") if line]


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf  # torn by a power cut: its step will be done again


def environment(trainer: Trainer) -> dict[str, str]:
    """What exactness depends on beside the state; another value means other last bits."""
    runtime = trainer.runtime
    return {
        "torch": str(torch.__version__),
        "equipo": runtime.machine_name,
        "precisión": runtime.precision,
        "hilos": str(torch.get_num_threads()),
        "micro_batch_size": str(trainer.micro_batch_size),
    }


def seed_generators(seed: int) -> None:
    """Start every random generator of the process from `seed`, so that two runs hold the same states."""
    torch.manual_seed(seed)  # the card's too
    random.seed(seed)
    np.random.seed(seed)


def generator_states() -> dict[str, Any]:
    """States of every random generator of the process, as tensors and plain values."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple[str, Any, int, int, float], np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(internal), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Put back what `generator_states` gave (the card's only where there are as many cards)."""
    torch.set_rng_state(states["torch"].cpu())
    if len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))


@contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """While inside, SIGTERM and Ctrl-C only ask; the value given answers with the signal's number, or 0.

    A second Ctrl-C ends at once, for a person who will not wait for the step.
    """
    asked = 0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = number
        # Ctrl-C ends the reader of a pipe (`| tee`) too, and rich leaves with SystemExit when nobody reads.
        with suppress(OSError, SystemExit):
            errors.print("\nGuardo y salgo al acabar este paso…", markup=False)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
