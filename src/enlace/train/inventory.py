"""What is in the folder of runs: how far each is, whether it goes on, and how to go on with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from enlace import EnlaceError
from enlace.durable import is_locked
from enlace.train import checkpoint
from enlace.train.family import NOTE
from enlace.train.finished import is_exported
from enlace.train.log import RunLog
from enlace.train.progress import Status, read_status


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: Path
    steps: int  # that it will have
    saved: int  # step of its newest checkpoint; 0 when there is none
    running: bool
    exported: bool
    about: Mapping[str, object]  # its configuration, by dotted key
    status: Status | None
    touched: float  # Unix time of its last record
    bytes: int

    @property
    def log(self) -> RunLog:
        """Its records."""
        return RunLog(self.folder / "log.jsonl")

    def differences(self, now: Mapping[str, object]) -> list[str]:
        """Keys whose value is another in `now`, as "train.lr=0.02 (ahora 0.01)"."""
        keys = [key for key in self.about if not key.startswith("hardware.") and self.about[key] != now.get(key)]
        return [f"{key}={self.about[key]} (ahora {now.get(key)})" for key in keys]


def list_runs(runs: Path) -> list[Run]:
    """The runs in the folder `runs`, the one that was last at work first."""
    return sorted((_read(note.parent) for note in runs.glob(f"*/{NOTE}")), key=lambda run: -run.touched)


def find(runs: Path, name: str) -> Run:
    """The run whose folder's name begins with `name`.

    Raises:
        EnlaceError: none does, or several.
    """
    found = [run for run in list_runs(runs) if run.folder.name.startswith(name)]
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
    if is_locked(run.folder / ".lock"):
        raise EnlaceError(f"{run.folder} se está entrenando; párala antes (Ctrl-C, o kill).")
    trash = run.folder.with_name(f"{run.folder.name}.tmp")  # at once: a kill leaves nothing like a damaged run
    run.folder.rename(trash)
    shutil.rmtree(trash)


def _read(folder: Path) -> Run:
    note = json.loads((folder / NOTE).read_bytes())
    log = folder / "log.jsonl"
    return Run(
        folder=folder,
        steps=note["steps"],
        saved=max(checkpoint.steps_of(folder), default=0),
        running=is_locked(folder / ".lock"),
        exported=is_exported(folder),
        about=note["about"],
        status=read_status(folder),
        touched=(log if log.exists() else folder).stat().st_mtime,
        bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    )
