"""Send the requests of a job in batches, each paid for once.

Killed at any point and run again, it converges: nothing that was sent is sent again. The order of the writes is what
makes it so; `job` describes the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from enlace.data.distill.client import Cliente
from enlace.data.distill.errors import DistillError, EnvioRechazado
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record, record_line
from enlace.data.distill.requests import Peticion

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

# The batch API takes 256 MB. A smaller batch puts less in doubt if its answer is lost, and needs less memory.
_MAX_BATCH_BYTES = 64_000_000


def submit(trabajo: Trabajo, peticiones: Iterable[Peticion], cliente: Cliente, config: DistillConfig) -> list[str]:
    """Send what was never sent, in batches of `config.requests_per_batch`; returns the ids of the batches sent.

    What has a result, is in a batch, or was answered with an error is not sent again.

    Raises:
        DistillError: a submission is in doubt (it may have been accepted and paid for), now or from an earlier run,
            and nothing more is sent until a person resolves it; the teacher took a request of this job for the
            training of a competing model (`frontier_llm`), until a person has looked at it; or the teacher refused.
    """
    peticiones = list(peticiones)
    with trabajo.bloqueo():
        trabajo.anotar_peticiones(peticiones)
        _require_no_doubt(trabajo)
        nuevas = trabajo.sin_enviar(peticiones)
        if nuevas:
            _require_no_objection(trabajo)
        pedidos = ({"custom_id": p.custom_id, "params": cliente.construir_params(p)} for p in nuevas)
        return [_send(trabajo, lote, cliente) for lote in _batches(pedidos, config.requests_per_batch)]


def _require_no_doubt(trabajo: Trabajo) -> None:
    for intento in trabajo.en_duda():
        if not intento["idempotente"]:
            raise _doubt(trabajo, intento["numero"], len(intento["custom_ids"]))
        trabajo.borrar_intento(intento["numero"])


def _require_no_objection(trabajo: Trabajo) -> None:
    """Stop where the provider took a request for the training of a model that competes with its own."""
    answered = {row["custom_id"] for row in trabajo.leer_resultados()}
    for row in trabajo.leer_errores():
        if row.get("category") == "frontier_llm" and row["custom_id"] not in answered and not row.get("resolved"):
            raise DistillError(
                f"{trabajo.errores_path}: el profesor se negó a responder a {row['custom_id']} porque le parece que es "
                "para entrenar un modelo que compite con los suyos (frontier_llm). Para y lee las condiciones del "
                "proveedor: quizá no permitan entrenar con sus respuestas. No se envía nada más. Si te lo permiten, "
                'añade "resolved": true a esa línea y repite.'
            )


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
        if not isinstance(batch_id, str) or not batch_id:
            raise TypeError("el profesor no dio el id del lote")
    except EnvioRechazado:
        trabajo.borrar_intento(numero)
        raise
    except Exception as error:
        what = "Repite: no cuesta nada." if idempotente else _doubt(trabajo, numero, len(pedidos))
        raise DistillError(f"El envío falló ({named(error)}). {what}") from error
    try:
        trabajo.escribir_recibo(numero, batch_id)
    except DistillError as error:
        raise DistillError(
            f'{error} El lote fue aceptado: crea {trabajo.recibo_path(numero)} con {{"id": "{batch_id}"}} o se perderá.'
        ) from error
    return batch_id


def named(error: Exception) -> str:
    """A failure that nobody foresaw, for a message."""
    return f"{type(error).__name__}: {error}"[:500]
