"""What came down against what was sent: nothing missing unnoticed, nothing foreign used, whatever the order.

Over the real SDK and the server. Each test is a fault that some other harness had.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from maestro import answers, errors
from muerte import fork, until
from servidor import Servidor

from enlace.config.schema import DistillConfig
from enlace.data.distill import (
    ClienteAnthropic,
    DistillError,
    Peticion,
    Trabajo,
    collect,
    resumen_de_uso,
    status,
    submit,
)
from enlace.data.distill.collecting import rebuild
from enlace.data.distill.errors import SigueEnMarcha
from enlace.data.distill.exporting import export

pytest.importorskip("anthropic")
CONFIG = DistillConfig(requests_per_batch=100, max_wait_hours=1.0)


def gather(trabajo: Trabajo, cliente: ClienteAnthropic, **options: Any) -> dict[str, int]:
    """Collect, with a clock that only waiting moves."""
    waits: list[float] = []
    return collect(trabajo, cliente, CONFIG, ahora=lambda: sum(waits), dormir=waits.append, **options)


def ask(trabajo: Trabajo, cliente: ClienteAnthropic, *users: str) -> list[Peticion]:
    peticiones = [Peticion("Sé breve.", user) for user in users]
    submit(trabajo, peticiones, cliente, CONFIG)
    return peticiones


def test_each_request_keeps_its_own_answer_beside_failures(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    asked = ask(trabajo, cliente, "a", "b [[errored:api_error]]", "c", "d [[expired]]", "e [[missing]]", "f")
    servidor.faults(results={"order": 5})
    assert gather(trabajo, cliente) == {"ok": 3, "error": 3, "ya_estaban": 0}
    assert answers(trabajo) == {p.custom_id: f"eco: {p.user}" for p in asked if "[[" not in p.user}
    assert [errors(trabajo)[p.custom_id] for p in asked if "[[" in p.user] == ["api_error", "expired", "missing"]


def test_any_order_gives_the_same_bytes(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    made = set()
    for i, order in enumerate((None, "reverse", 1, 2)):
        job = Trabajo(f"t{i}", trabajo.raiz)
        servidor.reset()
        servidor.faults(results={"order": order})
        asked = ask(job, cliente, *(f"pregunta {n}" for n in range(100)))
        gather(job, cliente)
        out = job.carpeta / "dataset.jsonl"
        export(job, asked, out, None)
        made.add((out.read_bytes(), job.resultados_path.read_bytes()))
    assert len(made) == 1


@pytest.mark.parametrize("cut", ["midline", "boundary", "length", "chunked"])
def test_a_cut_download_is_fetched_again_and_never_half_kept(
    cut: str, servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    asked = ask(trabajo, cliente, "a", "b", "c")
    servidor.faults(results=[{"cut": cut}])
    assert gather(trabajo, cliente)["ok"] == 3
    assert answers(trabajo) == {p.custom_id: f"eco: {p.user}" for p in asked}
    assert len(trabajo.crudo_path("msgbatch_01").read_bytes().splitlines()) == 3


@pytest.mark.parametrize("cut", ["midline", "length", "chunked"])
def test_always_cut_it_is_not_kept(cut: str, servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    ask(trabajo, cliente, "a", "b")
    servidor.faults(results={"cut": cut})
    with pytest.raises(DistillError, match=r"[Rr]epite"):
        gather(trabajo, cliente)
    assert not trabajo.crudo_path("msgbatch_01").exists() and answers(trabajo) == {}
    servidor.faults(results={})
    assert gather(trabajo, cliente)["ok"] == 2


def test_what_went_missing_comes_back(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    ask(trabajo, cliente, "a", "b", "c")
    servidor.faults(results={"cut": "boundary"})  # looks complete, each time
    assert gather(trabajo, cliente) == {"ok": 2, "error": 1, "ya_estaban": 0}
    assert list(errors(trabajo).values()) == ["missing"]
    (event,) = trabajo.eventos("reconciliado")
    assert (event["faltan"], event["sobran"]) == (1, 0)
    servidor.faults(results={})
    assert gather(trabajo, cliente, refetch=True) == {"ok": 1, "error": 0, "ya_estaban": 3}
    assert errors(trabajo) == {}


def test_ends_of_lines_of_all_kinds(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    strange = "uno\u2028dos\u2029tres\x85cuatro\x0bcinco\x1eseis\0🧉" + "ñ" * 200_000
    asked = ask(trabajo, cliente, strange, "b")
    servidor.faults(results={"crlf": True, "blank": True, "no_last_end": True})
    assert gather(trabajo, cliente)["ok"] == 2
    assert answers(trabajo) == {p.custom_id: f"eco: {p.user}" for p in asked}


def test_repeated_and_foreign_lines_are_kept_told_and_not_used(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(trabajo, cliente, "a", "b")
    servidor.faults(results={"duplicate": 1, "foreign": 1})
    assert gather(trabajo, cliente) == {"ok": 2, "error": 0, "ya_estaban": 0}
    assert "2 líneas repetidas o de otras peticiones" in capsys.readouterr().out
    assert b"de-otro" in trabajo.crudo_path("msgbatch_01").read_bytes()


def test_fifty_failing_downloads_leave_nothing_open(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    ask(trabajo, cliente, "a", "b")
    servidor.faults(results={"cut": "length"})
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(DistillError):
        gather(trabajo, cliente)  # one round a minute for an hour
    assert servidor.state()["calls"]["results"] >= 50
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


@pytest.mark.parametrize("endpoint", ["retrieve", "results"])
@pytest.mark.parametrize("fault", [404, 429, 500, 502, 529, "drop"])
def test_a_teacher_that_fails_for_a_while_is_asked_again(
    endpoint: str, fault: Any, servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    """404 was seen a second after the submission, and again on the results of a batch that had ended."""
    ask(trabajo, cliente, "a")
    bad = {"reply": 500} if (endpoint, fault) == ("results", "drop") else {"reply": fault, "retry_after": 10**6}
    servidor.faults(**{endpoint: [bad] * 3})
    assert gather(trabajo, cliente)["ok"] == 1
    assert len(servidor.posts) == 1


def test_at_the_limit_it_says_so_with_a_status_of_its_own(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    ask(trabajo, cliente, "a")
    servidor.faults(retrieve={"reply": 429, "retry_after": 10**9})
    with pytest.raises(SigueEnMarcha, match="max_wait_hours") as caught:
        gather(trabajo, cliente)
    assert caught.value.exit_status == 4
    assert servidor.state()["calls"].get("cancel") is None


def test_batches_under_way_are_resumed_not_sent_again(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    config = CONFIG.model_copy(update={"requests_per_batch": 1})
    asked = [Peticion("", user) for user in "abc"]
    submit(trabajo, asked, cliente, config)
    servidor.faults(ends_after=100)
    with pytest.raises(SigueEnMarcha):
        gather(trabajo, cliente)
    servidor.faults(ends_after=0)
    assert submit(trabajo, asked, cliente, config) == []
    assert gather(trabajo, cliente)["ok"] == 3
    assert len(servidor.posts) == 3


def test_ctrl_c_while_waiting_cancels_nothing(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    ask(trabajo, cliente, "a")
    servidor.faults(ends_after=10**9)

    def wait() -> None:
        try:
            collect(trabajo, cliente, CONFIG.model_copy(update={"poll_interval_seconds": 0.01}))
        except KeyboardInterrupt:
            os._exit(130)

    child = fork(wait)
    until(lambda: servidor.state()["calls"].get("retrieve", 0) > 2)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    servidor.faults(ends_after=0)
    assert "cancel" not in servidor.state()["calls"]
    assert gather(trabajo, cliente)["ok"] == 1


def test_what_a_cancelled_batch_had_done_is_kept_and_counted(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    ask(trabajo, cliente, *(f"p{i}" for i in range(100)))
    servidor.faults(ends_after=10**9)
    cliente.cancelar("msgbatch_01")
    assert gather(trabajo, cliente) == {"ok": 30, "error": 70, "ya_estaban": 0}
    assert set(errors(trabajo).values()) == {"canceled"}
    uso = resumen_de_uso(trabajo, CONFIG)
    assert (uso["resultados"], uso["descartadas"]) == (30, 0)


def test_the_reason_of_an_error_is_kept(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    ask(trabajo, cliente, "a [[errored:overloaded_error:demasiada gente]]")
    gather(trabajo, cliente)
    (row,) = trabajo.leer_errores()
    assert (row["class"], row["reason"], row["request_id"]) == (
        "overloaded_error",
        "overloaded_error: demasiada gente",
        "req_1",
    )


def test_answers_that_the_provider_no_longer_has(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    ask(trabajo, cliente, "a", "b")
    servidor.faults(archived=True)
    assert gather(trabajo, cliente) == {"ok": 0, "error": 2, "ya_estaban": 0}
    assert set(errors(trabajo).values()) == {"results_lost"}
    assert submit(trabajo, [Peticion("Sé breve.", "a")], cliente, CONFIG) == []


def test_another_account_is_refused_before_it_looks_like_lost_batches(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(trabajo, cliente, "a")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "otra-clave")
    other = ClienteAnthropic(DistillConfig(max_tokens=300))
    for attempt in (lambda: gather(trabajo, other), lambda: ask(trabajo, other, "b")):
        with pytest.raises(DistillError, match=r"cuenta: \w+ → \w+") as caught:
            attempt()
        assert "clave" not in str(caught.value).replace("otra cuenta", "")
    assert len(servidor.posts) == 1
    assert "clave" not in "".join(p.read_text(encoding="utf-8") for p in trabajo.carpeta.glob("*.json*"))
    longer = ClienteAnthropic(DistillConfig(max_tokens=301))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "clave-de-prueba")
    with pytest.raises(DistillError, match="max_tokens: 300 → 301"):
        ask(trabajo, longer, "b")
    assert len(submit(trabajo, [Peticion("", "b")], longer, CONFIG, rebind=True)) == 1
    assert gather(trabajo, longer)["ok"] == 2


def test_a_job_goes_on_with_a_new_key_also_with_nothing_to_send(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that was replaced must not leave paid answers where nobody can fetch them."""
    asked = ask(trabajo, cliente, "a")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "clave-nueva")
    renewed = ClienteAnthropic(DistillConfig(max_tokens=300))
    with pytest.raises(DistillError, match="submit --rebind"):
        gather(trabajo, renewed)
    assert submit(trabajo, asked, renewed, CONFIG, rebind=True) == []
    assert gather(trabajo, renewed)["ok"] == 1


def test_a_wrong_key_is_explained(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "mala")
    with pytest.raises(DistillError, match=r"clave de Anthropic no vale.*\.env"):
        ask(trabajo, cliente, "a")
    assert trabajo.en_duda() == [] and servidor.posts == []


def test_status_tells_how_long_the_answers_stay(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    ask(trabajo, cliente, "a")
    (row,) = status(trabajo, cliente)
    assert row["processing_status"] == "ended" and 28.9 < row["dias"] <= 29


def test_better_rules_need_no_new_answers(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are made from the raw answers, by the rules of now."""
    ask(trabajo, cliente, "a", "b [[pause_turn]]")
    gather(trabajo, cliente)
    assert len(answers(trabajo)) == 1
    calls = servidor.state()["calls"]
    monkeypatch.setattr("enlace.data.distill.judge._GOOD_STOPS", {"end_turn", "pause_turn"})
    for name in ("results.jsonl", "errors.jsonl", "derived.json"):
        (trabajo.carpeta / name).unlink()
    rebuild(trabajo, cliente)
    assert len(answers(trabajo)) == 2 and errors(trabajo) == {}
    assert servidor.state()["calls"] == calls


def test_a_large_batch_is_cut_by_bytes_as_they_are_sent(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    system = "ñ" * 10_000  # 20 kB of UTF-8
    peticiones = [Peticion(system, str(i)) for i in range(10)]
    config = CONFIG.model_copy(update={"bytes_per_batch": 70_000})
    submit(trabajo, peticiones, cliente, config)
    assert [len(post["custom_ids"]) for post in servidor.posts] == [3, 3, 3, 1]


def test_a_batch_that_the_server_finds_too_large_goes_in_halves(
    servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo
) -> None:
    servidor.faults(create={"max_requests": 3})
    ask(trabajo, cliente, *"abcdefg")
    assert [len(post["custom_ids"]) for post in servidor.posts if post["id"]] == [3, 2, 2]
    assert set(servidor.paid.values()) == {1}


def test_too_soon_waits_as_asked(servidor: Servidor, cliente: ClienteAnthropic, trabajo: Trabajo) -> None:
    servidor.faults(create=[{"reply": 429, "retry_after": 7}])
    waits: list[float] = []
    assert len(submit(trabajo, [Peticion("", "a")], cliente, CONFIG, dormir=waits.append)) == 1
    assert waits == [7.0] and set(servidor.paid.values()) == {1}
