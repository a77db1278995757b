"""Send the requests of a job in batches, each paid for once.

Killed at any point and run again, it converges: nothing that was sent is sent again. The order of the writes is what
makes it so; `batches` describes them, and `doubt` what happens when an answer is lost.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from enlace.data.distill.client import Cliente, ConIdentidad
from enlace.data.distill.doubt import fence, in_doubt, settle, settle_all
from enlace.data.distill.errors import DistillError, EnvioRechazado, OtraIdentidad, PresupuestoAgotado
from enlace.data.distill.failures import group_of
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record, record_line
from enlace.data.distill.requests import Peticion
from enlace.data.distill.telling import named, tell
from enlace.data.distill.usage import comprometido, coste_maximo

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

_MAX_REQUEST_BYTES = 250_000_000


def submit(
    trabajo: Trabajo,
    peticiones: Iterable[Peticion],
    cliente: Cliente,
    config: DistillConfig,
    *,
    max_usd: Decimal | None = None,
    rebind: bool = False,
    dormir: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Send what was never sent, in batches of `config.requests_per_batch`; returns the ids of the batches sent.

    What has a result, is in a batch, or was answered with an error is not sent again (`retry_failed` does that). A
    batch that an earlier run sent without hearing the answer is looked for first; if found, it is among those returned.

    Args:
        max_usd: send no batch with which the job could have cost more than this.
        rebind: the job goes on with another model, other parameters or another account.
        dormir: waits some seconds.

    Raises:
        EnvioEnDuda: a submission may have been accepted and paid for, now or earlier, and the teacher cannot tell;
            nothing more is sent until a person resolves it.
        PresupuestoAgotado: `max_usd` does not suffice for the next batch, or its price is unknown.
        DistillError: the job is bound to another account; a request cannot be sent; the teacher refused, objects to
            training (`frontier_llm`), or has no credit; nothing of the batch at hand was paid.
    """
    peticiones = list(peticiones)
    with trabajo.bloqueo():
        trabajo.anotar_peticiones(peticiones)
        found = resume(trabajo, cliente, config, rebind=rebind, dormir=dormir)
        nuevas = trabajo.sin_enviar(peticiones)
        if not nuevas:
            return found
        _require_credit(trabajo)
        return found + send(trabajo, nuevas, cliente, config, max_usd=max_usd, dormir=dormir)


def resume(
    trabajo: Trabajo, cliente: Cliente, config: DistillConfig, *, rebind: bool, dormir: Callable[[float], object]
) -> list[str]:
    """Before anything is sent: find out about what is in doubt, and bind the job anew if a person says so.

    Returns the batches that turned out to be accepted. The lock is held.
    """
    dudas = trabajo.en_duda()
    if dudas and isinstance(cliente, ConIdentidad):
        try:
            trabajo.exigir_identidad(cliente.cuenta())
        except OtraIdentidad as error:  # not there, it would seem never accepted, and be paid for again
            why = "Se envió desde otra cuenta: vuelve a ella en .env y repite, y se buscará sola."
            raise in_doubt(trabajo, dudas[0], why) from error
    found = settle_all(trabajo, cliente, config, dormir)
    if rebind and isinstance(cliente, ConIdentidad):  # also with nothing to send: what was sent has to be collected
        trabajo.exigir_identidad(cliente.identidad(), rebind=True)
    return found


def send(
    trabajo: Trabajo,
    peticiones: list[Peticion],
    cliente: Cliente,
    config: DistillConfig,
    *,
    cambios: Record | None = None,
    max_usd: Decimal | None = None,
    dormir: Callable[[float], object] = time.sleep,
) -> list[str]:
    """Send these requests, sent before or not; the lock is held, after `resume`. See `submit`.

    Args:
        cambios: parameters to send in place of the usual ones.
    """
    _require_no_objection(trabajo)
    if isinstance(cliente, ConIdentidad):
        trabajo.exigir_identidad(cliente.identidad())
    budget = None if max_usd is None else _Budget(max_usd, comprometido(trabajo, config))
    sender = _Sender(trabajo, cliente, config, cambios or {}, dormir)

    def build(peticion: Peticion) -> Record:
        return pedido_de(peticion, cliente, sender.cambios)

    for _ in batches(peticiones, build, config):  # all before the first is sent: none is paid for if one cannot be
        pass
    for lote, pedidos, _ in batches(peticiones, build, config):
        if budget is not None:
            budget.reserve(lote, config.model_copy(update={"max_tokens": sender.max_tokens}), len(sender.sent))
        sender.send(pedidos)
    return sender.sent


def pedido_de(peticion: Peticion, cliente: Cliente, cambios: Record) -> Record:
    """What goes over the wire for a request; raises DistillError, naming it, if it cannot."""
    try:
        return {"custom_id": peticion.custom_id, "params": cliente.construir_params(peticion) | cambios}
    except DistillError as error:
        raise DistillError(f"{peticion.custom_id} («{peticion.user[:60]}»): {error} No se ha enviado nada.") from error


def batches(
    peticiones: Iterable[Peticion], build: Callable[[Peticion], Record], config: DistillConfig
) -> Iterator[tuple[list[Peticion], list[Record], int]]:
    """Consecutive groups, each within the limits of requests and of bytes, and its size in bytes.

    Raises DistillError for a request that fits in no batch.
    """
    lote: list[Peticion] = []
    pedidos: list[Record] = []
    size = 0
    for peticion in peticiones:
        pedido = build(peticion)
        bytes_ = len(record_line(pedido))
        if bytes_ > _MAX_REQUEST_BYTES:
            raise DistillError(
                f"{peticion.custom_id} («{peticion.user[:60]}»): ocupa {bytes_} bytes y un lote no puede pasar de "
                f"{_MAX_REQUEST_BYTES}. No se ha enviado nada. Acórtala o quítala, y repite."
            )
        if lote and (len(lote) == config.requests_per_batch or size + bytes_ > config.bytes_per_batch):
            yield lote, pedidos, size
            lote, pedidos, size = [], [], 0
        lote.append(peticion)
        pedidos.append(pedido)
        size += bytes_
    if lote:
        yield lote, pedidos, size


@dataclass
class _Budget:
    """What may still be promised, in USD."""

    limit: Decimal
    promised: Decimal | None

    def reserve(self, lote: list[Peticion], config: DistillConfig, sent: int) -> None:
        cost = coste_maximo(lote, config)
        if cost is None or self.promised is None:
            raise PresupuestoAgotado(
                f"No se sabe cuánto cuesta {config.model}: precio desconocido. No se envió nada. Añade sus precios en "
                "configs/distill/prices/, o envía sin --max-usd si lo aceptas."
            )
        if self.promised + cost > self.limit:
            raise PresupuestoAgotado(
                f"El lote siguiente ({len(lote)} peticiones) puede costar hasta {cost:.2f} USD, y con lo gastado y lo "
                f"que está en marcha (hasta {self.promised:.2f}) pasaría del límite de {self.limit} USD. Lotes "
                f"enviados ahora: {sent}. Cuando se recojan se sabrá lo que costaron de verdad: repite entonces, o "
                "sube el límite."
            )
        self.promised += cost


@dataclass
class _Sender:
    """Sends batches, one at a time."""

    trabajo: Trabajo
    cliente: Cliente
    config: DistillConfig
    cambios: Record
    dormir: Callable[[float], object]
    sent: list[str] = field(default_factory=list)
    waited: float = 0.0

    @property
    def max_tokens(self) -> int:
        """The longest answer of what is sent."""
        return int(self.cambios.get("max_tokens", self.config.max_tokens))

    def send(self, pedidos: list[Record]) -> None:
        """Send a batch; one that is too large, in halves; one that comes too soon, when the teacher says."""
        try:
            self.sent.append(self._send(pedidos))
        except EnvioRechazado as refused:
            if refused.demasiado_grande and len(pedidos) > 1:
                half = len(pedidos) // 2
                self.send(pedidos[:half])
                self.send(pedidos[half:])
            elif refused.esperar is not None and self.waited + refused.esperar <= self.config.max_wait_hours * 3600:
                tell(f"El profesor pide esperar {refused.esperar:g} s.")
                self.dormir(refused.esperar)
                self.waited += max(refused.esperar, 1.0)
                self.send(pedidos)
            else:
                raise

    def _send(self, pedidos: list[Record]) -> str:
        """Fence, intent, sending, receipt: killed between any two, the disk says what may have been paid for."""
        idempotente = bool(getattr(self.cliente, "idempotente", False))
        valla = None if idempotente else fence(self.cliente)
        ids = [pedido["custom_id"] for pedido in pedidos]
        lotes = self.trabajo.lotes
        numero = lotes.escribir_intento(ids, idempotente=idempotente, valla=valla, max_tokens=self.max_tokens)
        failure: Exception | None = None
        with _undisturbed():
            try:
                batch_id: Any = self.cliente.crear(pedidos)
                if not isinstance(batch_id, str) or not batch_id:
                    raise TypeError("el profesor no dio el id del lote")
            except EnvioRechazado:
                lotes.borrar_intento(numero)
                raise
            except Exception as error:
                failure = error
            else:
                self._note(numero, batch_id)
                return batch_id
        intento = {"numero": numero, "custom_ids": ids, "idempotente": idempotente, "valla": valla}
        if idempotente:
            raise DistillError(f"El envío falló ({named(failure)}). Repite: no cuesta nada.") from failure
        if valla is None:
            raise in_doubt(self.trabajo, intento, f"El envío falló ({named(failure)}).") from failure
        tell(f"aviso: el envío falló ({named(failure)})")
        found = settle(self.trabajo, intento, self.cliente, self.config, self.dormir)
        if found is None:
            raise EnvioRechazado(
                f"El envío falló ({named(failure)}) y el profesor no lo aceptó: no se ha pagado. Repite."
            ) from failure
        return found

    def _note(self, numero: int, batch_id: str) -> None:
        try:
            self.trabajo.lotes.escribir_recibo(numero, batch_id)
        except DistillError as error:
            raise DistillError(
                f"{error} El lote fue aceptado: crea {self.trabajo.recibo_path(numero)} con "
                f'{{"id": "{batch_id}"}} o se perderá.'
            ) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait until what the teacher answered is on disk; a second one does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        for number in asked:
            signal.raise_signal(number)


def _require_credit(trabajo: Trabajo) -> None:
    """Stop where the last answers were "no credit": a new batch would come back the same."""
    for row in trabajo.leer_errores():
        if group_of(row) == "account":
            raise DistillError(
                f"{trabajo.errores_path}: el profesor no atendió peticiones por la cuenta ({row['reason']}). No se "
                "envía nada más. Arréglalo en la consola del proveedor y reenvíalas: enlace distill retry-failed"
            )


def _require_no_objection(trabajo: Trabajo) -> None:
    """Stop where the provider took a request for the training of a model that competes with its own."""
    allowed = {id for event in trabajo.eventos("objecion_resuelta") for id in event["custom_ids"]}
    for row in trabajo.leer_errores():
        if row.get("category") == "frontier_llm" and row["custom_id"] not in allowed:
            raise DistillError(
                f"{trabajo.errores_path}: el profesor se negó a responder a {row['custom_id']} porque le parece que es "
                "para entrenar un modelo que compite con los suyos (frontier_llm). Para y lee las condiciones del "
                "proveedor: quizá no permitan entrenar con sus respuestas. No se envía nada más. Si te lo permiten: "
                "enlace distill resolve --objection"
            )


def allow_objected(trabajo: Trabajo) -> int:
    """A person answers for the refusals of category `frontier_llm` so far: sending may go on. Returns how many."""
    with trabajo.bloqueo():
        ids = [row["custom_id"] for row in trabajo.leer_errores() if row.get("category") == "frontier_llm"]
        if ids:
            trabajo.anotar("objecion_resuelta", custom_ids=ids)
    return len(ids)
