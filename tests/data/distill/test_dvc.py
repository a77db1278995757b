"""No dvc command deletes, forgets or buys again what was paid: the real stages, the real dvc, the server."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from muerte import until
from servidor import Servidor

from enlace.config import yaml12
from enlace.data.distill import ClienteAnthropic
from tests.conftest import ROOT

pytest.importorskip("anthropic")
pytestmark = pytest.mark.skipif(shutil.which("dvc", path=Path(sys.executable).parent) is None, reason="no dvc")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servidor: Servidor, cliente: ClienteAnthropic) -> Path:
    """The project with only its two distillation stages, three requests, and the server as its teacher."""
    for name in ("DVC_ROOT", "LEDGER_DIR", "RUNS_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Prueba")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "prueba@example.org")
    (tmp_path / "casa").mkdir()
    clone = tmp_path / "enlace"
    for folder in ("src", "configs"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / ".dvc", clone / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    shutil.copy(ROOT / ".gitignore", clone)
    params = (ROOT / "params.yaml").read_text(encoding="utf-8")
    (clone / "params.yaml").write_text(params.replace("teacher: extractive", "teacher: anthropic"), encoding="utf-8")
    teacher = clone / "configs/distill/anthropic.yaml"
    quick = teacher.read_text(encoding="utf-8").replace("poll_interval_seconds: 60", "poll_interval_seconds: 0.05")
    teacher.write_text(quick, encoding="utf-8")
    stages = yaml12.load(ROOT / "dvc.yaml")["stages"]
    kept = {name: stages[name] for name in ("distill-submit", "distill-collect")}
    (clone / "dvc.yaml").write_text(json.dumps({"stages": kept}), encoding="utf-8")
    (clone / "data/specs").mkdir(parents=True)
    specs = "".join(json.dumps({"system": "s", "user": f"pregunta {i}"}) + "\n" for i in range(3))
    (clone / "data/specs/casa.jsonl").write_text(specs, encoding="utf-8")
    (clone / "data/raw").mkdir()
    (clone / "data/raw/nada.jsonl").write_text("", encoding="utf-8")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["add", "-f", "data/raw"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=clone, check=True)
    return clone


@pytest.fixture
def dvc(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, str]]:
    """Run dvc, with a budget of one dollar unless told otherwise; whether it went well, and what it said."""

    def run(*arguments: str, budget: str = "1") -> tuple[bool, str]:
        done = subprocess.run(
            ["dvc", *arguments],
            cwd=clone,
            env=os.environ | {"DISTILL_BUDGET_USD": budget},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        return done.returncode == 0, done.stdout + done.stderr

    return run


def ledger(clone: Path) -> dict[str, str]:
    files = sorted((clone / "data/ledger").rglob("*"))
    return {
        str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file() and path.name != "LOCK"
    }


def test_nothing_is_bought_unasked_and_forcing_buys_nothing(
    clone: Path, dvc: Callable[..., tuple[bool, str]], servidor: Servidor
) -> None:
    went_well, said = dvc("repro", budget="")
    assert not went_well and "Quedan 3 peticiones" in said and "DISTILL_BUDGET_USD=" in said
    assert servidor.posts == []
    assert dvc("repro")[0]
    answers = (clone / "data/distill/conversations.jsonl").read_bytes()
    paid = ledger(clone)
    assert len(answers.splitlines()) == 3 and set(servidor.paid.values()) == {1}
    shutil.rmtree(clone / "data/distill")
    assert dvc("repro", "-f", budget="")[0]
    assert (clone / "data/distill/conversations.jsonl").read_bytes() == answers
    assert ledger(clone) == paid and len(servidor.posts) == 1


@pytest.mark.slow
def test_no_dvc_command_touches_what_was_paid(
    clone: Path, dvc: Callable[..., tuple[bool, str]], servidor: Servidor
) -> None:
    assert dvc("repro")[0]
    answers = (clone / "data/distill/conversations.jsonl").read_bytes()
    paid = ledger(clone)
    subprocess.run("git add dvc.lock && git commit -qm run", shell=True, cwd=clone, check=True)
    for command in (
        ["exp", "run", "-f"],
        ["exp", "run", "--temp", "-f"],
        ["checkout", "-f"],
        ["gc", "-w", "-f"],
        ["exp", "remove", "-A"],
    ):
        went_well, said = dvc(*command, budget="")
        assert went_well, said
        assert ledger(clone) == paid, command
    subprocess.run("git checkout -q . && git stash -qu", shell=True, cwd=clone, check=False)
    for lost in (".dvc/cache", ".dvc/tmp", "data/distill"):
        shutil.rmtree(clone / lost, ignore_errors=True)
    (clone / "dvc.lock").unlink(missing_ok=True)
    went_well, said = dvc("repro", budget="")
    assert went_well, said
    assert (clone / "data/distill/conversations.jsonl").read_bytes() == answers
    assert ledger(clone) == paid and len(servidor.posts) == 1


@pytest.mark.slow
def test_a_killed_stage_beside_its_second_life(
    clone: Path, dvc: Callable[..., tuple[bool, str]], servidor: Servidor
) -> None:
    """Killing dvc leaves the stage alive, and the next dvc starts another one beside it."""
    servidor.faults(create=[{"reply": "hang", "accept": True}])
    environment = os.environ | {"DISTILL_BUDGET_USD": "1"}
    first = subprocess.Popen(
        ["dvc", "repro"], cwd=clone, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: bool(servidor.posts), seconds=120)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    went_well, said = dvc("repro")
    assert not went_well and "otro proceso está en este trabajo" in said
    (lock,) = clone.glob("data/ledger/*/LOCK")
    os.kill(int(lock.read_text()), signal.SIGKILL)  # the orphan
    went_well, said = dvc("repro")
    assert went_well, said
    assert len(servidor.posts) == 1 and set(servidor.paid.values()) == {1}
    assert len((clone / "data/distill/conversations.jsonl").read_bytes().splitlines()) == 3
