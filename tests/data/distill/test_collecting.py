"""Collecting: each answer paired and kept, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from maestro import Maestro, Row, answers, errors, good

from enlace.config.schema import DistillConfig
from enlace.data.distill import DistillError, Peticion, Trabajo, collect, status, submit


def files(trabajo: Trabajo) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in trabajo.carpeta.rglob("*") if p.is_file() and p.name != "LOCK"}


def test_answers_pair_by_id_and_twice_adds_nothing(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    submit(trabajo, peticiones, maestro, config)
    assert collect(trabajo, maestro, config) == {"ok": 7, "error": 0, "ya_estaban": 0}
    assert answers(trabajo) == {p.custom_id: f"eco: {p.user}" for p in peticiones}
    before = files(trabajo)
    assert collect(trabajo, maestro, config) == {"ok": 0, "error": 0, "ya_estaban": 7}
    assert files(trabajo) == before
    assert len(maestro.descargas) == 3
    assert submit(trabajo, peticiones, maestro, config) == []


def test_waiting_uses_the_given_clock(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    submit(trabajo, peticiones, maestro, config)
    maestro.tardanza = 4
    waits: list[float] = []
    assert collect(trabajo, maestro, config, ahora=lambda: sum(waits), dormir=waits.append)["ok"] == 7
    assert waits == [10.0] * 4


def test_past_the_limit_nothing_is_lost(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    submit(trabajo, peticiones, maestro, config)
    maestro.tardanza = 10**9
    maestro.vistas["lote_2"] = 10**9
    waits: list[float] = []
    with pytest.raises(DistillError, match="max_wait_hours"):
        collect(trabajo, maestro, config, ahora=lambda: sum(waits), dormir=waits.append)
    assert sum(waits) == 3600
    assert len(answers(trabajo)) == 3
    maestro.tardanza = 0
    assert collect(trabajo, maestro, config) == {"ok": 4, "error": 0, "ya_estaban": 3}


def test_collecting_before_submitting(trabajo: Trabajo, maestro: Maestro, config: DistillConfig) -> None:
    with pytest.raises(DistillError, match="submit"):
        collect(trabajo, maestro, config)
    assert status(trabajo, maestro) == []


def test_status(trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig) -> None:
    submit(trabajo, peticiones, maestro, config)
    rows = status(trabajo, maestro)
    assert [(row["id"], row["processing_status"], row["peticiones"], row["recogido"]) for row in rows] == [
        ("lote_1", "ended", 3, False),
        ("lote_2", "ended", 3, False),
        ("lote_3", "ended", 1, False),
    ]
    assert {"succeeded", "errored", "processing", "canceled", "expired"} <= rows[0].keys()


BAD: list[tuple[str, Callable[[Row], list[Row]]]] = [
    ("invalid_request_error", lambda row: [row | {"type": "errored", "error_type": "invalid_request_error"}]),
    ("expired", lambda row: [{"custom_id": row["custom_id"], "type": "expired", "error_type": "expired"}]),
    ("canceled", lambda row: [{"custom_id": row["custom_id"], "type": "canceled"}]),
    ("max_tokens", lambda row: [row | {"stop_reason": "max_tokens"}]),
    ("refusal", lambda row: [row | {"stop_reason": "refusal", "text": ""}]),
    ("una_nueva", lambda row: [row | {"stop_reason": "una_nueva"}]),
    ("malformed", lambda row: [row | {"stop_reason": None}]),
    ("malformed", lambda row: [row | {"stop_reason": {}}]),
    ("malformed", lambda row: [row | {"usage": {"input_tokens": "diez"}}]),
    ("malformed", lambda row: [row | {"usage": [1]}]),
    ("malformed", lambda row: [{"custom_id": row["custom_id"], "type": "malformed", "line": {}}]),
    ("empty", lambda row: [row | {"text": " \n"}]),
    ("empty", lambda row: [row | {"text": None}]),
    ("missing", lambda row: []),
    ("missing", lambda row: [row | {"custom_id": "de-otro"}]),
    ("missing", lambda row: [row | {"custom_id": None}]),
]


@pytest.mark.parametrize(("name", "spoil"), BAD)
def test_what_is_no_good_answer_becomes_an_error(
    name: str,
    spoil: Callable[[Row], list[Row]],
    trabajo: Trabajo,
    peticiones: list[Peticion],
    maestro: Maestro,
    config: DistillConfig,
) -> None:
    victim = peticiones[1].custom_id
    maestro.alterar = lambda rows: [
        new for row in rows for new in (spoil(row) if row["custom_id"] == victim else [row])
    ]
    submit(trabajo, peticiones, maestro, config)
    assert collect(trabajo, maestro, config) == {"ok": 6, "error": 1, "ya_estaban": 0}
    assert errors(trabajo) == {victim: name}
    assert answers(trabajo) == {p.custom_id: f"eco: {p.user}" for p in peticiones if p.custom_id != victim}
    assert collect(trabajo, maestro, config) == {"ok": 0, "error": 0, "ya_estaban": 7}
    assert submit(trabajo, peticiones, maestro, config) == []  # errors are not bought again by themselves


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("text", "schema", "good"),
    [
        ('{"a": "x"}', SCHEMA, True),
        ('{"b": "x"}', SCHEMA, False),
        ('{"a": "x"', SCHEMA, False),
        ('["a"]', SCHEMA, False),
        ("[1]", {"type": "array"}, True),
        ("no", {"type": "array"}, False),
        ("no", None, True),
    ],
)
def test_an_answer_follows_the_schema_asked_for(
    text: str, schema: Row | None, good: bool, trabajo: Trabajo, maestro: Maestro, config: DistillConfig
) -> None:
    maestro.alterar = lambda rows: [row | {"text": text} for row in rows]
    submit(trabajo, [Peticion("s", "u", schema=schema)], maestro, config)
    assert collect(trabajo, maestro, config)["ok"] == good
    assert set(errors(trabajo).values()) == (set() if good else {"schema_invalid"})
    assert all(row["usage"]["output_tokens"] == 5 for row in trabajo.leer_errores())  # it was paid for


@pytest.mark.parametrize("details", [{"category": "cyber", "explanation": "..."}, {"category": None}, None])
def test_a_refusal_says_its_category(
    details: Row | None, trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    maestro.alterar = lambda rows: [row | {"stop_reason": "refusal", "stop_details": details} for row in rows]
    submit(trabajo, peticiones[:1], maestro, config)
    collect(trabajo, maestro, config)
    (error,) = trabajo.leer_errores()
    assert (error["class"], error["category"]) == ("refusal", details and details["category"])


def test_repeated_and_foreign_lines(
    trabajo: Trabajo,
    peticiones: list[Peticion],
    maestro: Maestro,
    config: DistillConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    maestro.alterar = lambda rows: [rows[0] | {"stop_reason": "refusal"}, *rows, good("ajena", "x"), rows[0]]
    submit(trabajo, peticiones[:3], maestro, config)
    assert collect(trabajo, maestro, config) == {"ok": 3, "error": 0, "ya_estaban": 0}
    assert "3 líneas repetidas o de otras peticiones" in capsys.readouterr().out


def test_strange_characters_come_through(trabajo: Trabajo, maestro: Maestro, config: DistillConfig) -> None:
    peticion = Peticion("s", "uno\u2028dos\u2029tres\x85\x0b\0 🧉 " + "ñ" * 100_000)
    submit(trabajo, [peticion], maestro, config)
    collect(trabajo, maestro, config)
    assert answers(trabajo) == {peticion.custom_id: f"eco: {peticion.user}"}
    assert trabajo.leer_peticiones() == [peticion]


def test_a_short_download_is_repeated(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    maestro.alterar = lambda rows: rows[:1] if len(maestro.descargas) == 1 else rows[1:]
    submit(trabajo, peticiones[:3], maestro, config)
    assert collect(trabajo, maestro, config)["ok"] == 3


def test_a_missing_answer_can_be_fetched_again(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    maestro.alterar = lambda rows: rows[:1]
    submit(trabajo, peticiones[:3], maestro, config)
    assert collect(trabajo, maestro, config) == {"ok": 1, "error": 2, "ya_estaban": 0}
    maestro.alterar = lambda rows: rows
    trabajo.crudo_path("lote_1").unlink()
    assert collect(trabajo, maestro, config) == {"ok": 2, "error": 0, "ya_estaban": 3}
    assert len(answers(trabajo)) == 3


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_killed_anywhere_while_collecting_ends_the_same(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cut the written files back to any state that a kill can leave; collecting again gives the same outcome."""
    trabajo, maestro = Trabajo("t", tmp_path_factory.mktemp("kill")), Maestro()
    config = DistillConfig(requests_per_batch=3)
    peticiones = [Peticion("s", str(i)) for i in range(7)]
    maestro.alterar = lambda rows: [r | {"text": ""} if r["text"] in ("eco: 2", "eco: 5") else r for r in rows]
    submit(trabajo, peticiones, maestro, config)
    collect(trabajo, maestro, config)
    whole = answers(trabajo), errors(trabajo)

    for path in (trabajo.resultados_path, trabajo.errores_path):
        content = path.read_bytes()
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    for lote in trabajo.leer_lotes():
        if data.draw(st.booleans()):
            trabajo.crudo_path(lote["id"]).rename(trabajo.crudo_path(lote["id"]).with_suffix(".part"))
    collect(trabajo, maestro, config)
    assert (answers(trabajo), errors(trabajo)) == whole
    assert len(list(trabajo.leer_resultados())) == 5 and len(list(trabajo.leer_errores())) == 2
