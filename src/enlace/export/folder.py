"""A folder, or a file made by somebody else's writer, put in its place whole: never half of it, whatever happens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from enlace import EnlaceError
from enlace.durable import fsync_dir, reason


@contextmanager
def in_place(target: Path, *, force: bool, replaceable: str) -> Iterator[Path]:
    """Gives a path beside `target` to write to; at the end of the `with` what is there becomes `target`.

    A kill leaves at most a hidden `.<name>.tmp` beside it, which the next time removes.

    Args:
        force: replace what is in `target`.
        replaceable: file that marks a folder as one that may be replaced; so that no slip deletes a folder of photos.

    Raises:
        EnlaceError: there is something in `target` and `force` is off, or it is no export; or it cannot be written.
    """
    target = target.absolute()
    temporary, old = (target.with_name(f".{target.name}.{end}") for end in ("tmp", "old"))
    try:
        _check(target, force, replaceable)
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        yield temporary
        _sync(temporary)
        if target.is_dir() and any(target.iterdir()):  # a rename replaces a file or an empty folder, and nothing else
            _remove(old)
            target.rename(old)
        temporary.rename(target)
        fsync_dir(target.parent)
        _remove(old)
    except OSError as error:
        raise EnlaceError(f"{target}: no se puede escribir ({reason(error)}).") from error
    finally:
        with suppress(OSError):
            _remove(temporary)


def _check(target: Path, force: bool, replaceable: str) -> None:
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not force:
        raise EnlaceError(f"{target}: ya existe. Elige otro sitio, o reemplázalo con --force.")
    if target.is_dir() and not (target / replaceable).is_file():
        raise EnlaceError(f"{target}: es una carpeta con otras cosas; no se reemplaza. Elige otro sitio.")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    for part in [path, *path.rglob("*")] if path.is_dir() else [path]:
        fsync_dir(part)
