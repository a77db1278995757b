"""What a job would cost before anything is sent, and before there is any key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from enlace.data.distill.client import Cliente
from enlace.data.distill.job import Trabajo
from enlace.data.distill.requests import Peticion
from enlace.data.distill.sending import batches, pedido_de
from enlace.data.distill.usage import coste_esperado, coste_maximo

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

# Answers from which their length is taken as known.
_ENOUGH = 20


@dataclass(frozen=True)
class Plan:
    """What would be sent, and what it would cost in USD (None: the model has no known price).

    Attributes:
        repeated: requests given more than once, or sent before.
        output_tokens: mean length of the answers that `expected` counts on; measured in this job if `measured`.
    """

    requests: int
    repeated: int
    bytes: int
    batches: int
    output_tokens: float
    measured: bool
    expected: Decimal | None
    most: Decimal | None


def plan(trabajo: Trabajo, peticiones: Iterable[Peticion], cliente: Cliente, config: DistillConfig) -> Plan:
    """Price what `submit` would send now. Raises DistillError if a request could not be sent."""
    peticiones = list(peticiones)
    new = trabajo.sin_enviar(peticiones)
    sizes = [size for _, _, size in batches(new, lambda p: pedido_de(p, cliente, {}), config)]
    lengths = [int(row["usage"].get("output_tokens") or 0) for row in trabajo.leer_resultados()]
    measured = len(lengths) >= _ENOUGH and sum(lengths) > 0
    mean = sum(lengths) / len(lengths) if measured else config.max_tokens / 2
    return Plan(
        len(new),
        len(peticiones) - len(new),
        sum(sizes),
        len(sizes),
        mean,
        measured,
        coste_esperado(new, config, mean),
        coste_maximo(new, config),
    )
