"""Checkpoints: whole, checked, and never the only copy.

    <run>/step-00000500/state.pt        tensors and plain values only (loads with weights_only=True)
    <run>/step-00000500/manifest.json   size and sha256 of state.pt, written last

Both are written in a temporary folder, synced, and the folder renamed: a kill at any moment leaves either no
checkpoint of that step or a whole one. Reading starts from the newest and goes back over damaged ones, naming each.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from enlace import EnlaceError
from enlace.durable import fsync_dir, reason, write_atomic

FILES = ("state.pt", "manifest.json")
_FOLDER = re.compile(r"step-\d{8,}")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of a run stay."""

    newest: int  # so many of the last ones
    every: int | None  # those whose step this divides
    stable_end: int  # and the last one up to this step: a longer run, or another decay, goes on from there

    def kept(self, steps: Collection[int]) -> set[int]:
        """Those of `steps` that stay."""
        ordered = sorted(steps)
        by_division = [step for step in ordered if self.every and step % self.every == 0]
        stable = [step for step in ordered if step <= self.stable_end]
        return {*ordered[-self.newest :], *by_division, *stable[-1:]}


def save(run: Path, step: int, state: dict[str, Any], keep: Retention) -> Path:
    """Write the checkpoint of `step` and remove those that `keep` lets go.

    Raises:
        EnlaceError: it could not be written (disk full…); the older checkpoints are still there.
    """
    final = folder_of(run, step)
    temporary = run / f"{final.name}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with (temporary / "state.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        digest, size = _digest(temporary / "state.pt")
        write_atomic(temporary / "manifest.json", json.dumps({"sha256": digest, "bytes": size}).encode())
        if final.exists():  # saved again after a resume from an older one: the same bytes, or a damaged copy
            shutil.rmtree(final)
        temporary.rename(final)
        fsync_dir(run)
        # Those of later steps were damaged, or the run would not be here.
        tidy(run, keep, last_step=step)
    except (OSError, RuntimeError, EnlaceError) as error:  # torch.save turns a full disk into RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        raise EnlaceError(
            f"{final}: no se pudo guardar ({_why(error)}). Los puntos de guardado anteriores, si los hay, siguen ahí; "
            f"libera espacio y repite el comando para continuar."
        ) from error
    return final


def load_newest(run: Path, device: torch.device, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """State of the newest whole checkpoint of `run`, or None when there is none at all.

    Args:
        device: where the tensors go.
        warn: told, in Spanish, of each damaged checkpoint that was passed over.

    Raises:
        EnlaceError: there are checkpoints and every one is damaged.
    """
    folders = _folders(run)
    for folder in folders:
        if problem := damage(folder):
            warn(f"{folder} está dañado ({problem}); busco uno anterior.")
            continue
        state: dict[str, Any] = torch.load(folder / "state.pt", map_location=device, weights_only=True)
        return state
    if folders:
        raise EnlaceError(f"{run}: todos los puntos de guardado están dañados. Bórralo para empezar de nuevo.")
    return None


def tidy(run: Path, keep: Retention, last_step: int | None = None) -> None:
    """Remove what `keep` lets go, what comes after `last_step`, and what a kill left half written."""
    folders = {step_of(folder): folder for folder in _folders(run)}
    steps = {step for step in folders if last_step is None or step <= last_step}
    while stable := {step for step in steps if step <= keep.stable_end}:
        if stable <= keep.kept(steps) or damage(folders[max(stable)]) is None:
            break
        steps.remove(max(stable))  # its place is that of the good one before it
    kept = keep.kept(steps)
    for folder in [*(folders[step] for step in folders if step not in kept), *run.glob("step-*.tmp")]:
        shutil.rmtree(folder)


def steps_of(run: Path) -> list[int]:
    """Steps of the finished checkpoints of `run`, newest first; whether they are whole is not looked at."""
    return [step_of(folder) for folder in _folders(run)]


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of `step` is."""
    return run / f"step-{step:08d}"


def step_of(folder: Path) -> int:
    """Steps done when the checkpoint in `folder` was saved."""
    return int(folder.name.removeprefix("step-"))


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in Spanish; None when its bytes are those that were saved."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        digest, size = _digest(folder / "state.pt")
    except OSError as error:
        return f"no se puede leer {Path(error.filename or folder).name}: {reason(error)}"
    except ValueError:
        return "manifest.json no es JSON"
    if not isinstance(manifest, dict):
        return "manifest.json no es lo que se guardó"
    if size != manifest.get("bytes"):
        return f"state.pt tiene {size} bytes y se guardaron {manifest.get('bytes')}"
    if digest != manifest.get("sha256"):
        return "state.pt no es lo que se guardó: su sha256 no coincide"
    return None


def _why(error: Exception) -> str:
    if isinstance(error, RuntimeError):  # torch's, in English and without the number of the error
        return "falló la escritura; ¿disco lleno?"
    return reason(error) if isinstance(error, OSError) else str(error)


def _folders(run: Path) -> list[Path]:
    """Finished checkpoint folders, newest first."""
    return sorted(
        (p for p in run.glob("step-*") if _FOLDER.fullmatch(p.name) and p.is_dir()), key=step_of, reverse=True
    )


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
