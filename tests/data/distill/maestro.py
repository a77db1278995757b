"""A teacher in memory, with only the five methods of the contract, that can be told to misbehave."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from enlace.data.distill import Peticion, Trabajo

Row = dict[str, Any]


def good(custom_id: str, text: str) -> Row:
    """A good answer."""
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": None}
    return {"custom_id": custom_id, "type": "succeeded", "text": text, "stop_reason": "end_turn", "usage": usage}


def answers(trabajo: Trabajo) -> dict[str, str]:
    """The good answers on disk."""
    return {row["custom_id"]: row["text"] for row in trabajo.leer_resultados()}


def errors(trabajo: Trabajo) -> dict[str, str]:
    """The classes of the errors on disk."""
    return {row["custom_id"]: row["class"] for row in trabajo.leer_errores()}


class Maestro:
    """Answers "eco: <user>" to everything, in another order than asked."""

    def __init__(self) -> None:
        self.lotes: dict[str, list[Row]] = {}
        self.descargas: list[str] = []
        self.vistas: dict[str, int] = {}
        self.tardanza = 0  # looks before a batch has ended
        self.alterar: Callable[[list[Row]], list[Row]] = lambda rows: rows

    @property
    def enviados(self) -> list[str]:
        """The custom_ids of all batches: what was paid for."""
        return [pedido["custom_id"] for pedidos in self.lotes.values() for pedido in pedidos]

    def construir_params(self, peticion: Peticion) -> Row:
        return {"user": peticion.user}

    def crear(self, pedidos: list[Row]) -> str:
        batch_id = f"lote_{len(self.lotes) + 1}"
        self.lotes[batch_id] = pedidos
        return batch_id

    def estado(self, batch_id: str) -> Row:
        self.vistas[batch_id] = self.vistas.get(batch_id, 0) + 1
        ended = self.vistas[batch_id] > self.tardanza
        counts = {"succeeded": 0, "errored": 0, "processing": len(self.lotes[batch_id]), "canceled": 0, "expired": 0}
        return {"processing_status": "ended" if ended else "in_progress", **counts}

    def resultados(self, batch_id: str) -> Iterator[Row]:
        self.descargas.append(batch_id)
        rows = [good(pedido["custom_id"], f"eco: {pedido['params']['user']}") for pedido in self.lotes[batch_id]]
        random.Random(7).shuffle(rows)
        yield from self.alterar(rows)

    def cancelar(self, batch_id: str) -> None:
        pass
