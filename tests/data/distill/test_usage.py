"""Money, exact."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maestro import Maestro, Row

from enlace.config.schema import DistillConfig
from enlace.data.distill import DistillError, Peticion, Trabajo, collect, resumen_de_uso, submit
from enlace.data.distill.usage import _cost, coste_maximo, require_budget


def test_nothing_costs_nothing(trabajo: Trabajo) -> None:
    usage = resumen_de_uso(trabajo, DistillConfig())
    assert usage["usd_estimado"] == 0.0
    assert usage["resultados"] == usage["input_tokens"] == usage["output_tokens"] == 0
    assert usage["cache_read_input_tokens"] == usage["cache_creation_input_tokens"] == 0


def test_the_discount_applies_to_everything(trabajo: Trabajo, maestro: Maestro, peticiones: list[Peticion]) -> None:
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12304,
        "cache_read_input_tokens": 2000,
        "output_tokens": 550,
    }
    maestro.alterar = lambda rows: [row | {"usage": usage} for row in rows]
    submit(trabajo, peticiones[:1], maestro, DistillConfig())
    collect(trabajo, maestro, DistillConfig())
    full = DistillConfig(input_usd_per_mtok=3.0, output_usd_per_mtok=15.0, batch_discount=1.0)
    # 3 * 3 + 12304 * 3.75 + 2000 * 0.3 + 550 * 15 = 54999 millionths
    assert resumen_de_uso(trabajo, full)["usd_exacto"] == "0.054999"
    half = resumen_de_uso(trabajo, full.model_copy(update={"batch_discount": 0.5}))
    assert half["usd_exacto"] == "0.0274995"
    assert half["usd_estimado"] == 0.03
    assert half["cache_creation_input_tokens"] == 12304


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


@given(st.text(max_size=50), st.text(min_size=1, max_size=200), st.integers(1, 500))
def test_the_bound_is_above_any_bill(system: str, user: str, max_tokens: int) -> None:
    try:
        peticion = Peticion(system, user)
    except Exception:
        return
    config = DistillConfig(max_tokens=max_tokens)
    prompt = len((system + user).encode())  # a token is at least a byte
    for kind in ("input_tokens", "cache_creation_input_tokens"):
        bill = dict.fromkeys(("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), 0)
        assert _cost(bill | {kind: prompt, "output_tokens": max_tokens}, config) <= coste_maximo([peticion], config)


@pytest.mark.parametrize("allowed", ["mucho", "nan", "snan", "inf"])
def test_a_budget_is_a_number(allowed: str, trabajo: Trabajo, config: DistillConfig) -> None:
    with pytest.raises(DistillError, match="una cantidad en dólares"):
        require_budget(trabajo, [Peticion("s", "u")], config, allowed)
    require_budget(trabajo, [], config, allowed)  # nothing to send


def asked_for(trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig, allowed: str) -> str:
    with pytest.raises(DistillError, match=f"{len(peticiones)} peticiones") as caught:
        require_budget(trabajo, peticiones, config, allowed)
    asked = re.search(r"DISTILL_BUDGET_USD=(\d+\.\d\d) ", str(caught.value))
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
    new = coste_maximo(peticiones[3:], config)
    in_flight = Decimal(asked_for(trabajo, peticiones[3:], config, "0"))
    assert in_flight >= new + coste_maximo(peticiones[:3], config)
    collect(trabajo, maestro, config)
    spent = Decimal("0.500000") + Decimal("0.0000875")  # two that were no good, and a good one
    assert Decimal(asked_for(trabajo, peticiones[3:], config, str(new))) == (spent + new).quantize(
        Decimal("0.01"), ROUND_UP
    )
    require_budget(trabajo, peticiones[3:], config, str(spent + new))
