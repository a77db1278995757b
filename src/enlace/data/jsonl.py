"""JSON Lines, read so that every fault has a place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from enlace import EnlaceError
from enlace.data.faults import Faults
from enlace.durable import reason

BOM = b"\xef\xbb\xbf"
MAX_LINE = 32 * 2**20  # bytes; a longer one is a dump without line breaks, and would fill the memory several times over


def json_lines(path: Path, made_by: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a .jsonl file, each with its place ("file:line") for messages; blank lines are skipped.

    `made_by` is the stage that writes the file, for whoever lacks it. Raises EnlaceError at the first fault.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        way_out = f"; lo hace `dvc repro {made_by}`" if made_by else ""
        raise EnlaceError(f"{path}: no se puede leer ({reason(error)}){way_out}") from error
    with file:
        yield from json_records(file, str(path), Faults())


def json_records(file: BinaryIO, name: str, faults: Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same out of an open file; what cannot be read goes to `faults`.

    Lines end at the byte 0x0A only: a text may contain U+2028 or U+0085, which `str.splitlines` would cut at.
    """
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        where = f"{name}:{number}"
        if len(line) > MAX_LINE:
            while not line.endswith(b"\n") and (line := file.readline(MAX_LINE)):
                pass
            faults.add(where, f"la línea pasa de {MAX_LINE // 2**20} MB; pártela en documentos más cortos")
            continue
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            faults.add(where, "no es UTF-8; guarda el archivo en UTF-8")
        except (ValueError, RecursionError) as error:
            column = f" (columna {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
            faults.add(where, f"no es JSON válido{column}; corrige o quita esa línea")
        else:
            if isinstance(record, dict):
                yield where, record
            else:
                faults.add(where, "se esperaba un objeto JSON {...} en cada línea")
