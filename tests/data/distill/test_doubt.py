"""A submission whose answer was lost: never sent again blindly, found where the teacher can list its batches."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from maestro import Maestro, Row, answers
from servidor import Servidor

from enlace.config.schema import DistillConfig
from enlace.data.distill import (
    ClienteAnthropic,
    DistillError,
    EnvioRechazado,
    Peticion,
    Trabajo,
    collect,
    resolve,
    resumen_de_uso,
    submit,
)
from enlace.data.distill.errors import EnvioEnDuda
from enlace.data.distill.usage import coste_maximo, require_budget

CONFIG = DistillConfig(requests_per_batch=3)
LOST = [{"reply": "drop"}, {"reply": "garbage"}, *({"reply": status} for status in (408, 409, 500, 502, 504, 529))]


class Reloj:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def dormir(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.mark.parametrize("fault", LOST)
def test_accepted_but_not_heard_is_found_and_paid_once(
    fault: Row, servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    servidor.faults(create=[fault | {"accept": True}])
    reloj = Reloj()
    assert len(submit(trabajo, peticiones, cliente, CONFIG, dormir=reloj.dormir)) == 3
    assert reloj.waits == []  # it was there at once
    assert len(servidor.posts) == 3 and set(servidor.paid.values()) == {1}
    assert collect(trabajo, cliente, CONFIG)["ok"] == 7
    assert all(not lote["provisional"] for lote in trabajo.leer_lotes())
    assert [event["id"] for event in trabajo.eventos("adoptado")] == ["msgbatch_01"]


@pytest.mark.parametrize("fault", LOST)
def test_not_accepted_is_known_after_a_while_and_not_sent_again_before(
    fault: Row, servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    servidor.faults(create=[fault | {"accept": False}])
    reloj = Reloj()
    with pytest.raises(EnvioRechazado, match="no lo aceptó"):
        submit(trabajo, peticiones, cliente, CONFIG, dormir=reloj.dormir)
    assert sum(reloj.waits) >= 15 * 60 and len(servidor.posts) == 1
    assert trabajo.en_duda() == []
    (event,) = trabajo.eventos("no_aceptado")
    assert event["miradas"] >= 3
    assert len(submit(trabajo, peticiones, cliente, CONFIG)) == 3
    assert set(servidor.paid.values()) == {1}


def test_a_batch_that_shows_late_is_still_found(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    """Read-after-write lag was seen: absent from the list at first."""
    servidor.faults(create=[{"reply": 500, "accept": True}], list=[{}, {"hide": 1}, {"hide": 1}, {"reply": 500}])
    reloj = Reloj()
    assert len(submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=reloj.dormir)) == 1
    assert 2 <= len(reloj.waits) <= 4
    assert set(servidor.paid.values()) == {1}


def test_while_the_teacher_cannot_be_asked_the_doubt_stays(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    servidor.faults(create=[{"reply": 500, "accept": True}], list=[{}] + [{"reply": 500}] * 30)
    with pytest.raises(EnvioEnDuda, match=r"no contesta.*--not-submitted") as caught:
        submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir)
    assert caught.value.exit_status == 5
    assert len(trabajo.en_duda()) == 1 and len(servidor.posts) == 1
    servidor.faults(list=[])
    assert submit(trabajo, peticiones[:3], cliente, CONFIG) == ["msgbatch_01"]


def test_other_batches_of_the_account_are_not_taken(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    """Older ones, those of another size, and those of the other jobs in the ledger."""
    submit(Trabajo("otro", trabajo.raiz), [Peticion("", str(i)) for i in range(3)], cliente, CONFIG)
    cliente.crear([{"custom_id": f"x{i}", "params": cliente.construir_params(Peticion("", "x"))} for i in range(2)])
    servidor.faults(create=[{"reply": 500, "accept": False}])
    with pytest.raises(EnvioRechazado, match="no lo aceptó"):
        submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir)
    assert trabajo.leer_lotes() == []


def stray(cliente: ClienteAnthropic, n: int) -> str:
    """Somebody else's batch of `n` requests."""
    params = cliente.construir_params(Peticion("", "ajena"))
    return ClienteAnthropic.crear(cliente, [{"custom_id": f"ajena-{i}", "params": params} for i in range(n)])


def test_a_foreign_batch_that_ended_is_told_apart_by_its_answers(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    real = cliente.crear

    def crear(pedidos: list[Row]) -> str:
        cliente.estado(stray(cliente, 3))  # it has ended
        return real(pedidos)

    cliente.crear = crear  # type: ignore[method-assign]
    servidor.faults(create=[{}, {"reply": 500, "accept": False}])
    with pytest.raises(EnvioRechazado, match="no lo aceptó"):
        submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir)
    assert [event["id"] for event in trabajo.eventos("ajeno")] == ["msgbatch_01"]


def test_a_foreign_batch_taken_for_ours_is_let_go_when_its_answers_come(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    real = cliente.crear

    def crear(pedidos: list[Row]) -> str:
        stray(cliente, 3)
        return real(pedidos)

    cliente.crear = crear  # type: ignore[method-assign]
    servidor.faults(ends_after=1, create=[{}, {"reply": 500, "accept": False}])
    assert submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir) == ["msgbatch_01"]
    cliente.crear = real  # type: ignore[method-assign]
    with pytest.raises(DistillError, match="no es el lote que se buscaba"):
        collect(trabajo, cliente, CONFIG, dormir=Reloj().dormir)
    assert answers(trabajo) == {} and len(trabajo.en_duda()) == 1
    assert submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir) == ["msgbatch_02"]
    collect(trabajo, cliente, CONFIG, dormir=Reloj().dormir)
    assert len(answers(trabajo)) == 3


def test_several_candidates_wait_until_their_answers_tell(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    real = cliente.crear

    def crear(pedidos: list[Row]) -> str:
        stray(cliente, 3)
        return real(pedidos)

    cliente.crear = crear  # type: ignore[method-assign]
    servidor.faults(ends_after=1, create=[{}, {"reply": 500, "accept": True}])
    with pytest.raises(EnvioEnDuda, match="msgbatch_02, msgbatch_01"):
        submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir)
    servidor.faults(ends_after=0)
    for id in ("msgbatch_01", "msgbatch_02"):
        cliente.estado(id)
    assert submit(trabajo, peticiones[:3], cliente, CONFIG) == ["msgbatch_02"]
    assert set(servidor.paid[p.custom_id] for p in peticiones[:3]) == {1}


def test_what_was_paid_twice_counts_twice_and_is_used_once(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    """The same requests in two batches, as when a proxy repeats a submission."""
    real = cliente.crear

    def crear(pedidos: list[Row]) -> str:
        for id in (real(pedidos), real(pedidos)):
            cliente.estado(id)
        raise TimeoutError

    cliente.crear = crear  # type: ignore[method-assign]
    assert submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir) == ["msgbatch_01"]
    cliente.crear = real  # type: ignore[method-assign]
    assert collect(trabajo, cliente, CONFIG)["ok"] == 3
    uso = resumen_de_uso(trabajo, CONFIG)
    assert (uso["resultados"], uso["descartadas"]) == (3, 3)
    assert float(uso["usd_total"]) == 2 * float(uso["usd_exacto"])


def test_a_full_disk_before_sending_sends_nothing(
    servidor: Servidor,
    cliente: ClienteAnthropic,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import enlace.data.distill.batches as batches

    real = batches.write_atomic

    def full(path: Any, data: bytes) -> None:
        if path.name.endswith("receipt.json"):
            raise DistillError(f"{path}: no se puede escribir (disco lleno).")
        real(path, data)

    monkeypatch.setattr(batches, "write_atomic", full)
    with pytest.raises(DistillError, match="disco lleno"):
        submit(trabajo, peticiones, cliente, CONFIG)
    assert servidor.posts == []
    monkeypatch.undo()


class Sordo(Maestro):
    """Accepts, or not, and is not heard; offers only the five methods."""

    acepta = True

    def crear(self, pedidos: list[Row]) -> str:
        if self.acepta:
            super().crear(pedidos)
        raise TimeoutError("sin respuesta")


def test_by_hand_it_was_that_batch(trabajo: Trabajo, peticiones: list[Peticion]) -> None:
    maestro = Sordo()
    with pytest.raises(EnvioEnDuda, match=r"resolve --intent 1 --batch-id"):
        submit(trabajo, peticiones[:3], maestro, CONFIG)
    with pytest.raises(DistillError, match=r"el envío 9 no está en duda\. En duda: 1"):
        resolve(trabajo, 9, None)
    resolve(trabajo, 1, "lote_1")
    with pytest.raises(DistillError, match="no está en duda"):
        resolve(trabajo, 1, "lote_1")
    assert submit(trabajo, peticiones[:3], maestro, CONFIG) == []
    assert collect(trabajo, maestro, CONFIG)["ok"] == 3


def test_by_hand_it_was_not_sent(trabajo: Trabajo, peticiones: list[Peticion]) -> None:
    sordo = Sordo()
    sordo.acepta = False
    with pytest.raises(EnvioEnDuda):
        submit(trabajo, peticiones[:3], sordo, CONFIG)
    resolve(trabajo, 1, None)
    maestro = Maestro()
    assert len(submit(trabajo, peticiones[:3], maestro, CONFIG)) == 1
    assert collect(trabajo, maestro, CONFIG)["ok"] == 3


def test_by_hand_the_wrong_batch_is_noticed(trabajo: Trabajo, peticiones: list[Peticion]) -> None:
    maestro = Maestro()
    submit(trabajo, peticiones[3:6], maestro, CONFIG)  # lote_1
    maestro.crear([{"custom_id": "ajena", "params": {"user": "x"}}])  # lote_2, somebody else's
    sordo = Sordo()
    sordo.lotes = maestro.lotes
    with pytest.raises(EnvioEnDuda):
        submit(trabajo, peticiones[:3], sordo, CONFIG)
    with pytest.raises(DistillError, match="lote_1: ya está anotado"):
        resolve(trabajo, 2, "lote_1")
    resolve(trabajo, 2, "lote_2")
    with pytest.raises(DistillError, match="no es el lote que se buscaba"):
        collect(trabajo, maestro, CONFIG)
    resolve(trabajo, 2, "lote_3")
    assert collect(trabajo, maestro, CONFIG)["ok"] == 3
    assert len(answers(trabajo)) == 6


def test_what_is_in_doubt_is_not_looked_for_in_another_account(
    servidor: Servidor,
    cliente: ClienteAnthropic,
    trabajo: Trabajo,
    peticiones: list[Peticion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There it would seem never accepted, and be paid for again."""
    servidor.faults(create=[{"reply": 500, "accept": True}], list=[{}] + [{"reply": 500}] * 30)
    with pytest.raises(EnvioEnDuda):
        submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir)
    servidor.faults(list=[{"hide": 1}] * 30)  # another account has other batches
    for rebind in (False, True):
        with monkeypatch.context() as other:
            other.setenv("ANTHROPIC_API_KEY", "otra-clave")
            with pytest.raises(EnvioEnDuda, match="desde otra cuenta"):
                submit(trabajo, peticiones[:3], ClienteAnthropic(CONFIG), CONFIG, rebind=rebind, dormir=Reloj().dormir)
    servidor.faults(list=[])
    assert submit(trabajo, peticiones[:3], cliente, CONFIG) == ["msgbatch_01"]
    assert set(servidor.paid.values()) == {1}


def test_the_budget_counts_what_is_in_doubt_once(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, peticiones: list[Peticion]
) -> None:
    servidor.faults(create=[{"reply": 500, "accept": True}], list=[{}] + [{"reply": 500}] * 30)
    most = coste_maximo(peticiones[:3], CONFIG)
    assert most is not None
    allowed = str(most * Decimal("1.5"))
    require_budget(trabajo, peticiones[:3], CONFIG, allowed)
    with pytest.raises(EnvioEnDuda):
        submit(trabajo, peticiones[:3], cliente, CONFIG, dormir=Reloj().dormir)
    require_budget(trabajo, trabajo.sin_enviar(peticiones[:3]), CONFIG, allowed)
