"""Files that survive a power cut, and locks that die with their holder.

A file is either the old one or the new one, whole: written to a temporary name beside it, synced, renamed, and the
folder synced too, since a rename is a change of the folder. On a network file system that is as good as the server's
promises: after a power cut the newest file may be missing, and a lock may hold among the processes of one machine only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from enlace import EnlaceError

_REASONS = {
    errno.ENOENT: "no existe",
    errno.EACCES: "sin permiso",
    errno.EPERM: "sin permiso",
    errno.ENOSPC: "disco lleno",
    errno.EDQUOT: "cuota de disco agotada",
    errno.EFBIG: "archivo mayor de lo que permite el sistema",
    errno.EISDIR: "es una carpeta",
    errno.ENOTDIR: "no es una carpeta",
    errno.EMFILE: "demasiados archivos abiertos",
    errno.ENFILE: "demasiados archivos abiertos",
    errno.EROFS: "sistema de archivos de solo lectura",
    errno.EEXIST: "ya existe",
    errno.ENOTEMPTY: "la carpeta no está vacía",
    errno.ENAMETOOLONG: "nombre demasiado largo",
    errno.ELOOP: "enlaces que dan vueltas",
    errno.EBUSY: "está en uso",
    errno.EIO: "error de lectura o escritura",
    errno.ESTALE: "el disco de red ya no lo tiene",
}


def reason(error: OSError) -> str:
    """What went wrong, in Spanish where it is common: for messages that name the file themselves."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` in `path` at once and durably, creating its folder.

    Raises:
        EnlaceError: it could not be written (disk full, no permission...); what was in `path` is still there, whole.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_dir(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise EnlaceError(f"{path}: no se puede escribir ({reason(error)}). Lo que había antes sigue ahí.") from error


def fsync_dir(path: Path) -> None:
    """Make the names in the folder `path` durable: call it after creating, renaming or deleting a file in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Hold the lock file `path` for the length of the `with`.

    The kernel frees the lock when its holder dies, however it dies, so there are no stale locks: the file stays, and
    the number in it only says who had it last.

    Args:
        path: the lock file; its folder is created.
        message: what to tell the person when somebody else has it.

    Raises:
        EnlaceError: `message` and the number of the process that has it; or the lock could not be taken at all, in
            which case nothing may run unlocked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise EnlaceError(f"{path}: no se puede abrir el cerrojo ({reason(error)}).") from error
    with file:
        try:
            _take(file)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().decode("ascii", "replace").strip() or "desconocido"
            raise EnlaceError(f"{message} (lo tiene el proceso {holder})") from None
        except OSError as error:
            raise EnlaceError(f"{path}: no se puede tomar el cerrojo ({reason(error)}).") from error
        with suppress(OSError):  # a full disk takes no number, but it locks
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        yield


def _take(file: IO[bytes]) -> None:
    """Lock `file`; BlockingIOError once it was found taken for a while, since `is_locked` takes it for an instant."""
    for pause in (0.01, 0.02, 0.04, 0.08, 0.16):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(pause)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock file `path` at this moment."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
