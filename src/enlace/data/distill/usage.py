"""What the answers cost, in exact decimal money."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from enlace.data.distill.errors import DistillError
from enlace.data.distill.job import Record, Trabajo, record_line
from enlace.data.distill.requests import Peticion

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

_CENT = Decimal("0.01")
_TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def resumen_de_uso(trabajo: Trabajo, config: DistillConfig) -> dict[str, Any]:
    """Tokens and cost of a job so far, at the prices of `config`.

    Returns:
        ``resultados``, the four counts of tokens of those results, ``usd_estimado`` (rounded to cents) and
        ``usd_exacto`` (text); ``descartadas`` and ``usd_descartado`` (text): answers that were paid for and were
        no good (cut, refused, empty), not counted in the rest.
    """
    resultados, tokens = _sum(trabajo.leer_resultados())
    descartadas, wasted = _sum(row for row in trabajo.leer_errores() if "usage" in row)
    usd = _cost(tokens, config)
    return {
        "resultados": resultados,
        **tokens,
        "usd_estimado": float(usd.quantize(_CENT, ROUND_HALF_UP)),
        "usd_exacto": _text(usd),
        "descartadas": descartadas,
        "usd_descartado": _text(_cost(wasted, config)),
    }


def coste_maximo(peticiones: Iterable[Peticion], config: DistillConfig) -> Decimal:
    """An upper bound, in USD, of what these requests could cost if sent.

    A token is never less than a byte of text, an answer never longer than `config.max_tokens`, and the provider adds
    some tokens of its own around each message.
    """
    bound = dict.fromkeys(_TOKENS, 0)
    # Whichever is dearer: the prompt read plainly, or written to the cache.
    kind = "cache_creation_input_tokens" if config.cache_write_ratio > 1 else "input_tokens"
    for peticion in peticiones:
        sent = {"system": peticion.system, "user": peticion.user, "schema": peticion.schema}
        bound[kind] += len(record_line(sent)) + 50
        bound["output_tokens"] += config.max_tokens
    return _cost(bound, config)


def require_budget(peticiones: list[Peticion], config: DistillConfig, allowed: str) -> None:
    """Raise DistillError if sending these requests could cost more than `allowed` USD (as written by the person)."""
    most = coste_maximo(peticiones, config)
    try:
        enough = Decimal(allowed) >= most
    except InvalidOperation:
        raise DistillError(f"DISTILL_BUDGET_USD={allowed}: tiene que ser una cantidad en dólares, como 12.50") from None
    if peticiones and not enough:
        most = most.quantize(_CENT, ROUND_UP)
        raise DistillError(
            f"Quedan {len(peticiones)} peticiones por enviar, que costarían como mucho {most} USD, y el presupuesto es "
            f"de {allowed} USD. No se ha enviado nada. Para permitirlo: DISTILL_BUDGET_USD={most} dvc repro"
        )


def _sum(rows: Iterable[Record]) -> tuple[int, dict[str, int]]:
    """How many rows, and their tokens; the API leaves some counts null."""
    count = 0
    tokens = dict.fromkeys(_TOKENS, 0)
    for row in rows:
        count += 1
        for name in _TOKENS:
            tokens[name] += int(row["usage"].get(name) or 0)
    return count, tokens


def _cost(tokens: dict[str, int], config: DistillConfig) -> Decimal:
    """USD of these tokens; the batch discount applies to all of them, the cached ones too."""
    input_price, output_price = _exact(config.input_usd_per_mtok), _exact(config.output_usd_per_mtok)
    price = {
        "input_tokens": input_price,
        "output_tokens": output_price,
        "cache_read_input_tokens": input_price * _exact(config.cache_read_ratio),
        "cache_creation_input_tokens": input_price * _exact(config.cache_write_ratio),
    }
    total = sum((price[name] * tokens[name] for name in _TOKENS), Decimal(0))
    return total * _exact(config.batch_discount) / 1_000_000


def _exact(number: float) -> Decimal:
    """The decimal that was written in the configuration, not its nearest binary fraction."""
    return Decimal(str(number))


def _text(usd: Decimal) -> str:
    return f"{usd.normalize():f}"
