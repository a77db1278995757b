"""`enlace ask` with a model and a web of its own: what leaves the house, and what is told of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.house import ANSWER, Outside, environment_of, outside, project


@pytest.fixture
def world() -> Iterator[Outside]:
    with outside() as server:
        yield server


def _enlace(folder: Path, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enlace.cli", *arguments]
    environment = environment_of(folder, {})
    return subprocess.run(command, cwd=folder, env=environment, input=said, capture_output=True, text=True, check=True)


def test_a_script_reaches_the_web_only_when_told_to(world: Outside, tmp_path: Path) -> None:
    folder = project(tmp_path / "casa", world.server_port)
    quiet = _enlace(folder, "ask", "¿Qué es el mate?")
    assert world.queries == [] and "La búsqueda está apagada." in quiet.stderr
    searched = _enlace(folder, "ask", "--buscar", "¿Qué es el mate?")
    assert world.queries == ["Qué es el mate"] and searched.stdout == ANSWER + "\n"
    assert "(Busco: Qué es el mate)" in searched.stderr


def test_the_chat_says_first_what_leaves_the_house_and_what_stays(world: Outside, tmp_path: Path) -> None:
    folder = project(tmp_path / "casa", world.server_port)
    said = _enlace(folder, "chat", said="/salir\n").stdout
    assert "--sin-buscar" in said and "--sin-recordar" in said
    said = _enlace(folder, "chat", "--sin-buscar", "--sin-recordar", said="/salir\n").stdout
    assert "internet" not in said and "Recuerda" not in said
