"""A run on disk: found by what decides its result, resumed if it was cut, exported when it ends.

The folder of a run is `.runs/<fingerprint>`. The fingerprint covers the model, the recipe, the bytes of the data and
the training source, so that a checkpoint is never continued under another recipe; not the hardware, so that an
unfinished run can move to a better GPU.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch

import enlace
from enlace import console
from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.data.loader import Batch, Loader, Rows, chat_rows, corpus_rows
from enlace.data.shards import Shards
from enlace.model.transformer import Transformer
from enlace.train.backends import Runtime
from enlace.train.loss import loss_sums
from enlace.train.trainer import Record, Trainer, seed_generators

# What decides the weights, relative to the package; tests hold it equal to the deps of `train` in dvc.yaml.
SOURCES = ("data/loader.py", "data/shards.py", "model/transformer.py", "train/*.py")
VALIDATION_ROWS = 32


def fingerprint(model: ModelConfig, train: TrainConfig, mixture: PhaseMixture, shards: Shards) -> str:
    """Name of the run, 16 hex digits."""
    digest = hashlib.sha256()
    for part in (model, train, mixture, shards.manifest):
        digest.update(part.model_dump_json().encode() + b"\0")
    package = Path(enlace.__file__).parent
    for path in sorted(path for pattern in SOURCES for path in package.glob(pattern)):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def make_trainer(
    model: ModelConfig,
    train: TrainConfig,
    mixture: PhaseMixture,
    shards: Shards,
    runtime: Runtime,
    micro_batch_size: int,
    run: Path,
) -> Trainer:
    """A trainer at step 0 on the training shards, the process's random generators seeded."""
    seed_generators(train.seed)
    sources: dict[str, Rows] = {"corpus": corpus_rows(shards, "train", train.seq_len)}
    if (chat := chat_rows(shards, "train", train.seq_len)) is not None:
        sources["chat"] = chat
    weights = Transformer(model, shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(train.seed))
    return Trainer(weights, train, Loader(sources, train, mixture), runtime, micro_batch_size, run)


def validator(
    shards: Shards, train: TrainConfig, device: torch.device, micro_batch_size: int
) -> Callable[[Transformer], Mapping[str, float]]:
    """Measures the loss in nats per trained token on a fixed sample of the held-out rows of each kind."""
    kinds: dict[str, Rows | None] = {
        "val_loss": corpus_rows(shards, "val", train.seq_len),
        "val_chat_loss": chat_rows(shards, "val", train.seq_len),
    }
    samples = {name: sample_rows(rows, VALIDATION_ROWS) for name, rows in kinds.items() if rows is not None}

    def validate(model: Transformer) -> dict[str, float]:
        losses = {}
        for name, sample in samples.items():
            total = 0.0
            for part in sample.micro_batches(micro_batch_size):
                logits = model.logits(model(part.inputs.to(device)))
                total += float(loss_sums(logits, part.targets.to(device), part.mask.to(device)).cross_entropy)
            losses[name] = total / int(sample.mask.sum())
        return losses

    return validate


def sample_rows(rows: Rows, count: int) -> Batch:
    """`count` rows (or all) as one batch, spread evenly, so that every source has some."""
    count = min(count, len(rows))
    ids, masks = zip(*(rows.row(i * len(rows) // count, 0) for i in range(count)), strict=True)
    tokens, mask = (torch.stack([torch.from_numpy(row) for row in part]) for part in (ids, masks))
    return Batch(tokens[:, :-1], tokens[:, 1:], mask[:, 1:])


def fit_with_progress(trainer: Trainer, validate: Callable[[Transformer], Mapping[str, float]]) -> None:
    """`Trainer.fit`, shown: a bar on a terminal, one line at each validation anywhere."""
    train = trainer.train
    with console.progress("{task.fields[loss]}", "{task.fields[speed]}") as bar:
        task = bar.add_task("Entrenando", total=train.steps, completed=trainer.step, loss="", speed="")

        def show(record: Record) -> None:
            speed = bar.tasks[task].speed
            bar.update(
                task,
                advance=1,
                loss="paso saltado" if record["skipped"] else f"pérdida {_figure(record, 'loss')}",
                speed=f"{speed * train.batch_tokens:,.0f} tokens/s" if speed else "",
            )
            if "val_loss" in record:
                told = {
                    "pérdida": "loss",
                    "en texto reservado": "val_loss",
                    "en respuestas reservadas": "val_chat_loss",
                }
                figures = ", ".join(f"{text} {_figure(record, key)}" for text, key in told.items() if key in record)
                with suppress(OSError, SystemExit):  # nobody reads any more (`| tee` ended): the training goes on
                    console.say(f"paso {record['step'] + 1}/{train.steps}: {figures}")

        trainer.fit(validate, show)


def _figure(record: Record, key: str) -> str:
    return "no finita" if record[key] is None else f"{record[key]:.3f}"


def records_csv(records: list[Record]) -> bytes:
    """The log as CSV for `dvc plots`; a column that a record lacks stays empty."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()
