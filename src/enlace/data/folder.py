"""Folders that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enlace import EnlaceError
from enlace.durable import locked, reason


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place once the block ends well, synced to disk.

    If the block fails, `path` stays as it was and nothing half-written is left. What a killed run left behind is
    mended or swept away by the next one. Beside `path` stays a lock file, `<path>.lock.tmp`.

    Raises:
        EnlaceError: it could not be written (disk full, no permission...), or somebody else is writing it. Other
            errors of the block are the block's own.
    """
    temporary, aside, lock = (path.with_name(f"{path.name}.{end}") for end in ("tmp", "old.tmp", "lock.tmp"))
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, f"{path}: otro proceso lo está escribiendo; espera a que acabe"):
        try:
            with _explained(path):
                _mend(path, temporary, aside)
                temporary.mkdir()
            with _explained(path, errno.ENOSPC, errno.EDQUOT):
                yield temporary
            with _explained(path):
                for entry in [*temporary.rglob("*"), temporary]:
                    _sync(entry)
                _swap(path, temporary, aside)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _mend(path: Path, temporary: Path, aside: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    if aside.exists():
        aside.rename(temporary if path.exists() else path)  # killed after or before the new one was in place
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(path: Path, temporary: Path, aside: Path) -> None:
    """Put `temporary` in the place of `path`, from where the old one steps aside: it cannot be renamed over.

    `aside` is a whole folder as long as it exists, so the old one is deleted under the temporary name.
    """
    if path.is_dir():
        path.rename(aside)
    try:
        temporary.rename(path)
    except OSError:
        if aside.exists():
            aside.rename(path)
        raise
    _sync(path.parent)
    if aside.exists():
        aside.rename(temporary)


@contextmanager
def _explained(path: Path, *numbers: int) -> Iterator[None]:
    """Say that `path` could not be written, for the errors of these numbers only if there are any."""
    try:
        yield
    except OSError as error:
        if numbers and error.errno not in numbers:
            raise
        raise EnlaceError(f"{path}: no se puede escribir ({reason(error)})") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
