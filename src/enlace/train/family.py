"""Runs that share their beginning: a longer run, or one with another decay, goes on where the other left off.

In the stable phase the learning rate does not know how long the run will be, and the batch of step n depends on the
seed and n alone. So two runs that differ only in `steps`, the decay, or what the decay reads, pass through the same
states until the first of them begins to decay: a checkpoint from there belongs to both, bit for bit. Such runs are a
family. To extend a run, raise `train.steps`; to branch, change `train.decay_steps` or the mixture of the decay.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

import enlace
from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.data.loader import stable_end
from enlace.data.shards import Shards
from enlace.durable import fsync_dir, write_atomic
from enlace.train import checkpoint
from enlace.train.log import RunLog

# What decides the weights, relative to the package; the rest of what the stage imports only shows, stores or starts.
SOURCES = (
    "data/loader.py",
    "data/shards.py",
    "model/attention.py",
    "model/norm.py",
    "model/transformer.py",
    "train/distributed.py",
    "train/generators.py",
    "train/loss.py",
    "train/optim.py",
    "train/run.py",
    "train/schedule.py",
    "train/trainer.py",
)
# Values of `train` that decide no weight: how often the state is kept.
KEEPING = {"checkpoint_every", "keep_checkpoints", "keep_every"}
# Values that only the decay phase knows.
DECAY = {"steps", "decay_steps", "min_lr_ratio"}
NOTE = "run.json"


class Note(BaseModel):
    """What a run is, as its folder says it."""

    model_config = ConfigDict(frozen=True)

    family: str
    stable_end: int
    steps: int
    about: dict[str, Any]  # the configuration, by dotted key


def read_note(run: Path) -> Note | None:
    """The note of the folder `run`; None where there is none that can be understood."""
    try:
        return Note.model_validate_json((run / NOTE).read_bytes())
    except (OSError, ValidationError):
        return None


def run_folders(runs: Path) -> list[Path]:
    """The folders of runs in `runs`, but for those on their way out; nothing else that lies there."""
    folders = (path for path in runs.glob("*") if path.suffix != ".tmp")
    return sorted(path for path in folders if (path / NOTE).exists() or checkpoint.steps_of(path))


def fingerprint(model: ModelConfig, train: TrainConfig, mixture: PhaseMixture, shards: Shards) -> str:
    """Name of the run, 16 hex digits: the model, the recipe, the bytes of the data and the source that trains.

    Not the hardware, so that an unfinished run can move to a better GPU.
    """
    parts = [model.model_dump_json(), train.model_dump_json(exclude=KEEPING), mixture.model_dump_json()]
    return _digest(parts, shards)


def family(model: ModelConfig, train: TrainConfig, mixture: PhaseMixture, shards: Shards) -> str:
    """Name of the runs that share their stable phase with this one."""
    parts = [model.model_dump_json(), train.model_dump_json(exclude=KEEPING | DECAY), mixture.stable.model_dump_json()]
    return _digest(parts, shards)


def _digest(parts: list[str], shards: Shards) -> str:
    digest = hashlib.sha256()
    for part in (*parts, shards.manifest.model_dump_json()):
        digest.update(part.encode() + b"\0")
    package = Path(enlace.__file__).parent
    for source in SOURCES:
        digest.update((package / source).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def about(**layers: BaseModel) -> dict[str, object]:
    """The values of some layers of the configuration, by dotted key, as `enlace runs` compares them."""
    return {
        f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.model_dump(mode="json").items()
    }


def join_family(
    runs: Path, run: Path, name: str, train: TrainConfig, about: Mapping[str, object]
) -> tuple[Path, int] | None:
    """Note what `run` is; where it has no checkpoint yet, take the newest that a relative has for it.

    Gives the relative and the step, or None when the run begins by itself or goes on by itself.

    Args:
        name: of its family.
        about: plain values by key: the configuration, for a person who wonders what a folder holds.

    Raises:
        EnlaceError: it could not be written (disk full…); nothing was taken.
    """
    note = Note(family=name, stable_end=stable_end(train), steps=train.steps, about=dict(about))
    write_atomic(run / NOTE, note.model_dump_json(indent=2).encode())
    if checkpoint.steps_of(run):
        return None
    for step, relative in sorted(_shared(runs, run, note), reverse=True):
        folder = checkpoint.folder_of(relative, step)
        if checkpoint.damage(folder) is None:
            write_atomic(run / "log.jsonl", RunLog(relative / "log.jsonl").before(step))
            if _link(folder, checkpoint.folder_of(run, step)):
                return relative, step
    return None


def _shared(runs: Path, run: Path, note: Note) -> list[tuple[int, Path]]:
    """Checkpoints (step, run) of relatives that lie in the stable phase of both."""
    found: list[tuple[int, Path]] = []
    for relative in run_folders(runs):
        theirs = read_note(relative)
        if relative != run and theirs and theirs.family == note.family:
            last = min(theirs.stable_end, note.stable_end)
            found += [(step, relative) for step in checkpoint.steps_of(relative) if step <= last]
    return found


def _link(folder: Path, copy: Path) -> bool:
    """A second checkpoint of the same bytes, whole or not at all; they take no room where the disk knows links.

    False where `folder` has gone meanwhile: the relative may be in training and let go of its older ones.
    """
    temporary = copy.with_name(f"{copy.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name in checkpoint.FILES:
        try:
            os.link(folder / name, temporary / name)
        except FileNotFoundError:
            shutil.rmtree(temporary)
            return False
        except OSError:
            _copy(folder / name, temporary / name)
    fsync_dir(temporary)
    temporary.rename(copy)
    fsync_dir(copy.parent)
    return True


def _copy(file: Path, copy: Path) -> None:
    with file.open("rb") as source, copy.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
