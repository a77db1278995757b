"""Does it learn? 300 steps, byte by byte, on Spanish text: `make smoke`, about a minute on two cores.

Prints the loss in nats per byte as it falls. A reference to beat: from 3.07 to 1.63 in 300 steps.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import torch

from enlace import EnlaceError
from enlace.config.load import hardware_profiles
from enlace.config.paths import project_root
from enlace.config.schema import Mixture, ModelConfig, PhaseMixture, TrainConfig
from enlace.console import run_main, say
from enlace.data.documents import read_documents
from enlace.data.loader import Loader, batch_size
from enlace.data.rows import TokenWindows
from enlace.model.transformer import Transformer, head_dim
from enlace.train.backends import prepare, this_machine
from enlace.train.log import Record
from enlace.train.trainer import Trainer

STEPS, SHOWN_EVERY = 300, 30
MODEL = ModelConfig(
    d_model=128, n_layers=4, n_heads=2, n_kv_heads=1, intermediate_size=384, rope_theta=10000.0, rms_norm_eps=1e-6
)
TRAIN = TrainConfig(
    seed=42,
    seq_len=256,
    batch_tokens=2048,
    steps=STEPS,
    warmup_steps=10,
    decay_steps=200,
    min_lr_ratio=0.0,
    optimizer="muon",
    lr=0.01,
    muon_lr=0.03,
    beta1=0.9,
    beta2=0.95,
    muon_momentum=0.95,
    weight_decay=0.1,
    grad_clip=1.0,
    z_loss=1e-4,
    document_mask=False,
    checkpoint_every=STEPS,
    keep_checkpoints=2,
    keep_every=None,
    val_every=STEPS,
)
CORPUS = Mixture(corpus=1.0, chat=0.0)


def main() -> None:
    """Train on the bytes of the corpus and show the loss."""
    raw = sorted((project_root() / "data" / "raw").glob("*.jsonl"))
    if not raw:
        raise EnlaceError("No hay texto en data/raw. Tráelo con: dvc repro fetch-corpus")
    profiles = hardware_profiles(project_root())
    runtime = prepare("cpu", profiles["cpu"], profiles, this_machine(), head_dim(MODEL))
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "corpus.txt"
        text.write_text("\n\n".join(d.text for path in raw for d in read_documents(path)), encoding="utf-8")
        loader = Loader(
            {"corpus": TokenWindows.of_bytes(text, TRAIN.seq_len)}, TRAIN, PhaseMixture(stable=CORPUS, decay=CORPUS)
        )
        model = Transformer(MODEL, 256).initialise(torch.Generator().manual_seed(TRAIN.seed))
        trainer = Trainer(model, TRAIN, loader, runtime, batch_size(TRAIN), Path(folder) / "run", separator=None)
        start, recent = time.perf_counter(), []

        def show(record: Record) -> None:
            recent.append(math.nan if record["loss"] is None else record["loss"])
            if len(recent) == SHOWN_EVERY:
                seconds = time.perf_counter() - start
                mean = sum(recent) / len(recent)
                last = record["step"] + 1
                say(f"pasos {last - SHOWN_EVERY + 1:3}-{last:3}: pérdida {mean:.2f}   ({seconds:.0f} s)")
                recent.clear()

        trainer.fit(on_step=show)


if __name__ == "__main__":
    run_main(main)
