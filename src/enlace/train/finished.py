"""What becomes of a run that was exported: its newest checkpoint is kept until another run begins.

When the training stage ends, DVC has yet to store the model. Should that fail (a kill, or a full disk, after which DVC
goes on with `eval` all the same), it deletes the model and repeats the stage, which must then export it again and not
train for days.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from enlace.durable import fsync_dir, write_atomic
from enlace.train import checkpoint

_MARK = "exportado"


def mark_exported(run: Path) -> None:
    """Note that the model of `run` was exported, and leave only its newest checkpoint."""
    write_atomic(run / _MARK, b"")
    checkpoint.keep_newest(run, 1)


def forget_others(runs: Path, run: Path) -> None:
    """Remove the exported runs in the folder `runs` other than `run`.

    Each at once, so that a kill leaves nothing that looks like a damaged run; what it does leave goes the next time.
    """
    for trash in runs.glob("*.tmp"):
        shutil.rmtree(trash, ignore_errors=True)
    for other in [mark.parent for mark in runs.glob(f"*/{_MARK}")]:
        if other != run:
            trash = other.with_name(f"{other.name}.tmp")
            other.rename(trash)
            fsync_dir(runs)
            shutil.rmtree(trash)
