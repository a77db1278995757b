"""What the harness expects of a teacher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from enlace.data.distill.requests import Peticion


class Cliente(Protocol):
    """A teacher that answers batches. These five methods are enough.

    A teacher may also carry ``idempotente = True``: sending the same batch twice costs nothing and gives the same
    batch, so a submission whose answer was lost may simply be repeated.
    """

    def construir_params(self, peticion: Peticion) -> dict[str, Any]:
        """What is sent for one request."""

    def crear(self, pedidos: list[dict[str, Any]]) -> str:
        """Send a batch of ``{"custom_id", "params"}``; returns its id.

        Raises `EnvioRechazado` when the batch certainly was not taken. After any other exception it may have been.
        """

    def estado(self, batch_id: str) -> dict[str, Any]:
        """``processing_status`` ("ended" once there are results) and how many requests are in each state."""

    def resultados(self, batch_id: str) -> Iterable[dict[str, Any]]:
        """In any order, ``{"custom_id", "type": "succeeded", "text", "stop_reason", "usage"}`` or
        ``{"custom_id", "type", "error_type"}``."""

    def cancelar(self, batch_id: str) -> None:
        """Ask for the batch to be stopped; what already ran is still paid for and still answered."""
