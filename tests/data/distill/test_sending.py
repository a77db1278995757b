"""Sending: each request paid for once, whatever happens in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from maestro import Maestro, Row

from enlace.config.schema import DistillConfig
from enlace.data.distill import DistillError, EnvioRechazado, Peticion, Trabajo, collect, submit
from enlace.data.distill.batches import Lotes
from enlace.data.distill.sending import allow_objected


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
    with pytest.raises(DistillError, match="Repite") as caught:
        submit(trabajo, peticiones, maestro, config)
    assert "se perdió la respuesta" not in str(caught.value)
    submit(trabajo, peticiones, maestro, config)
    assert collect(trabajo, maestro, config)["ok"] == 7


def test_the_id_is_told_when_the_receipt_cannot_be_written(
    trabajo: Trabajo,
    peticiones: list[Peticion],
    maestro: Maestro,
    config: DistillConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Lotes, numero: int, batch_id: str) -> None:
        raise DistillError("disco lleno.")

    monkeypatch.setattr(Lotes, "escribir_recibo", full)
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


HOLDS = """
import sys
from pathlib import Path
from enlace.config.schema import DistillConfig
from enlace.data.distill import ClienteExtractivo, Peticion, Trabajo, submit

class Espera(ClienteExtractivo):
    def crear(self, pedidos):
        print("dentro", flush=True)
        sys.stdin.readline()
        return super().crear(pedidos)

raiz = Path(sys.argv[1])
submit(Trabajo("prueba", raiz), [Peticion("s", "u")], Espera(raiz / "servidor"), DistillConfig())
"""


def test_two_processes_pay_once(trabajo: Trabajo, maestro: Maestro, config: DistillConfig) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDS, trabajo.raiz], **pipes) as first:  # type: ignore[call-overload]
        assert first.stdout.readline() == "dentro\n"
        with pytest.raises(DistillError, match=r"otro proceso está en este trabajo. Espera a que acabe"):
            submit(trabajo, [Peticion("s", "u")], maestro, config)
        first.communicate("sigue\n", timeout=60)
    assert first.returncode == 0
    assert maestro.enviados == [] and len(trabajo.leer_lotes()) == 1


def test_a_refusal_to_train_models_stops_the_sending(
    trabajo: Trabajo, peticiones: list[Peticion], maestro: Maestro, config: DistillConfig
) -> None:
    refused = {"stop_reason": "refusal", "text": "", "stop_details": {"category": "frontier_llm"}}
    maestro.alterar = lambda rows: [row | refused for row in rows]
    submit(trabajo, peticiones[:1], maestro, config)
    collect(trabajo, maestro, config)
    with pytest.raises(DistillError, match=r"errors\.jsonl.*condiciones del proveedor"):
        submit(trabajo, peticiones, maestro, config)
    assert len(maestro.enviados) == 1
    assert submit(trabajo, peticiones[:1], maestro, config) == []  # nothing to send, nothing to object to

    assert allow_objected(trabajo) == 1
    assert len(submit(trabajo, peticiones, maestro, config)) == 2
