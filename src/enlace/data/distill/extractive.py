"""The embedded teacher: answers with a piece of the text that the request carries. No key, no network, no model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enlace.data.distill.answers import answer
from enlace.data.distill.errors import DistillError
from enlace.data.distill.passages import parse_grounded
from enlace.data.distill.records import read_records, record_line
from enlace.data.distill.requests import Peticion
from enlace.data.distill.spans import find_span
from enlace.durable import write_atomic

_RULES = ("answers", "extractive", "lead", "passages", "spans")


def _version() -> str:
    """A hash of the source of the rules: other rules, another version, without anybody having to remember it."""
    source = b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in _RULES)
    return hashlib.sha256(source).hexdigest()[:12]


class ClienteExtractivo:
    """The batch protocol, answered by rules. Deterministic: the same batch has the same id and the same answers."""

    idempotente = True
    version = _version()

    def __init__(self, raiz: Path) -> None:
        """`raiz` is the folder where the answers of each batch are kept."""
        self._raiz = Path(raiz)

    def construir_params(self, peticion: Peticion) -> dict[str, Any]:
        """What the rules look at."""
        return {"system": peticion.system, "user": peticion.user, "schema": peticion.schema}

    def crear(self, pedidos: list[dict[str, Any]]) -> str:
        """Answer the batch and keep the answers; its id is the hash of what it asks."""
        asked = b"".join(map(record_line, pedidos))
        batch_id = f"extractivo-{hashlib.sha256(asked).hexdigest()[:32]}"
        answers = ({"custom_id": pedido["custom_id"]} | _answer(pedido["params"]) for pedido in pedidos)
        write_atomic(self._path(batch_id), b"".join(map(record_line, answers)))
        return batch_id

    def estado(self, batch_id: str) -> dict[str, Any]:
        """Always ended."""
        counts = {"succeeded": 0, "errored": 0, "processing": 0, "canceled": 0, "expired": 0}
        for row in self.resultados(batch_id):
            counts[row["type"]] += 1
        return {"processing_status": "ended", **counts}

    def resultados(self, batch_id: str) -> Iterator[dict[str, Any]]:
        """One answer per request, in order; an honest error where the text does not hold it."""
        path = self._path(batch_id)
        if not path.exists():
            raise DistillError(f"{path}: falta el lote {batch_id}. Recupera la carpeta de una copia.")
        return read_records(path)

    def cancelar(self, batch_id: str) -> None:
        """Nothing to stop."""

    def _path(self, batch_id: str) -> Path:
        return self._raiz / f"{batch_id}.jsonl"


def _answer(params: dict[str, Any]) -> dict[str, Any]:
    grounded = parse_grounded(params["user"])
    if grounded is None:
        return {"type": "errored", "error_type": "sin_pasaje"}
    text = (answer(*grounded) or find_span(*grounded)) if params["schema"] is None else None
    if text is None:
        return {"type": "errored", "error_type": "sin_respuesta"}
    usage = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    return {"type": "succeeded", "text": text, "stop_reason": "end_turn", "usage": usage}
