"""Money, exact."""

from __future__ import annotations

import re
import tempfile
from decimal import ROUND_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maestro import Maestro, Row

from enlace.config.load import load_distill_config
from enlace.config.schema import DistillConfig, Prices
from enlace.data.distill import DistillError, Peticion, Trabajo, collect, resumen_de_uso, submit
from enlace.data.distill.errors import PresupuestoAgotado
from enlace.data.distill.usage import coste_maximo, require_budget
from tests.conftest import ROOT

PRICES = Prices(input=3, output=15, cache_read=0.3, cache_write_5m=3.75, cache_write_1h=6)


def cost(usage: Row, **changes: object) -> dict[str, object]:
    """What one answer with this usage costs."""
    maestro = Maestro()
    maestro.alterar = lambda rows: [row | {"usage": usage} for row in rows]
    config = DistillConfig(prices=PRICES, batch_discount=1.0).model_copy(update=changes)
    with tempfile.TemporaryDirectory() as folder:
        trabajo = Trabajo("t", Path(folder))
        submit(trabajo, [Peticion("s", "u")], maestro, config)
        collect(trabajo, maestro, config)
        return resumen_de_uso(trabajo, config)


def test_nothing_costs_nothing(trabajo: Trabajo) -> None:
    usage = resumen_de_uso(trabajo, DistillConfig())
    assert usage["usd_estimado"] == 0.0
    assert usage["resultados"] == usage["input_tokens"] == usage["output_tokens"] == 0
    assert usage["cache_read_input_tokens"] == usage["cache_creation_input_tokens"] == 0


USAGE = {"input_tokens": 3, "cache_creation_input_tokens": 12304, "cache_read_input_tokens": 2000, "output_tokens": 550}


def test_the_discount_applies_to_everything() -> None:
    # 3 * 3 + 12304 * 3.75 + 2000 * 0.3 + 550 * 15 = 54999 millionths
    assert cost(USAGE)["usd_exacto"] == "0.054999"
    half = cost(USAGE, batch_discount=0.5)
    assert half["usd_exacto"] == "0.0274995"
    assert half["usd_estimado"] == 0.03
    assert half["cache_creation_input_tokens"] == 12304


def test_cached_tokens_are_not_counted_twice() -> None:
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12304,
        "cache_read_input_tokens": 0,
        "output_tokens": 550,
    }
    assert cost(usage)["usd_exacto"] == "0.054399"


counts = st.integers(0, 10**7)


@settings(max_examples=15)
@given(counts, counts, counts, counts, counts)
def test_a_batch_costs_half_of_all_and_each_kind_has_its_price(
    prompt: int, read: int, m5: int, h1: int, out: int
) -> None:
    usage = {
        "input_tokens": prompt,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": m5 + h1,
        "cache_creation": {"ephemeral_5m_input_tokens": m5, "ephemeral_1h_input_tokens": h1},
        "output_tokens": out,
        "output_tokens_details": {"thinking_tokens": out // 2},  # already inside output_tokens
        "service_tier": "batch",
    }
    full = Decimal(str(cost(usage)["usd_exacto"]))
    # In hundredths of a millionth, so that all is whole numbers.
    assert full * 10**8 == 300 * prompt + 30 * read + 375 * m5 + 600 * h1 + 1500 * out
    assert Decimal(str(cost(usage, batch_discount=0.5)["usd_exacto"])) * 2 == full


def test_a_null_split_takes_the_ttl_asked_for() -> None:
    usage = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 1_000_000, "cache_creation": None}
    assert cost(usage)["usd_exacto"] == "3.75"
    assert cost(usage, cache_ttl="1h")["usd_exacto"] == "6"


def test_what_was_not_billed_as_a_batch_gets_no_discount() -> None:
    usage = {"input_tokens": 1_000_000, "output_tokens": 0, "service_tier": "standard"}
    paid = cost(usage, batch_discount=0.5)
    assert (paid["usd_exacto"], paid["sin_descuento"]) == ("3", 1)


def test_what_caching_saved_or_cost() -> None:
    hits = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 900_000, "cache_creation_input_tokens": 0}
    saved = cost(hits)
    assert (saved["cache_aciertos"], saved["usd_ahorrado_por_cache"]) == (1.0, "2.43")
    misses = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 1_000_000}
    assert (cost(misses)["cache_aciertos"], cost(misses)["usd_ahorrado_por_cache"]) == (0.0, "-0.75")
    assert cost({"input_tokens": 5, "output_tokens": 5})["cache_aciertos"] is None


def test_a_price_that_depends_on_the_prompt_is_found_per_request() -> None:
    config = load_distill_config(ROOT, "anthropic").model_copy(update={"model": "x"})
    table = config.model_validate(config.model_dump() | {"prices": HAIKU}).prices
    assert cost({"input_tokens": 100_000, "output_tokens": 0}, prices=table)["usd_exacto"] == "0.01"
    assert (
        cost({"input_tokens": 99_999, "cache_read_input_tokens": 2, "output_tokens": 0}, prices=table)["usd_exacto"]
        == "0.0499996"
    )


HAIKU = {
    **{"input": 0.1, "output": 0.5, "cache_read": 0.01, "cache_write_5m": 0.125, "cache_write_1h": 0.2},
    "long_prompt_tokens": 100_000,
    "long_prompt": {"input": 0.5, "output": 2.5, "cache_read": 0.05, "cache_write_5m": 0.625, "cache_write_1h": 1},
}


def test_an_unknown_price_is_never_nothing(trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro) -> None:
    config = DistillConfig(model="nuevo")
    assert config.prices is None
    assert resumen_de_uso(trabajo, config)["usd_estimado"] == 0.0
    with pytest.raises(PresupuestoAgotado, match="nuevo es desconocido"):
        require_budget(trabajo, peticiones, config, "1000000")
    with pytest.raises(PresupuestoAgotado, match="precio desconocido"):
        submit(trabajo, peticiones, maestro, config, max_usd=Decimal(10**6))
    assert maestro.enviados == []
    submit(trabajo, peticiones, maestro, config)
    collect(trabajo, maestro, config)
    usage = resumen_de_uso(trabajo, config)
    assert usage["usd_estimado"] == usage["usd_exacto"] == usage["usd_total"] == "desconocido"
    assert usage["input_tokens"] == 70


def test_the_table_of_prices_has_the_default_model_and_its_date() -> None:
    config = load_distill_config(ROOT, "anthropic")
    assert config.prices == DistillConfig().prices
    assert config.prices is not None and config.prices.taken == "2026-10-15"


def test_max_usd_stops_before_the_limit(trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro) -> None:
    config = DistillConfig(requests_per_batch=3)
    one = coste_maximo(peticiones[:3], config)
    assert one is not None
    with pytest.raises(PresupuestoAgotado, match="Lotes enviados ahora: 1"):
        submit(trabajo, peticiones, maestro, config, max_usd=one * Decimal("1.9"))
    assert len(maestro.lotes) == 1
    with pytest.raises(PresupuestoAgotado, match="Lotes enviados ahora: 0"):  # what is under way counts whole
        submit(trabajo, peticiones, maestro, config, max_usd=one * Decimal("1.9"))
    collect(trabajo, maestro, config)
    with pytest.raises(PresupuestoAgotado, match="Lotes enviados ahora: 1"):  # it cost far less
        submit(trabajo, peticiones, maestro, config, max_usd=one * Decimal("1.1"))
    assert len(maestro.lotes) == 2


def test_wasted_answers_are_told_apart(
    trabajo: Trabajo, maestro: Maestro, peticiones: list[Peticion], config: DistillConfig
) -> None:
    def cut(rows: list[Row]) -> list[Row]:
        return [row | {"stop_reason": "max_tokens"} if row["text"] == "eco: pregunta 0" else row for row in rows]

    maestro.alterar = cut
    submit(trabajo, peticiones, maestro, config)
    collect(trabajo, maestro, config)
    usage = resumen_de_uso(trabajo, config)
    assert (usage["resultados"], usage["input_tokens"], usage["descartadas"]) == (6, 60, 1)
    assert Decimal(usage["usd_descartado"]) * 6 == Decimal(usage["usd_exacto"]) == Decimal("0.000525")


@settings(max_examples=8)
@given(st.text(max_size=50), st.text(min_size=1, max_size=200).filter(str.strip), st.integers(1, 500))
def test_the_bound_is_above_any_bill(system: str, user: str, max_tokens: int) -> None:
    peticion = Peticion(system, user)
    prompt = len((system + user).encode())  # a token is at least a byte
    for kind, ttl in (
        ("input_tokens", "none"),
        ("cache_creation_input_tokens", "5m"),
        ("cache_creation_input_tokens", "1h"),
    ):
        config = DistillConfig(max_tokens=max_tokens, cache_ttl=ttl)
        bill = cost(
            {kind: prompt, "output_tokens": max_tokens}, prices=config.prices, cache_ttl=ttl, batch_discount=0.5
        )
        most = coste_maximo([peticion], config)
        assert most is not None and Decimal(str(bill["usd_exacto"])) <= most


@pytest.mark.parametrize("allowed", ["mucho", "nan", "snan", "inf"])
def test_a_budget_is_a_number(allowed: str, trabajo: Trabajo, config: DistillConfig) -> None:
    with pytest.raises(DistillError, match="una cantidad en dólares"):
        require_budget(trabajo, [Peticion("s", "u")], config, allowed)
    require_budget(trabajo, [], config, allowed)  # nothing to send


def asked_for(trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig, allowed: str) -> str:
    with pytest.raises(DistillError, match=f"{len(peticiones)} peticiones") as caught:
        require_budget(trabajo, peticiones, config, allowed)
    asked = re.search(r"DISTILL_BUDGET_USD=(\d+\.\d\d)$", str(caught.value))
    assert asked
    return asked[1]


@pytest.mark.parametrize("allowed", ["0", "", " ", "-3"])
def test_the_budget_asked_for_is_enough(
    allowed: str, trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig
) -> None:
    require_budget(trabajo, peticiones, config, asked_for(trabajo, peticiones, config, allowed))


def test_the_budget_is_for_the_whole_job(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    one = {"input_tokens": 100_000, "output_tokens": 0}  # half a dollar, at the list price of 5 and half of it: 0.25
    maestro.alterar = lambda rows: [row | {"usage": one, "text": ""} if i else row for i, row in enumerate(rows)]
    submit(trabajo, peticiones[:3], maestro, config)
    new, sent = coste_maximo(peticiones[3:], config), coste_maximo(peticiones[:3], config)
    assert new is not None and sent is not None
    in_flight = Decimal(asked_for(trabajo, peticiones[3:], config, "0"))
    assert in_flight >= new + sent
    collect(trabajo, maestro, config)
    spent = Decimal("0.500000") + Decimal("0.0000875")  # two that were no good, and a good one
    assert Decimal(asked_for(trabajo, peticiones[3:], config, str(new))) == (spent + new).quantize(
        Decimal("0.01"), ROUND_UP
    )
    require_budget(trabajo, peticiones[3:], config, str(spent + new))
