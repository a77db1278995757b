"""`enlace distill …` as a person runs it, against the server: what it prints and its exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from muerte import fork, until
from servidor import Servidor

from enlace.data.distill import ClienteAnthropic, Peticion
from tests.conftest import ROOT

pytest.importorskip("anthropic")
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cliente: ClienteAnthropic) -> Path:
    """A project whose teacher is the server, with three requests."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    teacher = tmp_path / "configs/distill/anthropic.yaml"
    text = teacher.read_text(encoding="utf-8").replace("poll_interval_seconds: 60", "poll_interval_seconds: 0.01")
    teacher.write_text(text.replace("doubt_grace_minutes: 15", "doubt_grace_minutes: 0"), encoding="utf-8")
    specs = tmp_path / "data/specs/casa.jsonl"
    specs.parent.mkdir(parents=True)
    users = ("uno", "dos [[once:max_tokens]]", "tres [[once:errored:api_error]]")
    specs.write_text("".join(json.dumps({"system": "s", "user": u}) + "\n" for u in users), encoding="utf-8")
    for name in ("DVC_ROOT", "LEDGER_DIR", "DISTILL_BUDGET_USD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def enlace(project: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `enlace distill`; gives its exit status and all that it printed. Forked: importing takes seconds."""

    def run(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        child = fork(lambda: command(*arguments))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said
        return status, said

    return run


def command(*arguments: str) -> None:
    from enlace import cli, console

    sys.argv = ["enlace", "distill", *arguments]
    if "--teacher" not in arguments and arguments[0] not in ("--help",):
        sys.argv += ["--teacher", "anthropic"]
    try:
        console.run_main(cli.app.run)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))
    sys.stdout.flush()


def test_from_no_key_to_a_data_set(
    enlace: Run, project: Path, servidor: Servidor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    status, said = enlace("plan")
    assert status == 0 and "3 peticiones en 1 lotes" in said and "como mucho: 0.04 USD" in said
    status, said = enlace("submit")
    assert status == 7 and "3 peticiones" in said and "DISTILL_BUDGET_USD=0.04" in said
    status, said = enlace("submit", "--max-usd", "1")
    assert status == 1 and "ANTHROPIC_API_KEY" in said
    assert servidor.posts == []

    monkeypatch.setenv("ANTHROPIC_API_KEY", "clave-de-prueba")
    assert enlace("submit", "--max-usd", "0.01")[0] == 7
    assert enlace("submit", "--max-usd", "1") == (
        0,
        "1 lotes enviados. Para recoger las respuestas: enlace distill collect --teacher anthropic\n",
    )
    status, said = enlace("status")
    assert status == 0 and "msgbatch_01: 3 peticiones, ended, por recoger, quedan" in said
    status, said = enlace("collect")
    assert status == 6 and "1 respuestas y 2 errores nuevos" in said
    assert "1 max_tokens: retry-failed --max-tokens N" in said and "1 api_error: retry-failed" in said
    assert enlace("collect")[0] == 6

    status, said = enlace("retry-failed", "--max-usd", "1")
    assert (status, said) == (0, "1 peticiones reenviadas en 1 lotes.\n")
    assert enlace("retry-failed", "--max-tokens", "2048", "--max-usd", "1")[1].startswith("1 peticiones")
    assert enlace("collect")[0] == 0
    status, said = enlace("usage")
    assert status == 0 and "3 respuestas buenas" in said and "1 pagadas que no sirven" in said
    assert enlace("verify")[0] == 0
    calls = servidor.state()["calls"]
    status, said = enlace("export", "--out", "out.jsonl")
    assert status == 0 and "3 conversaciones" in said
    rows = [json.loads(line) for line in (project / "out.jsonl").read_bytes().splitlines()]
    assert [row["assistant"] for row in rows] == [f"eco: {row['user']}" for row in rows]
    assert enlace("status", "--offline")[0] == 0
    assert servidor.state()["calls"] == calls
    assert len(servidor.posts) == 3


def test_a_free_teacher_is_not_spoken_of_as_if_it_charged(enlace: Run, project: Path) -> None:
    teacher = ("--teacher", "extractive")
    said = enlace("plan", *teacher)[1]
    assert "3 peticiones" in said and "USD" not in said
    assert enlace("submit", *teacher)[0] == 0
    assert "quedan" not in enlace("status", *teacher)[1]
    status, said = enlace("collect", *teacher)
    assert status == 0 and "3 sin_pasaje: reenviarla no cambia nada" in said  # no script can do anything about it
    (errors,) = project.glob("data/ledger/extractive-*/errors.jsonl")
    errors.write_text(errors.read_text(encoding="utf-8").replace("sin_pasaje", "max_tokens"), encoding="utf-8")
    said = enlace("status", *teacher)[1]
    assert "3 max_tokens: retry-failed --max-tokens N, con más que antes\n" in said
    assert enlace("cancel", *teacher) == (0, "No hay lotes por recoger.\n")


def test_a_model_without_a_price(enlace: Run, project: Path) -> None:
    enlace("submit", "--max-usd", "1")
    enlace("collect")
    prices = project / "configs/distill/prices/anthropic.yaml"
    prices.write_text(prices.read_text(encoding="utf-8").replace("claude-opus-5:", "otro-modelo:"), encoding="utf-8")
    said = enlace("usage")[1]
    assert "En total: desconocido (" in said and "desconocido USD" not in said
    assert "desconocido" in enlace("plan")[1]
    specs = project / "data/specs/otra.jsonl"
    specs.write_text('{"system": "", "user": "otra"}\n', encoding="utf-8")
    status, said = enlace("submit", "--max-usd", "1")
    assert status == 7 and "precio desconocido" in said


def test_a_batch_that_nobody_here_knows_is_told(
    enlace: Run, servidor: Servidor, cliente: ClienteAnthropic, capfd: pytest.CaptureFixture[str]
) -> None:
    enlace("submit", "--max-usd", "1")
    assert "aviso" not in enlace("status")[1]
    assert cliente.crear([{"custom_id": "x", "params": cliente.construir_params(Peticion("", "x"))}]) == "msgbatch_02"
    assert "1 lotes que no son de ningún trabajo de aquí (msgbatch_02)" in enlace("status")[1]


def test_still_running_and_in_use(enlace: Run, servidor: Servidor) -> None:
    enlace("submit", "--max-usd", "1")
    servidor.faults(ends_after=10**9)
    status, said = enlace("collect", "--max-wait-hours", "0")
    assert status == 4 and "max_wait_hours=0" in said
    child = fork(lambda: command("collect"))
    until(lambda: servidor.state()["calls"].get("retrieve", 0) > 2)
    status, said = enlace("collect")
    assert status == 3 and str(child) in said
    servidor.faults(ends_after=0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


def test_cancel(enlace: Run, servidor: Servidor) -> None:
    enlace("submit", "--max-usd", "1")
    servidor.faults(ends_after=10**9)
    assert enlace("cancel", "otro")[0] == 1
    status, said = enlace("cancel")
    assert status == 0 and "msgbatch_01: se pidió pararlo" in said
    assert enlace("collect")[0] == 6
    assert servidor.state()["calls"]["cancel"] == 1


def test_a_doubt_that_only_a_person_can_settle(enlace: Run, servidor: Servidor) -> None:
    servidor.faults(create=[{"reply": 500, "accept": True}], list=[{}] + [{"reply": 500}] * 9)
    status, said = enlace("submit", "--max-usd", "1")
    assert status == 5 and "resolve --intent 1" in said
    for command in ("status", "plan"):
        assert "Envío 1 en duda (3 peticiones)" in enlace(command)[1]
    assert enlace("resolve", "--intent", "1")[0] == 1
    status, said = enlace("resolve", "--intent", "1", "--batch-id", "msgbatch_01")
    assert status == 0 and "collect" in said
    assert enlace("collect")[0] == 6
    assert len(servidor.posts) == 1


def test_verify_finds_what_changed(enlace: Run, project: Path) -> None:
    enlace("submit", "--max-usd", "1")
    enlace("collect")
    (raw,) = project.glob("data/ledger/*/raw/*.jsonl")
    (results,) = project.glob("data/ledger/*/results.jsonl")
    whole = results.read_bytes()
    results.write_bytes(whole.replace(b"eco", b"oca"))
    status, said = enlace("verify")
    assert status == 1 and "results.jsonl: no era lo que dicen las respuestas guardadas" in said
    assert results.read_bytes() == whole and enlace("verify")[0] == 0
    raw.write_bytes(raw.read_bytes().replace(b"eco", b"oca"))
    status, said = enlace("verify")
    assert status == 1 and "cambió desde que se descargó" in said


def test_help_lists_the_commands_and_the_exit_statuses() -> None:
    out = subprocess.run([sys.executable, "-m", "enlace.cli", "distill", "--help"], capture_output=True, text=True)
    said = " ".join(out.stdout.split())
    commands = "plan submit collect status retry-failed cancel resolve usage export verify"
    assert all(name in said for name in commands.split()) and "7 el presupuesto" in said
