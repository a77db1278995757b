"""What the answers cost, in exact decimal money."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from enlace.data.distill.errors import DistillError
from enlace.data.distill.job import Trabajo
from enlace.data.distill.records import Record, record_line
from enlace.data.distill.requests import Peticion, sin_repetidas

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig

_CENT = Decimal("0.01")
TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


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
    bound = dict.fromkeys(TOKENS, 0)
    # Whichever is dearer: the prompt read plainly, or written to the cache.
    kind = "cache_creation_input_tokens" if config.cache_write_ratio > 1 else "input_tokens"
    for peticion in peticiones:
        sent = {"system": peticion.system, "user": peticion.user, "schema": peticion.schema}
        bound[kind] += len(record_line(sent)) + 50
        bound["output_tokens"] += config.max_tokens
    return _cost(bound, config)


def require_budget(trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig, allowed: str) -> None:
    """Raise DistillError if, with these requests sent, the job could have cost more than `allowed` USD in all.

    Args:
        trabajo: what it has spent counts, good answers or not, and so does the most that its open batches may cost.
        peticiones: what is about to be sent; nothing to send needs no budget.
        allowed: as the person wrote it; empty is 0.
    """
    if not peticiones:
        return
    try:
        budget = Decimal(allowed.strip() or "0")
    except InvalidOperation:
        budget = Decimal("NaN")
    if not budget.is_finite():
        raise DistillError(f"DISTILL_BUDGET_USD={allowed}: tiene que ser una cantidad en dólares, como 12.50")
    uso = resumen_de_uso(trabajo, config)
    spent = Decimal(uso["usd_exacto"]) + Decimal(uso["usd_descartado"])
    still_open = coste_maximo(_unanswered(trabajo), config)
    new = coste_maximo(peticiones, config)
    if budget < (total := spent + still_open + new):
        spent, still_open, new, total = (usd.quantize(_CENT, ROUND_UP) for usd in (spent, still_open, new, total))
        raise DistillError(
            f"Quedan {len(peticiones)} peticiones por enviar, que costarían como mucho {new} USD. Con lo ya gastado "
            f"({spent}) y lo que está en marcha (como mucho {still_open}) serían {total} USD, y el presupuesto es de "
            f"{budget} USD. No se ha enviado nada. Para permitirlo: DISTILL_BUDGET_USD={total} dvc repro"
        )


def _unanswered(trabajo: Trabajo) -> list[Peticion]:
    """The requests of every batch whose outcome is not written yet."""
    written = {(row["batch_id"], row["custom_id"]) for row in trabajo.leer_resultados()}
    written |= {(row["batch_id"], row["custom_id"]) for row in trabajo.leer_errores()}
    sent = [(lote["id"], id) for lote in trabajo.leer_lotes() for id in lote["custom_ids"]]
    asked = sin_repetidas(trabajo.leer_peticiones()) if sent else {}
    return [asked[id] for batch_id, id in sent if (batch_id, id) not in written and id in asked]


def _sum(rows: Iterable[Record]) -> tuple[int, dict[str, int]]:
    """How many rows, and their tokens; the API leaves some counts null."""
    count = 0
    tokens = dict.fromkeys(TOKENS, 0)
    for row in rows:
        count += 1
        for name in TOKENS:
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
    total = sum((price[name] * tokens[name] for name in TOKENS), Decimal(0))
    return total * _exact(config.batch_discount) / 1_000_000


def _exact(number: float) -> Decimal:
    """The decimal that was written in the configuration, not its nearest binary fraction."""
    return Decimal(str(number))


def _text(usd: Decimal) -> str:
    return f"{usd.normalize():f}"
