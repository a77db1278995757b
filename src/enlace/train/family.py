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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

import enlace
from enlace.config.schema import ModelConfig, PhaseMixture, TrainConfig
from enlace.console import errors
from enlace.data.loader import stable_end
from enlace.data.shards import Shards
from enlace.durable import fsync_dir, write_atomic
from enlace.train import checkpoint
from enlace.train.finished import is_exported
from enlace.train.log import RunLog

# What decides the weights, relative to the package; the rest of what the stage imports only shows, stores or starts.
SOURCES = (
    "data/loader.py",
    "data/rows.py",
    "data/shards.py",
    "data/special_tokens.py",
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
    source: str | None = None  # digest of the code that trains it; None: noted before this was

    def deciding(self) -> dict[str, object]:
        """Its values that decide weights, by dotted key."""
        return deciding(self.about)


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
    texts = [part.encode() for part in (*parts, shards.manifest.model_dump_json())]
    return _hashed(texts + _sources())


def _sources() -> list[bytes]:
    package = Path(enlace.__file__).parent
    return [(package / source).read_bytes() for source in SOURCES]


def _hashed(texts: list[bytes]) -> str:
    return hashlib.sha256(b"".join(text + b"\0" for text in texts)).hexdigest()[:16]


def obstacle(note: Note, shards: Shards) -> str | None:
    """What the run of `note` cannot go on with, in Spanish: the code of today or these shards; None: it can."""
    values: dict[str, dict[str, object]] = {"model": {}, "train": {}, "mixture": {}}
    for key, value in note.about.items():
        layer, _, name = key.partition(".")
        values.get(layer, {})[name] = value
    try:
        today = family(
            ModelConfig.model_validate(values["model"]),
            TrainConfig.model_validate(values["train"]),
            PhaseMixture.model_validate(values["mixture"]),
            shards,
        )
    except ValidationError:
        today = None  # the code of then knew other values
    if today == note.family:
        return None
    if note.source is None:
        return "este código o estos datos (data/shards)"
    return "estos datos (data/shards)" if note.source == _hashed(_sources()) else "este código"


def about(**layers: BaseModel) -> dict[str, object]:
    """The values of some layers of the configuration, by dotted key, as `enlace runs` compares them."""
    return {
        f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.model_dump(mode="json").items()
    }


def deciding(about: Mapping[str, object]) -> dict[str, object]:
    """Those of the values that decide weights, one by one: a group within is taken apart."""
    flat: dict[str, object] = {}
    for key, value in about.items():
        if isinstance(value, Mapping):
            flat |= deciding({f"{key}.{name}": item for name, item in value.items()})
        elif not key.startswith("hardware.") and key.removeprefix("train.") not in KEEPING:
            flat[key] = value
    return flat


def join_family(
    runs: Path, run: Path, name: str, train: TrainConfig, about: Mapping[str, object]
) -> tuple[Path, int] | None:
    """Note what `run` is; where it has no checkpoint yet, take the newest that a relative has for it.

    Gives the relative and the step, or None when the run begins by itself or goes on by itself. A run that begins by
    itself because the code or the data are no longer those of a cut one says so.

    Args:
        name: of its family.
        about: plain values by key: the configuration, for a person who wonders what a folder holds.

    Raises:
        EnlaceError: it could not be written (disk full…); nothing was taken.
    """
    source = _hashed(_sources())
    note = Note(family=name, stable_end=stable_end(train), steps=train.steps, about=dict(about), source=source)
    write_atomic(run / NOTE, note.model_dump_json(indent=2).encode())
    if checkpoint.steps_of(run):
        return None
    for step, relative in sorted(_shared(runs, run, note), reverse=True):
        folder = checkpoint.folder_of(relative, step)
        if checkpoint.damage(folder) is None:
            write_atomic(run / "log.jsonl", RunLog(relative / "log.jsonl").before(step))
            if _link(folder, checkpoint.folder_of(run, step)):
                return relative, step
    for left, step in _left_behind(runs, run, note):
        errors.print(
            f"La ejecución {left} iba por el paso {step} con estos mismos valores, pero con otro código u otros datos: "
            f"no puede seguir, y esta empieza de cero. Para seguir aquella, Ctrl-C y vuelve al commit y a los datos de "
            f"entonces; si ya no la quieres: enlace runs clean {left}",
            markup=False,
            style="yellow",
        )
    return None


def _left_behind(runs: Path, run: Path, note: Note) -> Iterator[tuple[str, int]]:
    """Names of cut runs, and the step of each, that are of the values of `run` and yet not the same run."""
    for other in run_folders(runs):
        theirs, steps = read_note(other), checkpoint.steps_of(other)
        if other != run and theirs and steps and theirs.deciding() == note.deciding() and not is_exported(other):
            yield other.name, max(steps)


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
