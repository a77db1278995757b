"""The records of a run, one JSON object a line; cut back to the checkpoint when a run resumes."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enlace import EnlaceError
from enlace.durable import reason, write_atomic

Record = dict[str, Any]


class RunLog:
    """The log file of a run; what is appended becomes durable by `sync`, before each checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Record) -> None:
        """Add one record; not yet durable."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise EnlaceError(
                f"{self.path}: no se puede escribir ({reason(error)}). Arréglalo y repite el comando para continuar."
            ) from error

    def cut(self, step: int) -> None:
        """Keep the records of steps before `step`; a torn last line goes too."""
        if self.path.exists():
            write_atomic(self.path, self.before(step))

    def before(self, step: int) -> bytes:
        """The lines of steps before `step`."""
        return b"".join(line + b"\n" for line in self._lines() if _step_of(line) < step)

    def sync(self) -> None:
        """Make what was appended durable."""
        if self.path.exists():
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """All whole records, by step; none where there is no log yet."""
        return [json.loads(line) for line in self._lines() if _step_of(line) < math.inf]

    def _lines(self) -> list[bytes]:
        return [line for line in self.path.read_bytes().split(b"\n") if line] if self.path.exists() else []


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # torn by a power cut: its step will be done again


def records_csv(records: Sequence[Record]) -> bytes:
    """The log as CSV for `dvc plots`; a column that a record lacks stays empty."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()
