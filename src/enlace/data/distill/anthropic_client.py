"""The teacher behind Anthropic's Message Batches API: half price, answers within a day.

The SDK is an optional extra and takes seconds to import, so it is imported when the first call needs it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any

from enlace.data.distill.errors import DescargaRota, DistillError, EnvioRechazado
from enlace.data.distill.requests import Peticion
from enlace.data.distill.schemas import unsupported

if TYPE_CHECKING:
    import anthropic

    from enlace.config.schema import DistillConfig

# After these the server did not take the batch. After any other failure (408, 409, 5xx, a timeout, a line cut once
# connected) it may have.
_REFUSED = {400, 401, 402, 403, 404, 413, 422, 429}
_NO_CONNECTION = "No hay conexión con Anthropic; no se envió nada. Repite cuando la haya."
_UNSENDABLE = (
    "No se puede hablar con Anthropic: la clave o la dirección no valen, así que no se envió nada. Revisa en .env "
    "ANTHROPIC_API_KEY (sin espacios ni saltos de línea) y ANTHROPIC_BASE_URL, si la pones (https://...)."
)
_NEVER_SENT = {
    "ConnectError": _NO_CONNECTION,
    "ConnectTimeout": _NO_CONNECTION,
    "LocalProtocolError": _UNSENDABLE,
    "UnsupportedProtocol": _UNSENDABLE,
}
_DENIED = {
    401: "La clave de Anthropic no vale: revisa ANTHROPIC_API_KEY en .env.",
    403: "La clave de Anthropic no tiene permiso para esto.",
}


class ClienteAnthropic:
    """The batch protocol over the real SDK. Making one needs neither the SDK nor a credential; using it does."""

    dias_que_guarda = 29

    def __init__(self, config: DistillConfig | None = None) -> None:
        """`config` gives the model and the length of the answers; default, `DistillConfig()`."""
        if config is None:
            from enlace.config.schema import DistillConfig

            config = DistillConfig()
        self._config = config
        self._client: anthropic.Anthropic | None = None

    def construir_params(self, peticion: Peticion) -> dict[str, Any]:
        """The body of one message. The system prompt, shared by many requests, is marked for the prompt cache.

        Raises DistillError for a schema that the API does not take.
        """
        config = self._config
        params: dict[str, Any] = {"model": config.model, "max_tokens": config.max_tokens}
        if peticion.system:
            block: dict[str, Any] = {"type": "text", "text": peticion.system}
            if config.cache_ttl != "none":
                ttl = {} if config.cache_ttl == "5m" else {"ttl": config.cache_ttl}
                block["cache_control"] = {"type": "ephemeral", **ttl}
            params["system"] = [block]
        params["messages"] = [{"role": "user", "content": peticion.user}]
        if config.thinking is not None:
            params["thinking"] = {"type": config.thinking}
        output: dict[str, Any] = {} if config.effort is None else {"effort": config.effort}
        if peticion.schema is not None:
            if wrong := unsupported(peticion.schema):
                raise DistillError(f"el esquema no lo admite la API de Anthropic: {'; '.join(wrong[:5])}.")
            output["format"] = {"type": "json_schema", "schema": peticion.schema}
        if output:
            params["output_config"] = output
        return params

    def identidad(self) -> dict[str, Any]:
        """Model, parameters that decide the answers, and account."""
        config = self._config
        parameters = {"max_tokens": config.max_tokens, "thinking": config.thinking, "effort": config.effort}
        return {"model": config.model, **parameters, **self.cuenta()}

    def cuenta(self) -> dict[str, Any]:
        """Where the batches live: the address, and the key as a short hash that does not give it away."""
        key = self._credential()
        return {
            "base_url": os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com",
            "cuenta": hashlib.sha256(b"enlace\0" + key.strip().encode()).hexdigest()[:12],
        }

    def crear(self, pedidos: list[dict[str, Any]]) -> str:
        """Send a batch, once.

        Raises:
            EnvioRechazado: it was certainly not taken. Any other exception leaves that in doubt.
        """
        try:
            client = self._sdk()
        except DistillError as error:
            raise EnvioRechazado(str(error)) from error
        import anthropic

        try:
            return client.messages.batches.create(requests=pedidos).id  # type: ignore[arg-type]  # plain dicts
        except anthropic.APIStatusError as error:
            if error.status_code in _REFUSED:
                later = _seconds(error.response.headers.get("retry-after")) if error.status_code == 429 else None
                raise EnvioRechazado(
                    _refusal(error), esperar=later, demasiado_grande=error.status_code == 413
                ) from error
            raise
        except anthropic.APIConnectionError as error:
            if why := _NEVER_SENT.get(type(error.__cause__).__name__):
                raise EnvioRechazado(why) from error
            raise

    def estado(self, batch_id: str) -> dict[str, Any]:
        """The state of a batch. The counts other than `processing` stay at zero until the whole batch ends."""
        with self._asking() as client:
            batch = client.messages.batches.retrieve(batch_id)
        counts = batch.request_counts
        return {
            "processing_status": batch.processing_status,
            "succeeded": counts.succeeded,
            "errored": counts.errored,
            "processing": counts.processing,
            "canceled": counts.canceled,
            "expired": counts.expired,
            "archivado": batch.archived_at is not None,
        }

    def lotes_recientes(self) -> Iterator[dict[str, Any]]:
        """Every batch of the workspace, newest first."""
        with self._asking() as client:
            for batch in client.messages.batches.list(limit=100):
                counts = batch.request_counts
                total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
                yield {
                    "id": batch.id,
                    "creado": batch.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
                    "peticiones": total,
                    "ended": batch.processing_status == "ended",
                }

    def lineas(self, batch_id: str) -> Iterator[bytes]:
        """The answers of a batch that has ended, as they come down.

        Read as bytes and cut at 0x0A: the SDK's own reader also cuts at other line separators, inside an answer.
        """
        with self._asking() as client, client.messages.batches.with_streaming_response.results(batch_id) as response:
            yield from _lines(response.iter_bytes())

    def leer_linea(self, linea: bytes) -> dict[str, Any]:
        """A line of the API in the shape of the protocol."""
        return _row(json.loads(linea))

    def resultados(self, batch_id: str) -> Iterator[dict[str, Any]]:
        """The answers of a batch that has ended, as they come down."""
        for linea in self.lineas(batch_id):
            try:
                yield self.leer_linea(linea)
            except ValueError as error:
                raise DescargaRota(
                    f"{batch_id}: resultados ilegibles, quizá una descarga cortada. Repite: siguen en el servidor."
                ) from error

    def cancelar(self, batch_id: str) -> None:
        """Ask for the batch to be stopped; what already ran is paid for and answered."""
        with self._asking() as client:
            client.messages.batches.cancel(batch_id)

    @contextmanager
    def _asking(self) -> Iterator[anthropic.Anthropic]:
        """The client; a failure that would only come again is raised as DistillError."""
        client = self._sdk()
        import anthropic

        try:
            yield client
        except anthropic.APIStatusError as error:
            if why := _DENIED.get(error.status_code):
                raise DistillError(why) from error
            raise
        except anthropic.APIConnectionError as error:
            if _NEVER_SENT.get(type(error.__cause__).__name__) == _UNSENDABLE:
                raise DistillError(_UNSENDABLE) from error
            raise

    def _credential(self) -> str:
        if key := os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN"):
            return key
        raise DistillError(
            "Falta la clave de Anthropic. Pon ANTHROPIC_API_KEY=... en el archivo .env del proyecto "
            "(hay un ejemplo en .env.example), o elige otro profesor en params.yaml (teacher: extractive)."
        )

    def _sdk(self) -> anthropic.Anthropic:
        """The SDK's client, made once. It never retries: a lost submission would be paid for up to three times, and
        it waits as long as a server asks (days), where `collect` asks again within its own limit."""
        if self._client is None:
            self._credential()
            try:
                import anthropic
            except ImportError as error:
                raise DistillError("Falta el paquete «anthropic»: pip install -e '.[distill]'") from error
            try:
                self._client = anthropic.Anthropic(max_retries=0)
            except Exception as error:  # an address that is none
                raise DistillError(_UNSENDABLE) from error
        return self._client


def _refusal(error: anthropic.APIStatusError) -> str:
    what = {
        **_DENIED,
        413: "El lote es demasiado grande: baja requests_per_batch en configs/distill/.",
        429: "Hay demasiados envíos en poco tiempo: espera y repite.",
    }.get(error.status_code, "Corrige lo que dice y repite.")
    return f"Anthropic rechazó el lote ({error.status_code}): {error.message[:500]}. No se ha pagado nada. {what}"


def _seconds(header: str | None) -> float | None:
    """What a retry-after asks for; None if it asks for nothing that can be read."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if seconds >= 0 else None  # NaN is not


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream of bytes, without blank ones."""
    # A long line comes in many chunks: joined once, not at each of them.
    rest: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        for following in others:
            if (line := b"".join(rest)).strip():
                yield line
            rest = [following]
    if (line := b"".join(rest)).strip():
        yield line


def _row(line: Any) -> dict[str, Any]:
    """One line of the API in the shape of the protocol; one of another shape is kept whole, as "malformed"."""
    try:
        return _protocol_row(line)
    except (KeyError, TypeError, AttributeError):
        custom_id = _inside(line, "custom_id")
        row = {"custom_id": custom_id if isinstance(custom_id, str) else None, "type": "malformed", "line": line}
        return row | {"usage": _inside(line, "result", "message", "usage")}


def _inside(value: Any, *keys: str) -> Any:
    """What lies under nested keys; None where they end before."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _protocol_row(line: dict[str, Any]) -> dict[str, Any]:
    """What the protocol asks for, plus what may explain a failure."""
    custom_id, result = line["custom_id"], line["result"]
    if not isinstance(custom_id, str):
        raise TypeError("custom_id")
    if result["type"] == "succeeded":
        message = result["message"]
        # Not content[0]: thinking may come first.
        text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
        row = {"custom_id": custom_id, "type": "succeeded", "text": text, "stop_reason": message["stop_reason"]}
        return row | {"usage": message.get("usage"), "stop_details": message.get("stop_details")}
    # The useful type of an error is nested twice; the other kinds (canceled, expired) carry none.
    error = result.get("error", {}).get("error", {})
    row = {"custom_id": custom_id, "type": result["type"], "error_type": error.get("type") or result["type"]}
    request_id = result.get("error", {}).get("request_id")
    return row | {"error_message": error.get("message"), "request_id": request_id}
