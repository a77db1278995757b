"""From raw answers to results, errors and superseded ones: a pure function of what is on disk, written anew each time.

Nothing is held in memory but where the answer of each request lies, so the answers may be larger than the memory. The
order is that of the batches and of the requests in each, whatever order the answers came in: the same raw answers give
the same bytes.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from enlace.data.distill.batches import read_json, write_json
from enlace.data.distill.errors import DistillError
from enlace.data.distill.job import Trabajo
from enlace.data.distill.judge import failure, is_good, judge
from enlace.data.distill.records import Record, read_ids, read_records, record_line, replacing

_MISSING = -2  # even, as an answer that is not good
_KEPT = -1
_STRIDE = 1 << 20  # above the most requests of a batch

ReadLine = Callable[[bytes], Record]


@dataclass(frozen=True)
class Derived:
    """What results and errors hold: how many lines, and the batches they come from."""

    results: int
    errors: int
    batches: frozenset[str]
    intact: bool  # the files are as they were written
    fresh_errors: int = 0  # of batches that were not in before
    damaged: dict[str, str] = field(default_factory=dict)  # batches whose raw answers cannot be read, and why


def read_derived(trabajo: Trabajo) -> Derived:
    """What was derived last, as far as it can be told."""
    if trabajo.derivado_path.exists():
        noted = read_json(trabajo.derivado_path)
        intact = noted.get("bytes") == [_size(path) for path in _paths(trabajo)]
        return Derived(noted["results"], noted["errors"], frozenset(noted["batches"]), intact)
    ids = [set(read_ids(path)) for path in (trabajo.resultados_path, trabajo.errores_path)]
    batches = {row["batch_id"] for rows in (trabajo.leer_resultados(), trabajo.leer_errores()) for row in rows}
    return Derived(len(ids[0]), len(ids[1]), frozenset(batches), intact=False)


def derive(trabajo: Trabajo, read_line: ReadLine) -> Derived:
    """Write results, errors and superseded anew. The lock is held.

    What came from a batch whose raw answers are no longer there, or cannot be read, stays as it was written.

    Args:
        read_line: from a line of a raw file to a row of the protocol.
    """
    before = read_derived(trabajo)
    sent = trabajo.leer_lotes()
    schemas = trabajo.leer_esquemas()
    lotes: list[Record] = []
    places: list[array[int]] = []  # of each batch, where the answers of its requests lie
    damaged: dict[str, str] = {}
    for lote in sent:
        if lote["recogido"]:
            try:
                places.append(_index(trabajo, lote, schemas, read_line))
                lotes.append(lote)
            except DistillError as error:
                damaged[lote["id"]] = str(error)
    orphans = before.batches - {lote["id"] for lote in lotes}
    kept = {row["custom_id"]: which for which, row in _rows_of(trabajo, orphans) if which < 2}

    # Of each request, the attempt that counts: its batch and its place there, in one number, since there may be many.
    final: dict[str, int] = {id: _KEPT for id, which in kept.items() if which == 0}
    superseded: list[int] = []
    for n, lote in enumerate(lotes):
        for i, id in enumerate(lote["custom_ids"]):
            old = final.get(id)
            if old is None:
                final[id] = n * _STRIDE + i
            elif old == _KEPT or places[n][i] == _MISSING or places[old // _STRIDE][old % _STRIDE] & 1:
                superseded.append(n * _STRIDE + i)
            else:
                superseded.append(old)
                final[id] = n * _STRIDE + i

    failed = {id for n, lote in enumerate(lotes) for i, id in enumerate(lote["custom_ids"]) if places[n][i] & 1 == 0}
    attempts = Counter(id for lote in sent for id in lote["custom_ids"] if id in failed)
    fresh_errors = 0
    counts = [0, 0, 0]
    with ExitStack() as stack:
        files = [stack.enter_context(replacing(path)) for path in _paths(trabajo)]

        def put(which: int, row: Record) -> None:
            files[which].write(record_line(row))
            counts[which] += 1

        for which, row in _rows_of(trabajo, orphans):
            if which == 1 and row["custom_id"] in final:  # a later attempt took its place
                which = 2
            if which < 2 or "usage" in row:
                put(which, row)
        for n, lote in enumerate(lotes):
            with trabajo.crudo_path(lote["id"]).open("rb") as raw:
                for i, id in enumerate(lote["custom_ids"]):
                    if final[id] == n * _STRIDE + i:
                        row = _outcome(lote["id"], id, places[n][i], raw, read_line, schemas, attempts)
                        put(0 if is_good(row) else 1, row)
                        fresh_errors += not is_good(row) and lote["id"] not in before.batches
        for n, i in (divmod(attempt, _STRIDE) for attempt in sorted(superseded)):
            with trabajo.crudo_path(lotes[n]["id"]).open("rb") as raw:
                id = lotes[n]["custom_ids"][i]
                row = _outcome(lotes[n]["id"], id, places[n][i], raw, read_line, schemas, attempts)
                if "usage" in row:
                    put(2, row)
    batches = frozenset(lote["id"] for lote in lotes) | orphans
    sizes = [_size(path) for path in _paths(trabajo)]
    noted = {"results": counts[0], "errors": counts[1], "batches": sorted(batches), "bytes": sizes}
    write_json(trabajo.derivado_path, noted)
    return Derived(counts[0], counts[1], batches, True, fresh_errors, damaged)


def _index(trabajo: Trabajo, lote: Record, schemas: dict[str, Record], read_line: ReadLine) -> array[int]:
    """For each request of a batch, where its answer begins in the raw file: the first good one, else the first one.

    Twice the byte, plus one if it is good; `_MISSING` if it did not come.
    """
    at = {id: i for i, id in enumerate(lote["custom_ids"])}
    places = array("q", [_MISSING]) * len(at)
    for offset, row in raw_rows(trabajo, lote["id"], read_line):
        id = row.get("custom_id")
        i = at.get(id) if isinstance(id, str) else None
        if i is not None and places[i] & 1 == 0:
            good = is_good(judge(row, schemas.get(str(id))))
            if good or places[i] == _MISSING:
                places[i] = offset * 2 + good
    return places


def _outcome(
    batch_id: str,
    id: str,
    place: int,
    raw: IO[bytes],
    read_line: ReadLine,
    schemas: dict[str, Record],
    attempts: Counter[str],
) -> Record:
    """The answer of one request, judged, as it is written."""
    if place == _MISSING:
        found = failure("missing")
    else:
        raw.seek(place // 2)
        found = judge(read_line(raw.readline()), schemas.get(id))
    head: Record = {"custom_id": id, "batch_id": batch_id}
    return head | ({} if is_good(found) else {"attempts": attempts[id]}) | found


def raw_rows(trabajo: Trabajo, batch_id: str, read_line: ReadLine) -> Iterator[tuple[int, Record]]:
    """The rows of a raw file, with the byte at which each begins; raises DistillError where it is damaged."""
    path = trabajo.crudo_path(batch_id)
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = read_line(line)
            except ValueError as error:
                raise DistillError(
                    f"{path}:{number}: línea dañada. Recupera el archivo de una copia, o bórralo y repite collect: "
                    "mientras el proveedor lo guarde se descarga otra vez, gratis."
                ) from error
            yield offset, row
            offset += len(line)


def plain_line(line: bytes) -> Record:
    """A raw line of a client that speaks the protocol only; raises ValueError."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("no es un objeto")
    return row


def _paths(trabajo: Trabajo) -> tuple[Path, Path, Path]:
    return trabajo.resultados_path, trabajo.errores_path, trabajo.superados_path


def _rows_of(trabajo: Trabajo, batches: frozenset[str]) -> Iterator[tuple[int, Record]]:
    """What was derived from some batches, with the number of its file."""
    if batches:
        for which, path in enumerate(_paths(trabajo)):
            yield from ((which, row) for row in read_records(path) if row["batch_id"] in batches)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
