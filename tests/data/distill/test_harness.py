"""Sending and collecting: each request paid for once, each answer paired and kept, whatever happens in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from maestro import Maestro, Row, good

from enlace.config.schema import DistillConfig
from enlace.data.distill import DistillError, EnvioRechazado, Peticion, Trabajo, collect, status, submit


def answers(trabajo: Trabajo) -> dict[str, str]:
    return {row["custom_id"]: row["text"] for row in trabajo.leer_resultados()}


def errors(trabajo: Trabajo) -> dict[str, str]:
    return {row["custom_id"]: row["class"] for row in trabajo.leer_errores()}


def files(trabajo: Trabajo) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in trabajo.carpeta.rglob("*") if p.is_file() and p.name != "LOCK"}


def test_all_is_sent_once_in_batches(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    assert submit(trabajo, [*peticiones, peticiones[0]], maestro, config) == ["lote_1", "lote_2", "lote_3"]
    assert [len(pedidos) for pedidos in maestro.lotes.values()] == [3, 3, 1]
    assert [lote["id"] for lote in trabajo.leer_lotes()] == ["lote_1", "lote_2", "lote_3"]
    assert submit(trabajo, peticiones, maestro, config) == []
    assert trabajo.leer_peticiones() == peticiones
    more = Peticion("Sé breve.", "otra")
    assert submit(trabajo, [*peticiones, more], maestro, config) == ["lote_4"]
    assert maestro.enviados == [peticion.custom_id for peticion in [*peticiones, more]]


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
    ("empty", lambda row: [row | {"text": " \n"}]),
    ("empty", lambda row: [row | {"text": None}]),
    ("missing", lambda row: []),
    ("missing", lambda row: [row | {"custom_id": "de-otro"}]),
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


def test_the_teacher_out_of_reach(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    submit(trabajo, peticiones, maestro, config)

    def cut(rows: list[Row]) -> Iterator[Row]:
        yield rows[0]
        raise ConnectionResetError("se cortó")

    maestro.alterar = cut  # type: ignore[assignment]
    with pytest.raises(DistillError, match="repite"):
        collect(trabajo, maestro, config)
    assert answers(trabajo) == {} and not trabajo.crudo_path("lote_1").exists()
    maestro.alterar = lambda rows: rows
    assert collect(trabajo, maestro, config)["ok"] == 7


# Sending that goes wrong


class Falla(Maestro):
    """Fails at the second batch: before or after accepting it."""

    def __init__(self, error: BaseException | None, accepts: bool) -> None:
        super().__init__()
        self.error, self.accepts = error, accepts

    def crear(self, pedidos: list[Row]) -> Any:
        if len(self.lotes) != 1:
            return super().crear(pedidos)
        if self.accepts:
            super().crear(pedidos)
        if self.error:
            raise self.error


@pytest.mark.parametrize("accepts", [False, True])
@pytest.mark.parametrize("error", [TimeoutError("sin respuesta"), KeyboardInterrupt(), None])
def test_a_lost_answer_blocks_until_a_person_decides(
    accepts: bool, error: BaseException | None, trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig
) -> None:
    maestro = Falla(error, accepts)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else DistillError
    with pytest.raises(expected):
        submit(trabajo, peticiones, maestro, config)
    paid = maestro.enviados
    for _ in range(2):
        with pytest.raises(DistillError, match=r"lote de 3 peticiones.*000002\.receipt\.json.*000002\.intent\.json"):
            submit(trabajo, peticiones, maestro, config)
    assert maestro.enviados == paid

    if accepts:
        trabajo.recibo_path(2).write_text('{"id": "lote_2"}', encoding="utf-8")
    else:
        trabajo.intento_path(2).unlink()
        maestro.error, maestro.crear = None, lambda pedidos: Maestro.crear(maestro, pedidos)  # type: ignore[method-assign]
    submit(trabajo, peticiones, maestro, config)
    assert sorted(maestro.enviados) == sorted(p.custom_id for p in peticiones)
    assert collect(trabajo, maestro, config)["ok"] == 7


def test_a_certain_refusal_leaves_no_doubt(trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig) -> None:
    maestro = Falla(EnvioRechazado("no hay saldo"), accepts=False)
    with pytest.raises(EnvioRechazado, match="no hay saldo"):
        submit(trabajo, peticiones, maestro, config)
    assert trabajo.en_duda() == [] and len(trabajo.leer_lotes()) == 1
    assert len(submit(trabajo, peticiones, Maestro(), config)) == 2


def test_a_teacher_that_may_be_asked_again_leaves_no_doubt(
    trabajo: Trabajo, peticiones: list[Peticion], config: DistillConfig
) -> None:
    maestro = Falla(TimeoutError(), accepts=True)
    maestro.idempotente = True  # type: ignore[attr-defined]
    with pytest.raises(DistillError):
        submit(trabajo, peticiones, maestro, config)
    submit(trabajo, peticiones, maestro, config)
    assert collect(trabajo, maestro, config)["ok"] == 7


def test_the_id_is_told_when_the_receipt_cannot_be_written(
    trabajo: Trabajo,
    peticiones: list[Peticion],
    maestro: Maestro,
    config: DistillConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Trabajo, numero: int, batch_id: str) -> None:
        raise DistillError("disco lleno.")

    monkeypatch.setattr(Trabajo, "escribir_recibo", full)
    with pytest.raises(DistillError, match='"id": "lote_1"'):
        submit(trabajo, peticiones, maestro, config)


KILLED = """
import os, signal, sys
from pathlib import Path
from enlace.config.schema import DistillConfig
from enlace.data.distill import ClienteExtractivo, Peticion, Trabajo, submit

class Muere(ClienteExtractivo):
    idempotente = False
    def crear(self, pedidos):
        if sys.argv[2] == "antes":
            os.kill(os.getpid(), signal.SIGKILL)
        super().crear(pedidos)
        os.kill(os.getpid(), signal.SIGKILL)

raiz = Path(sys.argv[1])
submit(Trabajo("prueba", raiz), [Peticion("s", "u")], Muere(raiz / "servidor"), DistillConfig())
"""


@pytest.mark.parametrize("moment", ["antes", "después"])
def test_killed_around_the_sending(moment: str, trabajo: Trabajo, maestro: Maestro, config: DistillConfig) -> None:
    child = subprocess.run([sys.executable, "-c", KILLED, trabajo.raiz, moment], check=False)
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(DistillError, match="se perdió la respuesta"):
        submit(trabajo, [Peticion("s", "u")], maestro, config)
    assert maestro.enviados == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_two_processes_pay_once(tmp_path: Path) -> None:
    program = KILLED.replace('if sys.argv[2] == "antes":', "import time; time.sleep(1)\n        if False:").replace(
        "        super().crear(pedidos)\n        os.kill(os.getpid(), signal.SIGKILL)",
        "        return super().crear(pedidos)",
    )
    two = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path, "-"], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [child.communicate()[1] for child in two]
    assert sorted(child.returncode for child in two) == [0, 1]
    assert "otro proceso está en este trabajo" in "".join(said)
    assert len(Trabajo("prueba", tmp_path).leer_lotes()) == 1
