"""A run from the configuration: its trainer, and what is measured on held-out text while it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.data.loader import Batch, Loader
from enlace.data.rows import Rows, chat_rows, corpus_rows
from enlace.data.shards import Shards
from enlace.model.transformer import Transformer
from enlace.train.backends import Runtime
from enlace.train.distributed import World
from enlace.train.generators import seed_generators
from enlace.train.trainer import StepLoss, Trainer

VALIDATION_ROWS = 32


def make_trainer(
    model: ModelConfig,
    train: TrainConfig,
    mixture: PhaseMixture,
    shards: Shards,
    runtime: Runtime,
    micro_batch_size: int,
    run: Path,
    world: World = World(),  # noqa: B008  frozen
) -> Trainer:
    """A trainer at step 0 on the training shards, the process's random generators seeded."""
    seed_generators(train.seed)
    sources: dict[str, Rows] = {"corpus": corpus_rows(shards, "train", train.seq_len)}
    if (chat := chat_rows(shards, "train", train.seq_len)) is not None:
        sources["chat"] = chat
    weights = Transformer(model, shards.manifest.vocab_size).initialise(torch.Generator().manual_seed(train.seed))
    loader = Loader(sources, train, mixture)
    return Trainer(weights, train, loader, runtime, micro_batch_size, run, shards.manifest.end_of_text_id, world)


def validator(
    shards: Shards, train: TrainConfig, device: torch.device, micro_batch_size: int
) -> Callable[[StepLoss], Mapping[str, float]]:
    """Measures the loss in nats per trained token on a fixed sample of the held-out rows of each kind."""
    kinds: dict[str, Rows | None] = {
        "val_loss": corpus_rows(shards, "val", train.seq_len),
        "val_chat_loss": chat_rows(shards, "val", train.seq_len),
    }
    samples = {name: sample_rows(rows, VALIDATION_ROWS) for name, rows in kinds.items() if rows is not None}

    def validate(step_loss: StepLoss) -> dict[str, float]:
        losses = {}
        for name, sample in samples.items():
            micro_batches = sample.micro_batches(micro_batch_size)
            total = sum(float(step_loss(*part.to(device)).cross_entropy) for part in micro_batches)
            losses[name] = total / int(sample.mask.sum())
        return losses

    return validate


def sample_rows(rows: Rows, count: int) -> Batch:
    """`count` rows (or all) as one batch, spread evenly, so that every source has some."""
    count = min(count, len(rows))
    ids, masks = zip(*(rows.row(i * len(rows) // count, 0) for i in range(count)), strict=True)
    tokens, mask = (torch.stack([torch.from_numpy(row) for row in part]) for part in (ids, masks))
    return Batch(tokens[:, :-1], tokens[:, 1:], mask[:, 1:])
