"""Send the requests of a job in batches, wait, and pair each answer with its request.

Killed at any point and run again, it converges: nothing that was sent is sent again, nothing that was answered is
lost. The order of the writes is what makes it so; `job` describes the files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enlace.data.distill.client import Cliente
from enlace.data.distill.errors import DistillError, EnvioRechazado
from enlace.data.distill.job import Record, Trabajo, append_records, read_records, record_line
from enlace.data.distill.judge import judge
from enlace.data.distill.requests import Peticion
from enlace.durable import fsync_dir

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

# The batch API takes 256 MB. A smaller batch puts less in doubt if its answer is lost, and needs less memory.
_MAX_BATCH_BYTES = 64_000_000
# A download cut between two lines looks complete; only counting shows it.
_DOWNLOADS = 3


def submit(trabajo: Trabajo, peticiones: Iterable[Peticion], cliente: Cliente, config: DistillConfig) -> list[str]:
    """Send what was never sent, in batches of `config.requests_per_batch`; returns the ids of the batches sent.

    What has a result, is in a batch, or was answered with an error is not sent again.

    Raises:
        DistillError: a submission is in doubt (it may have been accepted and paid for), now or from an earlier run,
            and nothing more is sent until a person resolves it; or the teacher refused.
    """
    peticiones = list(peticiones)
    with trabajo.bloqueo():
        trabajo.anotar_peticiones(peticiones)
        _require_no_doubt(trabajo)
        pedidos = (
            {"custom_id": peticion.custom_id, "params": cliente.construir_params(peticion)}
            for peticion in trabajo.sin_enviar(peticiones)
        )
        return [_send(trabajo, lote, cliente) for lote in _batches(pedidos, config.requests_per_batch)]


def collect(
    trabajo: Trabajo,
    cliente: Cliente,
    config: DistillConfig,
    *,
    ahora: Callable[[], float] = time.time,
    dormir: Callable[[float], object] = time.sleep,
) -> dict[str, int]:
    """Wait for every batch, fetch its answers and write each to results or errors.

    Args:
        ahora: gives the time in seconds.
        dormir: waits some seconds.

    Returns:
        ``ok`` and ``error``: answers written now; ``ya_estaban``: requests whose outcome was already written.

    Raises:
        DistillError: there are no batches, `config.max_wait_hours` passed, or the teacher cannot be reached. Batches
            that were fetched before are kept; running again goes on from there.
    """
    with trabajo.bloqueo():
        lotes = trabajo.leer_lotes()
        if not lotes:
            raise DistillError(f"{trabajo.carpeta}: no hay lotes enviados. Envía primero las peticiones (`submit`).")
        escrito = _Written.read(trabajo)
        ya_estaban = len(escrito.results | {custom_id for _, custom_id, _ in escrito.errors})
        for lote in lotes:
            if lote["recogido"] and not escrito.covers(lote):  # a run was killed between fetching and writing
                _account(trabajo, lote, escrito)
        abiertos = [lote for lote in lotes if not lote["recogido"]]
        limite = ahora() + config.max_wait_hours * 3600
        while abiertos := [lote for lote in abiertos if not _fetch(trabajo, lote, cliente, escrito)]:
            if ahora() >= limite:
                raise DistillError(
                    f"{len(abiertos)} lotes siguen en marcha tras max_wait_hours={config.max_wait_hours:g} horas. "
                    "No se ha perdido nada ni se paga dos veces: repite la misma orden más tarde."
                )
            _tell(f"{len(abiertos)} lotes en marcha; miro otra vez en {config.poll_interval_seconds:g} s")
            dormir(config.poll_interval_seconds)
        return {"ok": escrito.ok, "error": escrito.error, "ya_estaban": ya_estaban}


def status(trabajo: Trabajo, cliente: Cliente) -> list[Record]:
    """How each batch is doing, oldest first: ``id``, ``peticiones``, ``recogido`` and what `cliente.estado` says."""
    return [
        {"id": lote["id"], "peticiones": len(lote["custom_ids"]), "recogido": lote["recogido"]}
        | _ask(cliente.estado, lote["id"])
        for lote in trabajo.leer_lotes()
    ]


# Sending


def _require_no_doubt(trabajo: Trabajo) -> None:
    for intento in trabajo.en_duda():
        if not intento["idempotente"]:
            raise _doubt(trabajo, intento["numero"], len(intento["custom_ids"]))
        trabajo.borrar_intento(intento["numero"])


def _doubt(trabajo: Trabajo, numero: int, peticiones: int) -> DistillError:
    return DistillError(
        f"{trabajo.intento_path(numero)}: se perdió la respuesta al envío de un lote de {peticiones} peticiones; puede "
        "que el profesor lo aceptara (y lo cobre). No se envía nada más hasta saberlo. Mira en la consola del "
        f"proveedor si existe un lote de {peticiones} peticiones que no esté en esta carpeta. Si existe, crea "
        f'{trabajo.recibo_path(numero)} con {{"id": "<id del lote>"}}. Si no existe, borra '
        f"{trabajo.intento_path(numero)}. Después repite."
    )


def _batches(pedidos: Iterable[Record], max_requests: int) -> Iterator[list[Record]]:
    """Consecutive groups, each within the limits of requests and of bytes."""
    lote: list[Record] = []
    size = 0
    for pedido in pedidos:
        bytes_ = len(record_line(pedido))
        if lote and (len(lote) == max_requests or size + bytes_ > _MAX_BATCH_BYTES):
            yield lote
            lote, size = [], 0
        lote.append(pedido)
        size += bytes_
    if lote:
        yield lote


def _send(trabajo: Trabajo, pedidos: list[Record], cliente: Cliente) -> str:
    """Intent, sending, receipt: killed between any two, what is on disk says what may have been paid for."""
    idempotente = bool(getattr(cliente, "idempotente", False))
    numero = trabajo.escribir_intento([pedido["custom_id"] for pedido in pedidos], idempotente)
    try:
        batch_id = cliente.crear(pedidos)
    except EnvioRechazado:
        trabajo.borrar_intento(numero)
        raise
    except Exception as error:
        raise DistillError(f"El envío falló ({_named(error)}). {_doubt(trabajo, numero, len(pedidos))}") from error
    if not isinstance(batch_id, str) or not batch_id:
        raise DistillError(f"El profesor no dio el id del lote. {_doubt(trabajo, numero, len(pedidos))}")
    try:
        trabajo.escribir_recibo(numero, batch_id)
    except DistillError as error:
        raise DistillError(
            f'{error} El lote fue aceptado: crea {trabajo.recibo_path(numero)} con {{"id": "{batch_id}"}} o se perderá.'
        ) from error
    return batch_id


# Collecting


@dataclass
class _Written:
    """The outcomes on disk, and how many of them this run has added."""

    results: set[str]
    errors: set[tuple[str, str, str]]
    ok: int = 0
    error: int = 0

    @classmethod
    def read(cls, trabajo: Trabajo) -> _Written:
        return cls({row["custom_id"] for row in trabajo.leer_resultados()}, set(map(_key, trabajo.leer_errores())))

    def covers(self, lote: Record) -> bool:
        failed = {custom_id for batch_id, custom_id, _ in self.errors if batch_id == lote["id"]}
        return set(lote["custom_ids"]) <= self.results | failed


def _key(error: Record) -> tuple[str, str, str]:
    return error["batch_id"], error["custom_id"], error["class"]


def _fetch(trabajo: Trabajo, lote: Record, cliente: Cliente, escrito: _Written) -> bool:
    """Whether the batch has ended; if so, its answers are on disk."""
    if _ask(cliente.estado, lote["id"]).get("processing_status") != "ended":
        return False
    _ask(_download, trabajo, lote, cliente)
    raw = trabajo.crudo_path(lote["id"])
    raw.with_suffix(".part").replace(raw)
    fsync_dir(raw.parent)
    _account(trabajo, lote, escrito)
    return True


def _download(trabajo: Trabajo, lote: Record, cliente: Cliente) -> None:
    """Write the answers of a batch, as they come, to `raw/<id>.part`; ask again for those that did not come."""
    path = trabajo.crudo_path(lote["id"]).with_suffix(".part")
    path.parent.mkdir(exist_ok=True)
    missing = set(lote["custom_ids"])
    with path.open("wb") as file:
        for attempt in range(_DOWNLOADS):
            for row in cliente.resultados(lote["id"]):
                if attempt == 0 or row.get("custom_id") in missing:
                    file.write(record_line(row))
                missing.discard(row.get("custom_id"))
            if not missing:
                break
        file.flush()
        os.fsync(file.fileno())


def _account(trabajo: Trabajo, lote: Record, escrito: _Written) -> None:
    """Judge a fetched batch and write the outcomes that are not written yet."""
    raw = trabajo.crudo_path(lote["id"])
    good, bad, strange = judge(lote["id"], lote["custom_ids"], read_records(raw))
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


def _ask(call: Callable[..., Any], *args: Any) -> Any:
    """Ask the teacher something that costs nothing; any failure leaves what is on disk as it is."""
    try:
        return call(*args)
    except DistillError:
        raise
    except Exception as error:
        raise DistillError(
            f"No se pudo completar la consulta al profesor ({_named(error)}). "
            "No se ha perdido nada: repite la misma orden."
        ) from error


def _tell(message: str) -> None:
    from enlace.console import say  # rich takes a while to import, and most uses of this package say nothing

    say(message)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]
