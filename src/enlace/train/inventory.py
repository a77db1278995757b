"""What is in the folder of runs: how far each is, whether it goes on, and how to go on with it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from enlace import EnlaceError
from enlace.train import checkpoint, finished
from enlace.train.family import Note, read_note, run_folders
from enlace.train.log import RunLog
from enlace.train.progress import Status, read_status


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: Path
    saved: int  # step of its newest checkpoint; 0 when there is none
    running: bool
    exported: bool
    note: Note | None
    status: Status | None
    touched: float  # Unix time of its last record
    bytes: int

    @property
    def log(self) -> RunLog:
        """Its records."""
        return RunLog(self.folder / "log.jsonl")

    @property
    def steps(self) -> int | None:
        """That it will have; None where its folder does not say it any more."""
        return self.note.steps if self.note else None


def list_runs(runs: Path) -> list[Run]:
    """The runs in the folder `runs`, the one that was last at work first."""
    found = []
    for folder in run_folders(runs):
        with suppress(FileNotFoundError):  # forgotten while we look
            found.append(_read(folder))
    return sorted(found, key=lambda run: -run.touched)


def find(runs: Path, name: str) -> Run:
    """The run whose folder's name begins with `name`.

    Raises:
        EnlaceError: none does, or several, or `name` is empty.
    """
    found = [run for run in list_runs(runs) if name and run.folder.name.startswith(name)]
    if len(found) != 1:
        raise EnlaceError(
            f"{len(found) or 'Ninguna'} de las ejecuciones de {runs} empieza por «{name}». Mira: enlace runs"
        )
    return found[0]


def remove(run: Run) -> None:
    """Delete a run.

    Raises:
        EnlaceError: it is being trained.
    """
    if finished.is_being_trained(run.folder):
        raise EnlaceError(f"{run.folder} se está entrenando; párala antes (Ctrl-C, o kill).")
    finished.remove(run.folder)


def _read(folder: Path) -> Run:
    log = folder / "log.jsonl"
    return Run(
        folder=folder,
        saved=max(checkpoint.steps_of(folder), default=0),
        running=finished.is_being_trained(folder),
        exported=finished.is_exported(folder),
        note=read_note(folder),
        status=read_status(folder),
        touched=(log if log.exists() else folder).stat().st_mtime,
        bytes=sum(_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # a run in training lets go of its older checkpoints while we look
