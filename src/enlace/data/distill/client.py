"""What the harness expects of a teacher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from enlace.data.distill.requests import Peticion


class Cliente(Protocol):
    """A teacher that answers batches. These five methods are enough.

    A teacher may also carry ``idempotente = True``: sending the same batch twice costs nothing and gives the same
    batch, so a submission whose answer was lost may simply be repeated. And ``dias_que_guarda``: for how many days
    after a batch was accepted its answers can be fetched.
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


@runtime_checkable
class ConLotesRecientes(Protocol):
    """A teacher that can tell which batches it has: one whose acceptance was not heard can be found."""

    def lotes_recientes(self) -> Iterable[dict[str, Any]]:
        """``{"id", "creado", "peticiones", "ended"}`` of every batch, newest first; `creado` is a text that sorts by
        time."""


@runtime_checkable
class ConLineas(Protocol):
    """A teacher whose answers are kept as they came, byte by byte, rather than as rows of the protocol."""

    def lineas(self, batch_id: str) -> Iterable[bytes]:
        """The answers of a batch, one line of bytes each, without their ends."""

    def leer_linea(self, linea: bytes) -> dict[str, Any]:
        """A line as a row of `resultados`; needs neither credential nor network. Raises ValueError."""


@runtime_checkable
class ConIdentidad(Protocol):
    """A teacher that a job is bound to."""

    def identidad(self) -> dict[str, Any]:
        """What may not change within a job: model, parameters and account, the account's key as a hash of it."""

    def cuenta(self) -> dict[str, Any]:
        """The part of `identidad` that answers depend on, once the batch has been sent."""
