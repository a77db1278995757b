"""Folders that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enlace import EnlaceError


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place once the block ends well, synced to disk.

    If the block fails, `path` stays as it was and nothing half-written is left. What a killed run left behind is
    swept away by the next one.

    Raises:
        EnlaceError: it could not be written (disk full, no permission...).
    """
    temporary = path.with_name(path.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for entry in [*temporary.rglob("*"), temporary]:
            _sync(entry)
        # A folder cannot be renamed over one that has files in it.
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise EnlaceError(f"{path}: no se puede escribir ({error.strerror})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
