"""Append-only files of JSON Lines, one writer each: what was committed stays, what a power cut tore is set aside."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from enlace.data.distill.errors import DistillError
from enlace.durable import fsync_dir, reason

Record = dict[str, Any]


def read_records(path: Path, having: bytes = b"") -> Iterator[Record]:
    """The JSON objects of an append-only file; none when it does not exist. Lines without `having` are skipped.

    A last line without its end is an append that a power cut tore: it was never committed and is ignored. Any other
    bad line is damage, and raises DistillError with ``path:line:``.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            if having not in line:
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DistillError(f"{path}:{number}: línea dañada. Recupera el archivo de una copia.") from error
            if not isinstance(record, dict):
                raise DistillError(f"{path}:{number}: se esperaba un objeto JSON. Recupera el archivo de una copia.")
            yield record


_FIRST_ID = re.compile(rb'\{"custom_id": ?"([^"\\]+)"')


def read_ids(path: Path) -> Iterator[str]:
    """The `custom_id` of each line of a file that this package wrote."""
    return (id for id, _ in id_offsets(path))


def id_offsets(path: Path) -> Iterator[tuple[str, int]]:
    """`read_ids`, with the byte at which each line begins.

    The id comes first in a line, and the rest, which may be long, need not be read as JSON.
    """
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                found = _FIRST_ID.match(line)
                if not found:
                    raise DistillError(f"{path}: línea dañada. Rehazlo, que no cuesta nada: enlace distill export")
                yield found[1].decode(), offset
            offset += len(line)


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add lines durably. A torn last line is moved aside to `<path>.torn` first, so that nothing is glued to it."""
    records = iter(records)
    first = next(records, None)
    if first is None:
        return
    with writing(path):
        with path.open("a+b") as file:
            torn = _torn_tail(file.fileno())
            if torn:
                with path.with_name(path.name + ".torn").open("ab") as aside:
                    aside.write(torn + b"\n")
                file.truncate(file.seek(0, os.SEEK_END) - len(torn))
            file.write(record_line(first))
            file.writelines(map(record_line, records))
            file.flush()
            os.fsync(file.fileno())
        fsync_dir(path.parent)


def record_line(record: Record) -> bytes:
    """One line of JSON; a lone half of a surrogate pair, which UTF-8 cannot hold, is written as its escape."""
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record).encode() + b"\n"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk refuses, as a DistillError that names `path`."""
    try:
        yield
    except OSError as error:
        raise DistillError(f"{path}: no se puede escribir ({reason(error)}). Nada se ha perdido: repite.") from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file written beside `path` that takes its place, whole and synced, when nothing fails."""
    part = path.with_name(f".{path.name}.part")
    try:
        with writing(path), part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with writing(path):
            part.replace(path)
            fsync_dir(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _torn_tail(descriptor: int) -> bytes:
    """What follows the last newline of an open file."""
    end = os.fstat(descriptor).st_size
    tail = b""
    while end > 0 and b"\n" not in tail:
        start = max(0, end - 65536)
        tail = os.pread(descriptor, end - start, start) + tail
        end = start
    return tail[tail.rfind(b"\n") + 1 :]
