"""A training run in a process of its own, for tests to kill. Arguments: shards folder, run folder, options."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from enlace.config.load import hardware_profiles
from enlace.config.schema import HardwareConfig, Mixture, ModelConfig, PhaseMixture, TrainConfig
from enlace.data.shards import open_shards
from enlace.train.backends import prepare, this_machine
from enlace.train.distributed import World
from enlace.train.family import family, join_family
from enlace.train.launch import launch
from enlace.train.run import make_trainer, validator

ROOT = Path(__file__).parents[2]
MODEL = ModelConfig(
    d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, intermediate_size=48, rope_theta=1e4, rms_norm_eps=1e-6
)
MIXTURE = PhaseMixture(stable=Mixture(corpus=1.0, chat=0.0), decay=Mixture(corpus=0.5, chat=0.5))
TRAIN = TrainConfig(
    seed=3,
    seq_len=48,
    batch_tokens=384,
    steps=60,
    warmup_steps=5,
    decay_steps=30,
    min_lr_ratio=0.0,
    optimizer="muon",
    lr=0.01,
    muon_lr=0.02,
    beta1=0.9,
    beta2=0.95,
    muon_momentum=0.95,
    weight_decay=0.1,
    grad_clip=1.0,
    z_loss=1e-4,
    document_mask=False,
    checkpoint_every=4,
    keep_checkpoints=2,
    keep_every=None,
    val_every=10,
)


def say(line: str) -> None:
    """In one write: `print` makes several where Python does not buffer, and ranks that share the output mix theirs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(shards_folder: str, run: str, options: str) -> None:
    """`options` as JSON: "profile" and "train" change those layers, "micro" the micro-batch size."""
    chosen = {"profile": {}, "train": {}, "micro": 4} | json.loads(options)
    profile = hardware_profiles(ROOT)["cpu"]  # its kernels and its threads, as in `make repro`
    profile = HardwareConfig.model_validate(profile.model_dump() | chosen["profile"])
    train = TrainConfig.model_validate(TRAIN.model_dump() | chosen["train"])

    def work(world: World) -> None:
        runtime = prepare("cpu", profile, {}, this_machine(), 8)
        shards = open_shards(Path(shards_folder))
        if world.first and (
            joined := join_family(Path(run).parent, Path(run), family(MODEL, train, MIXTURE, shards), train, {})
        ):
            say(f"joined at {joined[1]}")
        world.wait()
        trainer = make_trainer(MODEL, train, MIXTURE, shards, runtime, chosen["micro"], Path(run), world)
        resumed = trainer.resume(warn=say)
        say(f"{'resumed' if resumed else 'began'} at {trainer.step}")
        trainer.fit(validator(shards, train, runtime.device, 4))
        weights = b"".join(p.detach().numpy().tobytes() for p in trainer.whole_model().parameters())
        say(f"ended with {hashlib.sha256(weights).hexdigest()}")

    launch(work, "tests.train.child", "cpu")


if __name__ == "__main__":
    main(*sys.argv[1:])
