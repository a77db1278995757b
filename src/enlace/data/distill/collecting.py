"""Wait for the batches of a job, fetch their answers, and pair each with its request.

Killed at any point and run again, it converges: nothing that was answered is lost or written twice. One batch that
cannot be collected does not keep the others from it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enlace.data.distill.client import Cliente
from enlace.data.distill.errors import DistillError
from enlace.data.distill.job import Trabajo
from enlace.data.distill.judge import judge
from enlace.data.distill.records import Record, append_records, read_records, record_line, writing
from enlace.data.distill.requests import Peticion
from enlace.data.distill.sending import named
from enlace.durable import fsync_dir

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

# A download cut between two lines looks complete; only counting shows it.
_DOWNLOADS = 3
_NO_COUNTS = dict.fromkeys(("succeeded", "errored", "processing", "canceled", "expired"), 0)


class _Unanswered(Exception):
    """The teacher could not be asked this time; asked later, it may answer."""


def collect(
    trabajo: Trabajo,
    cliente: Cliente,
    config: DistillConfig,
    *,
    ahora: Callable[[], float] = time.time,
    dormir: Callable[[float], object] = time.sleep,
    peticiones: Iterable[Peticion] | None = None,
) -> dict[str, int]:
    """Wait for every batch, fetch its answers and write each to results or errors.

    A teacher that cannot be reached is asked again until `config.max_wait_hours`; a failure that the teacher explains
    (a DistillError) ends the wait for that batch.

    Args:
        ahora: gives the time in seconds.
        dormir: waits some seconds.
        peticiones: wait only for the batches that hold any of these. The others are collected if they have ended, and
            their failures are told, not raised.

    Returns:
        ``ok`` and ``error``: answers written now; ``ya_estaban``: requests whose outcome was already written.

    Raises:
        DistillError: there are no batches, `config.max_wait_hours` passed, or some batches could not be collected; it
            names them. What was fetched is kept; running again goes on from there.
    """
    with trabajo.bloqueo():
        lotes = trabajo.leer_lotes()
        escrito = _Written.read(trabajo)
        ya_estaban = len(escrito.results | {custom_id for _, custom_id, _ in escrito.errors})
        if not lotes and not ya_estaban:
            raise DistillError(f"{trabajo.carpeta}: no hay lotes enviados. Envía primero las peticiones (`submit`).")
        ids = None if peticiones is None else {peticion.custom_id for peticion in peticiones}
        needed = {lote["id"] for lote in lotes if ids is None or not ids.isdisjoint(lote["custom_ids"])}
        abiertos = {lote["id"]: lote for lote in lotes if not (lote["recogido"] and escrito.covers(lote))}
        turno = _Round(trabajo, cliente, escrito, abiertos)
        limite = ahora() + config.max_wait_hours * 3600
        while True:
            turno.run()
            waiting = len(needed & abiertos.keys())
            if not waiting or ahora() >= limite:
                break
            _tell(f"{waiting} lotes en marcha; miro otra vez en {config.poll_interval_seconds:g} s")
            dormir(config.poll_interval_seconds)
        for id in turno.failed.keys() - needed:
            _tell(f"aviso: no se pudo recoger el lote {id}, que ahora no hace falta: {turno.failed[id]}")
        turno.require_all(needed, config)
        return {"ok": escrito.ok, "error": escrito.error, "ya_estaban": ya_estaban}


def status(trabajo: Trabajo, cliente: Cliente) -> list[Record]:
    """How each batch is doing, oldest first: ``id``, ``peticiones``, ``recogido`` and what `cliente.estado` says.

    Of a batch that cannot be asked about, ``processing_status`` is "desconocido" and ``error`` says why.
    """
    return [
        {"id": lote["id"], "peticiones": len(lote["custom_ids"]), "recogido": lote["recogido"]}
        | _state(cliente, lote["id"])
        for lote in trabajo.leer_lotes()
    ]


def _state(cliente: Cliente, batch_id: str) -> Record:
    try:
        return _ask(cliente, batch_id)
    except (DistillError, _Unanswered) as error:
        return {"processing_status": "desconocido", "error": str(error), **_NO_COUNTS}


@dataclass
class _Written:
    """The outcomes on disk, and how many of them this run has added."""

    results: set[str]
    errors: set[tuple[str, str, str]]
    schemas: dict[str, Record]
    ok: int = 0
    error: int = 0

    @classmethod
    def read(cls, trabajo: Trabajo) -> _Written:
        results = {row["custom_id"] for row in trabajo.leer_resultados()}
        return cls(results, set(map(_key, trabajo.leer_errores())), trabajo.leer_esquemas())

    def covers(self, lote: Record) -> bool:
        failed = {custom_id for batch_id, custom_id, _ in self.errors if batch_id == lote["id"]}
        return set(lote["custom_ids"]) <= self.results | failed


def _key(error: Record) -> tuple[str, str, str]:
    return error["batch_id"], error["custom_id"], error["class"]


class _Round:
    """Goes over the open batches, again and again."""

    def __init__(self, trabajo: Trabajo, cliente: Cliente, escrito: _Written, abiertos: dict[str, Record]) -> None:
        """`abiertos`, by id, loses those that end and those that fail for good."""
        self._trabajo, self._cliente, self._escrito, self._open = trabajo, cliente, escrito, abiertos
        self.failed: dict[str, str] = {}
        self._causes: dict[str, str] = {}
        self._told: set[type] = set()

    def run(self) -> None:
        """Ask about each batch once, and write the answers of those that ended."""
        for id, lote in list(self._open.items()):
            try:
                if _fetch(self._trabajo, lote, self._cliente, self._escrito):
                    del self._open[id]
                self._causes.pop(id, None)
            except _Unanswered as error:
                self._causes[id] = str(error)
                if type(error.__cause__) not in self._told:
                    self._told.add(type(error.__cause__))
                    _tell(f"aviso: {id}: el profesor no contesta ({error}); sigo preguntando")
            except DistillError as error:
                self.failed[id] = str(error)
                del self._open[id]

    def require_all(self, needed: set[str], config: DistillConfig) -> None:
        """Raise DistillError if a batch of `needed` is still open or failed."""
        failed = [f"{id} ({self.failed[id]})" for id in self.failed if id in needed]
        waiting = [id for id in self._open if id in needed]
        said = []
        if failed:
            said.append(f"No se pudieron recoger {len(failed)} lotes: {'; '.join(failed)}.")
        if waiting:
            causes = [f"{id}: {self._causes[id]}" for id in waiting if id in self._causes]
            said.append(
                f"{len(waiting)} lotes siguen en marcha tras max_wait_hours={config.max_wait_hours:g} horas"
                + (f" (el profesor no contestaba: {causes[-1]})." if causes else ".")
            )
        if said:
            said.append("No se ha perdido nada ni se paga dos veces: repite la misma orden más tarde.")
            raise DistillError(" ".join(said))


def _fetch(trabajo: Trabajo, lote: Record, cliente: Cliente, escrito: _Written) -> bool:
    """Whether the batch has ended; if so, its answers are on disk."""
    if not lote["recogido"]:
        if _ask(cliente, lote["id"]).get("processing_status") != "ended":
            return False
        _download(trabajo, lote, cliente)
    _account(trabajo, lote, escrito)
    return True


def _ask(cliente: Cliente, batch_id: str) -> dict[str, Any]:
    try:
        return cliente.estado(batch_id)
    except DistillError:
        raise
    except Exception as error:
        raise _Unanswered(named(error)) from error


def _rows(cliente: Cliente, batch_id: str) -> Iterator[Record]:
    try:
        yield from cliente.resultados(batch_id)
    except DistillError:
        raise
    except Exception as error:
        raise _Unanswered(named(error)) from error


def _download(trabajo: Trabajo, lote: Record, cliente: Cliente) -> None:
    """Put the answers of a batch in `raw/<id>.jsonl`, once they are complete; ask again for those that did not come."""
    raw = trabajo.crudo_path(lote["id"])
    part = raw.with_suffix(".part")
    missing = set(lote["custom_ids"])
    with writing(part):
        part.parent.mkdir(exist_ok=True)
        with part.open("wb") as file:
            for attempt in range(_DOWNLOADS):
                for row in _rows(cliente, lote["id"]):
                    if attempt == 0 or row.get("custom_id") in missing:
                        file.write(record_line(row))
                    missing.discard(row.get("custom_id"))
                if not missing:
                    break
            file.flush()
            os.fsync(file.fileno())
        part.replace(raw)
        fsync_dir(raw.parent)


def _account(trabajo: Trabajo, lote: Record, escrito: _Written) -> None:
    """Judge a fetched batch and write the outcomes that are not written yet."""
    raw = trabajo.crudo_path(lote["id"])
    good, bad, strange = judge(lote["id"], lote["custom_ids"], read_records(raw), escrito.schemas)
    good = [row for row in good if row["custom_id"] not in escrito.results]
    bad = [row for row in bad if row["custom_id"] not in escrito.results and _key(row) not in escrito.errors]
    append_records(trabajo.resultados_path, good)
    append_records(trabajo.errores_path, bad)
    escrito.results.update(row["custom_id"] for row in good)
    escrito.errors.update(map(_key, bad))
    escrito.ok += len(good)
    escrito.error += len(bad)
    if strange:
        _tell(f"aviso: {raw}: {strange} líneas repetidas o de otras peticiones; no se usan")


def _tell(message: str) -> None:
    from enlace.console import say  # rich takes a while to import, and most uses of this package say nothing

    say(message)
