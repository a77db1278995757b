"""What becomes of a run that was exported: its last checkpoints are kept until another run is exported.

When the training stage ends, DVC has yet to store the model. Should that fail (a kill, or a full disk, after which DVC
goes on with `eval` all the same), it deletes the model and repeats the stage, which must then export it again and not
train for days. And a longer run, or one with another decay, goes on from its last checkpoint of the stable phase: see
`family`.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from enlace.durable import fsync_dir, is_locked, write_atomic
from enlace.train import checkpoint
from enlace.train.checkpoint import Retention

_MARK = "exportado"
_NAME = "[0-9a-f]" * 16  # of a run: see `family.fingerprint`; whatever else lies there is somebody else's
LOCK = ".lock"


def mark_exported(run: Path, keep: Retention) -> None:
    """Note that the model of `run` was exported, and leave only one newest checkpoint beside what else `keep` keeps."""
    write_atomic(run / _MARK, b"")
    checkpoint.tidy(run, replace(keep, newest=1))


def is_exported(run: Path) -> bool:
    """Whether the model of `run` was exported."""
    return (run / _MARK).exists()


def forget_others(runs: Path, run: Path) -> None:
    """Remove the exported runs in the folder `runs` other than `run`, but for those that are being trained again."""
    sweep(runs)
    for other in [mark.parent for mark in runs.glob(f"*/{_MARK}")]:
        if other.suffix != ".tmp" and other != run and not is_being_trained(other):
            with suppress(OSError):  # what cannot be removed takes room, and the run that just ended is whole
                remove(other)


def sweep(runs: Path) -> None:
    """Remove what a kill left of the runs that were being removed."""
    for trash in runs.glob(f"{_NAME}.tmp"):
        shutil.rmtree(trash, ignore_errors=True)


def is_being_trained(run: Path) -> bool:
    """Whether a process is training `run` at this moment."""
    return is_locked(run / LOCK)


def remove(run: Path) -> None:
    """Delete the folder `run` at once: a kill leaves nothing that looks like a damaged run, and `sweep` ends what it
    leaves.
    """
    trash = run.with_name(f"{run.name}.tmp")
    if trash.exists():
        shutil.rmtree(trash)
    run.rename(trash)
    fsync_dir(run.parent)
    shutil.rmtree(trash)
