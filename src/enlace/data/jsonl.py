"""JSON Lines, read so that every fault has a place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.durable import reason

BOM = b"\xef\xbb\xbf"


def json_lines(path: Path, made_by: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a .jsonl file, each with its place ("file:line") for messages; blank lines are skipped.

    Lines end at the byte 0x0A only: a text may contain U+2028 or U+0085, which `str.splitlines` would cut at.
    `made_by` is the stage that writes the file, for whoever lacks it.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        way_out = f"; lo hace `dvc repro {made_by}`" if made_by else ""
        raise EnlaceError(f"{path}: no se puede leer ({reason(error)}){way_out}") from error
    with file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            if number == 1:
                line = line.removeprefix(BOM)
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise EnlaceError(f"{where}: no es UTF-8; guarda el archivo en UTF-8") from error
            except (ValueError, RecursionError) as error:
                column = f" (columna {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
                raise EnlaceError(f"{where}: no es JSON válido{column}; corrige o quita esa línea") from error
            if not isinstance(record, dict):
                raise EnlaceError(f"{where}: se esperaba un objeto JSON {{...}} en cada línea")
            yield where, record
