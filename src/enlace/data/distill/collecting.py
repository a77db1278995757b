"""Wait for the batches of a job, fetch their answers, and pair each with its request.

Killed at any point and run again, it converges: nothing that was answered is lost or written twice. One batch that
cannot be collected does not keep the others from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from enlace.data.distill.client import Cliente, ConIdentidad, ConLineas
from enlace.data.distill.deriving import ReadLine, derive, plain_line, read_derived
from enlace.data.distill.downloading import Download, Unanswered
from enlace.data.distill.errors import DistillError, SigueEnMarcha
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record
from enlace.data.distill.requests import Peticion
from enlace.data.distill.telling import named, tell

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

_NO_COUNTS = dict.fromkeys(("succeeded", "errored", "processing", "canceled", "expired"), 0)
_DAY = 86400.0


def collect(
    trabajo: Trabajo,
    cliente: Cliente,
    config: DistillConfig,
    *,
    ahora: Callable[[], float] = time.time,
    dormir: Callable[[float], object] = time.sleep,
    peticiones: Iterable[Peticion] | None = None,
    refetch: bool = False,
) -> dict[str, int]:
    """Wait for every batch, fetch its answers and write each to results or errors.

    A teacher that cannot be reached is asked again until `config.max_wait_hours`; a failure that the teacher explains
    (a DistillError) ends the wait for that batch.

    Args:
        ahora: gives the time in seconds.
        dormir: waits some seconds.
        peticiones: wait only for the batches that hold any of these. The others are collected if they have ended, and
            their failures are told, not raised.
        refetch: fetch again the batches that lack answers.

    Returns:
        ``ok`` and ``error``: answers written now; ``ya_estaban``: requests whose outcome was already written.

    Raises:
        SigueEnMarcha: `config.max_wait_hours` passed.
        DistillError: there are no batches, the account is not that of the job, or some batches could not be collected;
            it names them. What was fetched is kept; running again goes on from there.
    """
    with trabajo.bloqueo():
        lotes = trabajo.leer_lotes()
        antes = read_derived(trabajo)
        if not lotes and not antes.results + antes.errors:
            raise DistillError(f"{trabajo.carpeta}: no hay lotes enviados. Envía primero las peticiones (`submit`).")
        ids = None if peticiones is None else {peticion.custom_id for peticion in peticiones}
        needed = {lote["id"] for lote in lotes if ids is None or not ids.isdisjoint(lote["custom_ids"])}
        again = _lacking(trabajo) if refetch else set()
        abiertos = {lote["id"]: lote["numero"] for lote in lotes if not lote["recogido"] or lote["id"] in again}
        aceptados = [lote["aceptado"] for lote in lotes if lote["id"] in abiertos and lote["aceptado"]]
        del lotes, ids  # many ids; the round reads those of a batch when it needs them
        if abiertos and isinstance(cliente, ConIdentidad):
            trabajo.exigir_identidad(cliente.cuenta())
        turno = _Round(trabajo, cliente, abiertos)
        try:
            _wait(turno, needed, config, ahora, dormir, aceptados)
        finally:
            recogidos = {lote["id"] for lote in trabajo.leer_lotes() if lote["recogido"]}
            despues = antes
            if turno.fetched or recogidos - antes.batches or (recogidos and not antes.intact):
                despues = derive(trabajo, line_reader(cliente))
                turno.failed |= despues.damaged
        for id in turno.failed.keys() - needed:
            tell(f"aviso: no se pudo recoger el lote {id}, que ahora no hace falta: {turno.failed[id]}")
        turno.require_all(needed, config)
        return {
            "ok": max(0, despues.results - antes.results),
            "error": despues.fresh_errors,
            "ya_estaban": antes.results + antes.errors,
        }


def rebuild(trabajo: Trabajo, cliente: Cliente) -> None:
    """Write results, errors and superseded anew from the raw answers, by the rules of now; asks the teacher nothing."""
    with trabajo.bloqueo():
        if any(lote["recogido"] for lote in trabajo.leer_lotes()):
            for id, why in derive(trabajo, line_reader(cliente)).damaged.items():
                raise DistillError(f"{id}: {why}")


def line_reader(cliente: Cliente) -> ReadLine:
    """How to read the raw files of a teacher."""
    return cliente.leer_linea if isinstance(cliente, ConLineas) else plain_line


def status(trabajo: Trabajo, cliente: Cliente) -> list[Record]:
    """How each batch is doing, oldest first: ``id``, ``peticiones``, ``recogido``, ``dias`` (in which its answers can
    still be fetched; None if the teacher sets no term) and what `cliente.estado` says.

    Of a batch that cannot be asked about, ``processing_status`` is "desconocido" and ``error`` says why.
    """
    return [
        {
            "id": lote["id"],
            "peticiones": len(lote["custom_ids"]),
            "recogido": lote["recogido"],
            "aceptado": lote["aceptado"],
            "dias": _days_left(cliente, lote["aceptado"]),
        }
        | _state(cliente, lote["id"])
        for lote in trabajo.leer_lotes()
    ]


def _days_left(cliente: Cliente, accepted: float | None) -> float | None:
    kept = getattr(cliente, "dias_que_guarda", None)
    return None if kept is None or accepted is None else round(kept - (time.time() - accepted) / _DAY, 1)


def _state(cliente: Cliente, batch_id: str) -> Record:
    try:
        return _ask(cliente, batch_id)
    except (DistillError, Unanswered) as error:
        return {"processing_status": "desconocido", "error": str(error), **_NO_COUNTS}


def _lacking(trabajo: Trabajo) -> set[str]:
    """The batches that answers are missing from."""
    return {row["batch_id"] for row in trabajo.leer_errores() if row["class"] == "missing"}


def _wait(
    turno: _Round,
    needed: set[str],
    config: DistillConfig,
    ahora: Callable[[], float],
    dormir: Callable[[float], object],
    aceptados: list[float],
) -> None:
    """Go over the batches until none that is needed is open, or the time is over."""
    from enlace.console import progress, say

    inicio = ahora()
    limite = inicio + config.max_wait_hours * 3600
    dias = [days for accepted in aceptados if (days := _days_left(turno.cliente, accepted)) is not None]
    term = f" · {min(dias):.0f} días de plazo" if dias else ""
    said = -1
    with progress("llevan {task.fields[age]}, límite {task.fields[left]} h{task.fields[term]}") as bar:
        task = bar.add_task("lotes recogidos", total=len(needed), age="0 min", left=0, term=term)
        while True:
            turno.run()
            waiting = len(needed & turno.open.keys())
            bar.update(task, completed=len(needed) - waiting)
            if not waiting or (now := ahora()) >= limite:
                return
            age = max(0.0, now - min(aceptados, default=now))
            bar.update(task, age=_span(age), left=round((limite - now) / 3600, 1))
            if waiting != said and not bar.console.is_terminal:
                said = waiting
                say(
                    f"{waiting} lotes en marcha; miro cada {config.poll_interval_seconds:g} s hasta "
                    f"max_wait_hours={config.max_wait_hours:g}"
                )
            dormir(config.poll_interval_seconds)


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


@dataclass
class _Round:
    """Goes over the open batches, again and again."""

    trabajo: Trabajo
    cliente: Cliente
    open: dict[str, int]  # the numbers of the batches, by id
    fetched: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    told: set[type] = field(default_factory=set)

    def run(self) -> None:
        """Ask about each batch once, and fetch the answers of those that ended; the others stay open or failed."""
        for id in list(self.open):
            try:
                if self._fetch(id):
                    del self.open[id]
                    self.fetched += 1
                self.causes.pop(id, None)
            except Unanswered as error:
                self.causes[id] = str(error)
                if type(error.__cause__) not in self.told:
                    self.told.add(type(error.__cause__))
                    tell(f"aviso: {id}: el profesor no contesta ({error}); sigo preguntando")
            except DistillError as error:
                self.failed[id] = str(error)
                del self.open[id]

    def require_all(self, needed: set[str], config: DistillConfig) -> None:
        """Raise DistillError if a batch of `needed` is still open or failed."""
        failed = [f"{id} ({self.failed[id]})" for id in self.failed if id in needed]
        waiting = [id for id in self.open if id in needed]
        said = []
        if failed:
            said.append(f"No se pudieron recoger {len(failed)} lotes: {'; '.join(failed)}.")
        if waiting:
            causes = [f"{id}: {self.causes[id]}" for id in waiting if id in self.causes]
            said.append(
                f"{len(waiting)} lotes siguen en marcha tras max_wait_hours={config.max_wait_hours:g} horas"
                + (f" (el profesor no contestaba: {causes[-1]})." if causes else ".")
            )
        if said:
            said.append("No se ha perdido nada ni se paga dos veces: repite la misma orden más tarde.")
            raise (DistillError if failed else SigueEnMarcha)(" ".join(said))

    def _fetch(self, id: str) -> bool:
        """Whether the batch has ended; if so, its answers are on disk."""
        state = _ask(self.cliente, id)
        if state.get("processing_status") != "ended":
            return False
        lote = self.trabajo.lotes.aceptado(self.open[id])
        Download(self.trabajo, lote, self.cliente).run(lost=bool(state.get("archivado")))
        return True


def _ask(cliente: Cliente, batch_id: str) -> dict[str, Any]:
    try:
        return cliente.estado(batch_id)
    except DistillError:
        raise
    except Exception as error:
        raise Unanswered(named(error)) from error
