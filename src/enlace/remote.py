"""A training run seen from outside its process: who trains it, how to stop it, and what of it to bring home.

Read from the files that the trainer writes (checkpoints, the lock); nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.durable import write_atomic

_LARGE = 1 << 20  # bytes


@dataclass(frozen=True)
class Card:
    """What nvidia-smi says of one card."""

    name: str
    used_gib: float
    total_gib: float
    celsius: str
    busy_percent: str


def newest_run(runs: Path) -> Path | None:
    """The run in the folder `runs` that took its last step (or its lock) last; None when there is none."""
    found = [
        (path.stat().st_mtime, run)
        for run in _runs(runs)
        for path in (run / "log.jsonl", run / ".lock")
        if path.exists()
    ]
    return max(found)[1] if found else None


def trainer_of(run: Path) -> int | None:
    """Number of the process that is training `run`; None when none is.

    The one whose number is in the lock file, if it has that file open (Linux; of this user). The lock itself is not
    tried: held for that instant, it would turn away a trainer that is just starting.
    """
    lock = run / ".lock"
    with suppress(OSError, ValueError):  # no lock, an empty one, no such process any more, another user's
        pid = int(lock.read_bytes())
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if descriptor.readlink() == lock.resolve():
                    return pid
    return None


def stop(run: Path, wait: Callable[[float], None] = time.sleep, max_wait: float = 900.0) -> int | None:
    """Ask the process that trains `run` to save and end, and wait until it has.

    Of several that train together it is the first, and they all agree after each step on whether one was asked.

    Returns:
        The step of the newest checkpoint; None when it was stopped before there was any.

    Raises:
        EnlaceError: it still trains after `max_wait` seconds.
    """
    pid = trainer_of(run)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        waited = 0.0
        while trainer_of(run) == pid:
            if waited >= max_wait:
                raise EnlaceError(
                    f"El proceso {pid} no ha acabado en {max_wait:.0f} s. Repite la orden para esperar más."
                )
            wait(0.2)
            waited += 0.2
    return saved(run)


def saved(run: Path) -> int | None:
    """Step of the newest checkpoint of `run`; None when there is none."""
    newest = checkpoints(run)[:1]
    return int(newest[0].name.removeprefix("step-")) if newest else None


def checkpoints(run: Path) -> list[Path]:
    """Finished checkpoints of `run`, newest first."""
    return sorted((p for p in run.glob("step-*") if p.is_dir() and p.suffix != ".tmp"), reverse=True)


def pack(root: Path, runs: Path, out: Path, *, results: bool) -> int:
    """Lay out in `out` what there is to bring home, as a picture that training on does not change.

        runs/<fingerprint>/        the newest checkpoint of the newest run, its log and marks
        project/                   with `results`: the model, its card, the reports, and what git says changed here
        SHA256SUMS                 of all of it, for `sha256sum -c`

    Returns:
        How many files there are.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if run := newest_run(runs):
        newest = checkpoints(run)[:1]  # before the log, which must reach at least as far
        for path in [*(p for folder in newest for p in sorted(folder.iterdir())), *_marks(run)]:
            _place(path, out / "runs" / run.name / path.relative_to(run))
        log = run / "log.jsonl"
        if newest and log.exists():  # copied, since the trainer writes on
            shutil.copy2(log, out / "runs" / run.name / log.name)
    if results:
        for name in [
            *_git(root, "diff", "--name-only", "HEAD"),
            *_git(root, "ls-files", "--others", "models", "reports"),
        ]:
            if (root / name).is_file():
                _place(root / name, out / "project" / name)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    sums = "".join(f"{_sha256(path)}  {path.relative_to(out)}\n" for path in files)
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")
    return len(files)


def set_params(path: Path, values: Mapping[str, Any]) -> None:
    """Write `values`, by dotted key, into the YAML file at `path`; its comments and its other lines stay."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 10_000
    content = yaml.load(path.read_text(encoding="utf-8"))
    for dotted, value in values.items():
        *sections, last = dotted.split(".")
        section = content
        for name in sections:
            section = section[name]
        section[last] = value
    text = io.StringIO()
    yaml.dump(content, text)
    write_atomic(path, text.getvalue().encode())


def cards() -> list[Card]:
    """The NVIDIA cards of this machine; none where nvidia-smi is missing or fails."""
    fields = "name,memory.used,memory.total,temperature.gpu,utilization.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[field.strip() for field in line.split(",")] for line in out.splitlines() if line.count(",") == 4]
    return [Card(name, float(used) / 1024, float(total) / 1024, heat, busy) for name, used, total, heat, busy in rows]


def _runs(runs: Path) -> list[Path]:
    return [path for path in runs.glob("*") if path.is_dir() and path.suffix != ".tmp"]


def _marks(run: Path) -> list[Path]:
    return [
        p for p in sorted(run.iterdir()) if p.is_file() and p.suffix != ".tmp" and p.name not in (".lock", "log.jsonl")
    ]


def _place(path: Path, to: Path) -> None:
    """A hard link of a large file (those are never rewritten in place), a copy of a small one."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.stat().st_size >= _LARGE:
        with suppress(OSError):  # another file system
            os.link(path, to)
            return
    shutil.copy2(path, to)


def _git(root: Path, *arguments: str) -> list[str]:
    out = subprocess.run(["git", *arguments, "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in out.split("\0") if name]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
