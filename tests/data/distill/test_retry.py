"""Which failures are sent again, which only if asked for, and what becomes of the error and of the money."""

from __future__ import annotations

import pytest
from maestro import answers, errors
from servidor import Servidor

from enlace.config.schema import DistillConfig
from enlace.data.distill import (
    ClienteAnthropic,
    DistillError,
    Peticion,
    Retry,
    Trabajo,
    collect,
    resumen_de_uso,
    retry_failed,
    submit,
)
from enlace.data.distill.failures import group_of, hint
from enlace.data.distill.retry import classes
from enlace.data.distill.usage import comprometido

pytest.importorskip("anthropic")
CONFIG = DistillConfig()
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def failing(trabajo: Trabajo, cliente: ClienteAnthropic, *directives: str) -> None:
    """Requests that fail so, collected."""
    submit(trabajo, [Peticion("", f"{i} [[{d}]]") for i, d in enumerate(directives)], cliente, CONFIG)
    collect(trabajo, cliente, CONFIG)


FREE = ["errored:api_error", "errored:overloaded_error", "errored:timeout_error", "errored:rate_limit_error"]
FREE += ["errored:nuevo_error", "expired", "canceled", "errored:billing_error", "errored:authentication_error"]
FREE += ["errored:invalid_request_error:Your credit balance is too low to access the API"]


@pytest.mark.parametrize("directive", FREE)
def test_what_cost_nothing_and_may_pass_is_sent_again(
    directive: str, servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    failing(trabajo, cliente, f"once:{directive}", "once:max_tokens")
    assert len(retry_failed(trabajo, cliente, CONFIG)) == 1
    assert retry_failed(trabajo, cliente, CONFIG) == []  # it is under way
    assert collect(trabajo, cliente, CONFIG)["ok"] == 1
    assert list(errors(trabajo).values()) == ["max_tokens"]  # the success cleared its error
    assert sorted(servidor.paid.values()) == [1, 2]


@pytest.mark.parametrize(
    ("directive", "retry"),
    [
        ("errored:invalid_request_error", Retry(force=True)),
        ("max_tokens", Retry(max_tokens=2000)),
        ("model_context_window_exceeded", Retry(max_tokens=2000)),
        ("refusal:cyber", Retry(include_refusals=True)),
        ("empty", Retry(resample=True)),
        ("thinking", Retry(resample=True)),
        ("pause_turn", Retry(resample=True)),
        ("missing", Retry(retry_missing=True)),
    ],
)
def test_what_would_fail_the_same_or_cost_again_is_sent_only_if_asked_for(
    directive: str, retry: Retry, servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    failing(trabajo, cliente, f"once:{directive}")
    others = Retry(
        force=not retry.force,
        max_tokens=None if retry.max_tokens else 2000,
        include_refusals=not retry.include_refusals,
        resample=not retry.resample,
        retry_missing=not retry.retry_missing,
    )
    assert retry_failed(trabajo, cliente, CONFIG) == retry_failed(trabajo, cliente, CONFIG, others) == []
    assert len(retry_failed(trabajo, cliente, CONFIG, retry)) == 1
    assert servidor.posts[-1]["requests"][0]["params"]["max_tokens"] == (retry.max_tokens or 300)
    assert collect(trabajo, cliente, CONFIG)["ok"] == 1 and errors(trabajo) == {}


def test_what_failed_attempts_cost_stays_counted(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    failing(trabajo, cliente, "once:max_tokens")
    before = resumen_de_uso(trabajo, CONFIG)
    assert (before["resultados"], before["descartadas"]) == (0, 1)
    retry_failed(trabajo, cliente, CONFIG, Retry(max_tokens=2000))
    collect(trabajo, cliente, CONFIG)
    after = resumen_de_uso(trabajo, CONFIG)
    assert (after["resultados"], after["descartadas"]) == (1, 1)
    assert after["usd_descartado"] == after["usd_exacto"] == before["usd_total"]


def test_a_cut_answer_is_not_bought_again_to_be_cut_again(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    failing(trabajo, cliente, "max_tokens")
    for limit, before in ((1023, CONFIG.max_tokens), (CONFIG.max_tokens, CONFIG.max_tokens)):
        with pytest.raises(DistillError, match=f"--max-tokens {limit}: .* más que {before}"):
            retry_failed(trabajo, cliente, CONFIG, Retry(max_tokens=limit))
    retry_failed(trabajo, cliente, CONFIG, Retry(max_tokens=2000))
    collect(trabajo, cliente, CONFIG)
    with pytest.raises(DistillError, match="más que 2000"):
        retry_failed(trabajo, cliente, CONFIG, Retry(max_tokens=2000))
    longer = CONFIG.model_copy(update={"max_tokens": 2001})  # what was sent counts, not what the file says by now
    assert len(retry_failed(trabajo, cliente, longer, Retry(max_tokens=2001))) == 1


def test_an_open_batch_may_cost_what_it_was_sent_with(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    submit(trabajo, [Peticion("", "a")], cliente, CONFIG)
    shorter = CONFIG.model_copy(update={"max_tokens": 1})
    assert comprometido(trabajo, shorter) == comprometido(trabajo, CONFIG)


def test_attempts_have_a_limit(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    failing(trabajo, cliente, "errored:api_error")
    for attempts in (2, 3):
        assert len(retry_failed(trabajo, cliente, CONFIG)) == 1
        collect(trabajo, cliente, CONFIG)
        (row,) = trabajo.leer_errores()
        assert row["attempts"] == attempts
    assert retry_failed(trabajo, cliente, CONFIG) == []
    assert set(servidor.paid.values()) == {3}


def test_forty_expired_of_a_hundred(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    failing(trabajo, cliente, *("once:expired" if i % 5 < 2 else "text:bien" for i in range(100)))
    assert len(answers(trabajo)) == 60
    retry_failed(trabajo, cliente, CONFIG)
    assert len(servidor.posts[-1]["custom_ids"]) == 40
    collect(trabajo, cliente, CONFIG)
    assert len(answers(trabajo)) == 100 and errors(trabajo) == {}


def test_no_credit_pauses_everything_until_it_is_mended(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    failing(trabajo, cliente, "once:errored:invalid_request_error:Your credit balance is too low", "text:bien")
    with pytest.raises(DistillError, match=r"credit balance.*retry-failed"):
        submit(trabajo, [Peticion("", "otra")], cliente, CONFIG)
    assert len(servidor.posts) == 1
    retry_failed(trabajo, cliente, CONFIG)
    assert len(servidor.posts[-1]["custom_ids"]) == 1
    collect(trabajo, cliente, CONFIG)
    assert len(submit(trabajo, [Peticion("", "otra")], cliente, CONFIG)) == 1


def test_an_objection_to_training_is_never_sent_again(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    failing(trabajo, cliente, "refusal:frontier_llm")
    everything = Retry(True, 2000, True, True, True)
    assert retry_failed(trabajo, cliente, CONFIG, everything) == []
    assert classes(trabajo) == {"refusal": ("objection", 1)}


def test_a_longer_answer_is_longer(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    failing(trabajo, cliente, "once:max_tokens")
    with pytest.raises(DistillError, match="más que 1024"):
        retry_failed(trabajo, cliente, CONFIG, Retry(max_tokens=1024))
    assert len(servidor.posts) == 1


def test_an_answer_out_of_its_schema_is_paid_and_not_used(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    """Valid JSON in a truncated answer is no answer either."""
    users = ['[[text:{"a": "sí"}]]', '[[text:{"a": 3}]]', '[[text:{"a": "x", "b": 1}]]', "[[text:{]]"]
    submit(trabajo, [Peticion("", user, schema=SCHEMA) for user in users], cliente, CONFIG)
    collect(trabajo, cliente, CONFIG)
    assert [row["text"] for row in trabajo.leer_resultados()] == ['{"a": "sí"}']
    reasons = [row["reason"] for row in trabajo.leer_errores()]
    assert "$.a: 3 is not of type 'string'" in reasons[0]
    assert "'b' was unexpected" in reasons[1] and "no es JSON" in reasons[2]
    assert resumen_de_uso(trabajo, CONFIG)["descartadas"] == 3
    assert servidor.posts[0]["requests"][0]["params"]["output_config"]["format"]["schema"] == SCHEMA


def test_every_group_has_its_advice() -> None:
    for class_ in ("api_error", "billing_error", "max_tokens", "refusal", "empty", "missing", "sin_pasaje", "x"):
        assert hint(group_of({"class": class_}), paid=False)
    assert group_of({"class": "x"}) == "transient" and group_of({"class": "x", "usage": {}}) == "unusable"
