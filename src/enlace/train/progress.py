"""What the person sees of a run: a bar on a terminal, a line at each validation, and `estado.json` for other terminals.

None of it decides a weight.
"""

from __future__ import annotations

import json
import math
import re
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from enlace import console
from enlace.config.budget import flops_per_token
from enlace.data.shards import Shards
from enlace.train.log import Record
from enlace.train.trainer import Trainer, Validate

STATUS = "estado.json"
_WRITE_EVERY = 2.0  # seconds
_JOULES_PER_KWH = 3.6e6
_MEMORY = 0.95  # of the running mean of the speed, per step


@dataclass(frozen=True)
class Status:
    """How a run is doing, as another terminal reads it."""

    step: int  # done
    steps: int
    loss: float | None
    val_loss: float | None
    bits_per_byte: float | None  # of held-out text
    lr: float
    grad_norm: float | None
    scale: float
    tokens_per_second: float | None
    utilisation: float | None  # of the card's peak; None: not known
    memory_gib: float
    seconds_left: float | None
    kwh: float | None  # of this process so far
    environments: int  # over 1: the run was moved, and is not exact to the bit
    updated: float  # Unix time


def bytes_per_token(shards: Shards) -> float:
    """UTF-8 bytes of held-out text that a token of the corpus stands for, on average."""
    streams = shards.of_kind("val", "corpus")
    return sum(stream.n_bytes for stream in streams) / sum(stream.n_tokens for stream in streams)


class Meter:
    """Turns the records of a run into its status; rates count what this process did, by elapsed time."""

    def __init__(
        self,
        trainer: Trainer,
        bytes_per_token: float,
        watts: float | None,
        peak_flops: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`watts` and `peak_flops` (per second) are of one card; without cards all processes share one computer."""
        self.trainer, self.bytes_per_token, self.clock = trainer, bytes_per_token, clock
        model = trainer.model
        cards = trainer.world.size if trainer.runtime.device.type == "cuda" else 1
        self.watts = None if watts is None else watts * cards
        self.peak = None if peak_flops is None else peak_flops * cards
        self.flops = flops_per_token(model.config, model.embed_tokens.num_embeddings, trainer.train.seq_len)
        self.began = self.last = clock()
        self.warm = False  # the first step compiles: it says nothing of the others
        self.seconds_per_step: float | None = None
        self.val_loss: float | None = None

    def read(self, record: Record) -> Status:
        """The status after the step of `record`."""
        now, train = self.clock(), self.trainer.train
        took, self.last = now - self.last, now
        if self.warm:
            # A running mean: a laptop slows down when it gets hot.
            old = took if self.seconds_per_step is None else self.seconds_per_step
            self.seconds_per_step = _MEMORY * old + (1 - _MEMORY) * took
        self.warm = True
        self.val_loss = record.get("val_loss", self.val_loss)
        done = record["step"] + 1
        speed = train.batch_tokens / self.seconds_per_step if self.seconds_per_step else None
        return Status(
            step=done,
            steps=train.steps,
            loss=record["loss"],
            val_loss=self.val_loss,
            bits_per_byte=None if self.val_loss is None else self.val_loss / math.log(2) / self.bytes_per_token,
            lr=record["lr"],
            grad_norm=record["grad_norm"],
            scale=record["scale"],
            tokens_per_second=speed,
            utilisation=speed * self.flops / self.peak if speed and self.peak else None,
            memory_gib=_memory_gib(self.trainer.runtime.device),
            seconds_left=None if self.seconds_per_step is None else (train.steps - done) * self.seconds_per_step,
            kwh=None if self.watts is None else (now - self.began) * self.watts / _JOULES_PER_KWH,
            environments=len(self.trainer.environments),
            updated=time.time(),
        )


def fit_with_progress(trainer: Trainer, validate: Validate, meter: Meter) -> None:
    """`Trainer.fit`, shown by the first rank; the others train in silence."""
    if not trainer.world.first:
        trainer.fit(validate)
        return
    written, last = 0.0, None
    with console.progress("{task.fields[figures]}") as bar:
        task = bar.add_task("Entrenando", total=trainer.train.steps, completed=trainer.step, figures="")

        def show(record: Record) -> None:
            nonlocal written, last
            last = status = meter.read(record)
            bar.update(task, advance=1, figures="paso saltado" if record["skipped"] else figures(status))
            if meter.last - written >= _WRITE_EVERY:
                if status.tokens_per_second:  # else the first step's, which has no speed, would stand for two seconds
                    written = meter.last
                _write(trainer.run / STATUS, status)
            if "val_loss" in record:
                with suppress(OSError, SystemExit):  # nobody reads any more (`| tee` ended): the training goes on
                    console.say(f"paso {status.step}/{status.steps}: {_losses(record)}")

        try:
            trainer.fit(validate, show)
        finally:
            if last:
                _write(trainer.run / STATUS, last)


def figures(status: Status) -> str:
    """The figures of a status on one line, in Spanish; those that are not known are left out, but for the MFU."""
    mfu = "n/a" if status.utilisation is None else f"{100 * status.utilisation:.0f} %"
    told = [
        f"pérdida {_figure(status.loss)}",
        status.bits_per_byte and f"{status.bits_per_byte:.3f} bits/byte",
        f"lr {status.lr:.1e}",
        f"grad {_figure(status.grad_norm)}",
        status.scale != 1 and f"escala {status.scale:g}",
        status.tokens_per_second and f"{status.tokens_per_second:,.0f} tokens/s".replace(",", " "),
        f"MFU {mfu}",
        f"{status.memory_gib:.1f} GiB",
        status.kwh and f"{status.kwh:.2f} kWh",
    ]
    return " · ".join(text for text in told if text)


def read_status(run: Path) -> Status | None:
    """The status of a run as it was last written; None before its first steps."""
    try:
        return Status(**json.loads((run / STATUS).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write(path: Path, status: Status) -> None:
    """Renamed into place but not synced: losing it loses nothing, and neither does a full disk."""
    with suppress(OSError):
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(status)), encoding="utf-8")
        temporary.replace(path)


def _losses(record: Record) -> str:
    held_out = {"texto": "val_loss", "respuestas": "val_chat_loss"}
    told = [f"{text} {_figure(record[key])}" for text, key in held_out.items() if key in record]
    return f"pérdida {_figure(record['loss'])} (reservado: {', '.join(told)})"


def _figure(value: float | None) -> str:
    return "no finita" if value is None else f"{value:.3f}"


def _memory_gib(device: torch.device) -> float:
    """The most that was in use: of the card, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    if (status := Path("/proc/self/status")).exists():
        # On Linux ru_maxrss begins at the memory of whatever started the process: DVC's, as a rule.
        kilobytes = re.search(r"Vm(?:HWM|RSS):\s+(\d+) kB", status.read_text())
        return int(kilobytes[1]) / 2**20 if kilobytes else 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30  # bytes on macOS
