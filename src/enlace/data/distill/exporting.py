"""From a job to the conversations that a model learns from, in the order that they were asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record, id_offsets, record_line, replacing
from enlace.data.distill.requests import Peticion


@dataclass(frozen=True)
class Exported:
    """How many requests ended up where."""

    answered: int
    failed: int
    pending: int


def export(trabajo: Trabajo, peticiones: Iterable[Peticion], conversations: Path, errors: Path | None) -> Exported:
    """Write the answered requests to one file and the failed ones, with their class and reason, to another.

    The same requests and the same results give the same bytes, whatever order the answers came in. Only where each
    answer lies is held in memory.
    """
    at = dict(id_offsets(trabajo.resultados_path))
    failures = {row["custom_id"]: row for row in trabajo.leer_errores()}
    answered = failed = pending = 0
    with ExitStack() as stack:
        good = stack.enter_context(replacing(conversations))
        bad = None if errors is None else stack.enter_context(replacing(errors))
        results = stack.enter_context(trabajo.resultados_path.open("rb")) if at else None
        for peticion in peticiones:
            id = peticion.custom_id
            asked: Record = {"custom_id": id, "system": peticion.system, "user": peticion.user}
            if results is not None and id in at:
                results.seek(at[id])
                text = json.loads(results.readline())["text"]
                good.write(record_line(asked | {"assistant": text, "meta": peticion.meta}))
                answered += 1
            elif id in failures:
                why = {"class": failures[id]["class"], "reason": failures[id]["reason"]}
                if bad is not None:
                    bad.write(record_line(asked | why | {"meta": peticion.meta}))
                failed += 1
            else:
                pending += 1
    return Exported(answered, failed, pending)
