"""What the answers cost, in exact decimal money, and what more could cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from enlace.data.distill.errors import DistillError, PresupuestoAgotado
from enlace.data.distill.job import Trabajo
from enlace.data.distill.judge import TOKENS
from enlace.data.distill.records import Record, read_records, record_line
from enlace.data.distill.requests import Peticion

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig, TokenPrices

UNKNOWN = "desconocido"
CENT = Decimal("0.01")
# The provider adds some tokens of its own around each message.
_ENVELOPE_TOKENS = 50
_BYTES_PER_TOKEN = 4


def resumen_de_uso(trabajo: Trabajo, config: DistillConfig) -> dict[str, Any]:
    """Tokens and cost of a job so far, at the prices of `config`; the batch discount applies to all of it.

    Returns:
        Of the good answers: ``resultados``, the four counts of tokens, ``usd_estimado`` (rounded to cents) and
        ``usd_exacto`` (text). ``descartadas`` and ``usd_descartado``: answers that were paid for and were no good (cut,
        refused, empty, or superseded by another attempt). ``usd_total``: both. ``cache_aciertos``: share of the
        cacheable tokens that were read from the cache (None if there were none); ``usd_ahorrado_por_cache``: negative
        when caching cost more than it saved. ``sin_descuento``: answers that the provider did not bill as a batch;
        ``precios``: the day they were taken. Where the model has no price, money is "desconocido", never 0.
    """
    good, wasted = _Bill(), _Bill()
    for row in trabajo.leer_resultados():
        good.add(row["usage"], config)
    for path in (trabajo.errores_path, trabajo.superados_path):
        for row in read_records(path):
            if "usage" in row:
                wasted.add(row["usage"], config)
    usd, lost, whole = good.usd(config), wasted.usd(config), (good + wasted)
    total, uncached = whole.usd(config), whole.usd(config, cached=False)
    saved = None if uncached is None or total is None else uncached - total
    return {
        "resultados": good.answers,
        **{name: good.tokens(name) for name in TOKENS},
        "usd_estimado": UNKNOWN if usd is None else float(usd.quantize(CENT, ROUND_HALF_UP)),
        "usd_exacto": _text(usd),
        "descartadas": wasted.answers,
        "usd_descartado": _text(lost),
        "usd_total": _text(total),
        "cache_aciertos": whole.hit_rate(),
        "usd_ahorrado_por_cache": _text(saved),
        "sin_descuento": whole.undiscounted(),
        "precios": config.prices.taken if config.prices else UNKNOWN,
    }


def coste_maximo(peticiones: Iterable[Peticion], config: DistillConfig) -> Decimal | None:
    """An upper bound, in USD, of what these requests could cost if sent; None if the price is unknown.

    A token is never less than a byte of text, an answer never longer than `config.max_tokens`.
    """
    bill = _Bill()
    for peticion in peticiones:
        _add_most(bill, peticion, config, config.max_tokens)
    return bill.usd(config)


def _add_most(bill: _Bill, peticion: Peticion, config: DistillConfig, max_tokens: int) -> None:
    prompt = len(record_line(_sent(peticion))) + _ENVELOPE_TOKENS
    bill.add({_dearest(config, prompt): prompt, "output_tokens": max_tokens}, config)


def coste_esperado(peticiones: Iterable[Peticion], config: DistillConfig, output_tokens: float) -> Decimal | None:
    """What these requests would cost at four bytes a token and answers of `output_tokens`, without caching."""
    bill = _Bill()
    for peticion in peticiones:
        prompt = len(record_line(_sent(peticion))) // _BYTES_PER_TOKEN + _ENVELOPE_TOKENS
        bill.add({"input_tokens": prompt, "output_tokens": round(output_tokens)}, config)
    return bill.usd(config)


def comprometido(trabajo: Trabajo, config: DistillConfig) -> Decimal | None:
    """What a job has spent, and the most that its open batches may cost; None if the price is unknown."""
    spent, still_open = _spent(trabajo, config), _still_open(trabajo, config)
    return None if spent is None or still_open is None else spent + still_open


def require_budget(trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig, allowed: str) -> None:
    """Raise PresupuestoAgotado if, with these requests sent, the job could have cost more than `allowed` USD in all.

    Args:
        trabajo: what it has spent counts, good answers or not, and so does the most that its open batches may cost.
        peticiones: what is about to be sent; nothing to send needs no budget.
        allowed: as the person wrote it; empty is 0.
    """
    if not peticiones:
        return
    budget = usd_of(allowed, "DISTILL_BUDGET_USD")
    counted = {id for intento in trabajo.en_duda() for id in intento["custom_ids"]}  # what is in doubt is open already
    new = coste_maximo((peticion for peticion in peticiones if peticion.custom_id not in counted), config)
    spent, still_open = _spent(trabajo, config), _still_open(trabajo, config)
    if spent is None or still_open is None or new is None:
        raise PresupuestoAgotado(
            f"Quedan {len(peticiones)} peticiones por enviar y no se sabe cuánto cuestan: el precio de {config.model} "
            "es desconocido. No se ha enviado nada. Añádelo en configs/distill/prices/ y repite."
        )
    if budget < (total := spent + still_open + new):
        spent, still_open, new, total = (usd.quantize(CENT, ROUND_UP) for usd in (spent, still_open, new, total))
        raise PresupuestoAgotado(
            f"Quedan {len(peticiones)} peticiones por enviar, que costarían como mucho {new} USD. Con lo ya gastado "
            f"({spent}) y lo que está en marcha (como mucho {still_open}) serían {total} USD, y el presupuesto es de "
            f"{budget} USD. No se ha enviado nada. Para permitirlo, pon delante de la orden, o en .env, "
            f"DISTILL_BUDGET_USD={total}"
        )


def usd_of(text: str, name: str) -> Decimal:
    """An amount of money as a person wrote it (empty is 0); raises DistillError, naming where it was written."""
    try:
        amount = Decimal(text.strip() or "0")
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise DistillError(f"{name}={text}: tiene que ser una cantidad en dólares, como 12.50")
    return amount


def _spent(trabajo: Trabajo, config: DistillConfig) -> Decimal | None:
    total = resumen_de_uso(trabajo, config)["usd_total"]
    return None if total == UNKNOWN else Decimal(total)


def _still_open(trabajo: Trabajo, config: DistillConfig) -> Decimal | None:
    """The most that the batches without answers may cost, those in doubt included."""
    longest: dict[str, int] = {}
    lotes = [lote for lote in trabajo.leer_lotes() if not lote["recogido"]]
    for lote in [*lotes, *trabajo.en_duda()]:
        for id in lote["custom_ids"]:
            longest[id] = max(longest.get(id, 0), lote.get("max_tokens") or config.max_tokens)
    bill = _Bill()
    if longest:
        for peticion in trabajo.recorrer_peticiones():
            if n := longest.get(peticion.custom_id):
                _add_most(bill, peticion, config, n)
    return bill.usd(config)


@dataclass
class _Bill:
    """Tokens of some answers, added up by how they are priced."""

    answers: int = 0
    # By kind of token, whether the prompt was a long one, whether it was billed as a batch.
    counts: Counter[tuple[str, bool, bool]] = field(default_factory=Counter)

    def add(self, usage: Record, config: DistillConfig) -> None:
        """Count one answer; the API leaves some counts null."""
        n = {name: int(usage.get(name) or 0) for name in TOKENS}
        made = n.pop("cache_creation_input_tokens")
        prompt = n["input_tokens"] + n["cache_read_input_tokens"] + made
        above = config.prices.long_prompt_tokens if config.prices else None
        long = above is not None and prompt > above
        batch = usage.get("service_tier") in (None, "batch")
        split = usage.get("cache_creation")
        hour = split.get("ephemeral_1h_input_tokens") if isinstance(split, dict) else None
        if not isinstance(hour, int):  # not said: what was asked for
            hour = made if config.cache_ttl == "1h" else 0
        hour = min(hour, made)
        for name, count in (*n.items(), ("cache_write_5m", made - hour), ("cache_write_1h", hour)):
            if count:
                self.counts[name, long, batch] += count
        self.answers += 1
        if not batch:
            self.counts["sin_descuento", long, batch] += 1

    def __add__(self, other: _Bill) -> _Bill:
        return _Bill(self.answers + other.answers, self.counts + other.counts)

    def tokens(self, name: str) -> int:
        """How many of a kind, as the API names it."""
        names = ("cache_write_5m", "cache_write_1h") if name == "cache_creation_input_tokens" else (name,)
        return sum(count for (kind, _, _), count in self.counts.items() if kind in names)

    def undiscounted(self) -> int:
        """Answers that were not billed as part of a batch."""
        return self.tokens("sin_descuento")

    def hit_rate(self) -> float | None:
        """Of the tokens that went through the cache, the share that was read from it."""
        read, made = self.tokens("cache_read_input_tokens"), self.tokens("cache_creation_input_tokens")
        return round(read / (read + made), 4) if read + made else None

    def usd(self, config: DistillConfig, *, cached: bool = True) -> Decimal | None:
        """What it costs, or would without caching (`cached` False); None if the model has no price."""
        total = Decimal(0)
        for (kind, long, batch), count in self.counts.items():
            if kind == "sin_descuento":
                continue
            if config.prices is None:
                return None
            prices: TokenPrices = (config.prices.long_prompt if long else None) or config.prices
            field_ = _PRICES[kind] if cached or kind == "output_tokens" else "input"
            discount = _exact(config.batch_discount) if batch else Decimal(1)
            total += _exact(getattr(prices, field_)) * count * discount
        return total / 1_000_000


_PRICES = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_write_5m": "cache_write_5m",
    "cache_write_1h": "cache_write_1h",
}


def _dearest(config: DistillConfig, prompt: int) -> str:
    """The dearest thing that can happen to a prompt: read plainly, or written to the cache."""
    prices = config.prices
    if prices is None or config.cache_ttl == "none":
        return "input_tokens"
    tier = (prices.long_prompt if prompt > (prices.long_prompt_tokens or prompt) else None) or prices
    written = tier.cache_write_1h if config.cache_ttl == "1h" else tier.cache_write_5m
    return "cache_creation_input_tokens" if written > tier.input else "input_tokens"


def _sent(peticion: Peticion) -> Record:
    return {"system": peticion.system, "user": peticion.user, "schema": peticion.schema}


def _exact(number: float) -> Decimal:
    """The decimal that was written in the configuration, not its nearest binary fraction."""
    return Decimal(str(number))


def _text(usd: Decimal | None) -> str:
    return UNKNOWN if usd is None else f"{usd.normalize():f}"
