"""A job, some requests, a teacher in memory, and the provider's server in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from maestro import Maestro
from servidor import Servidor

from enlace.config.schema import DistillConfig
from enlace.data.distill import ClienteAnthropic, Peticion, Trabajo


@pytest.fixture
def maestro() -> Maestro:
    return Maestro()


@pytest.fixture
def trabajo(tmp_path: Path) -> Trabajo:
    return Trabajo("prueba", tmp_path)


@pytest.fixture
def peticiones() -> list[Peticion]:
    return [Peticion("Sé breve.", f"pregunta {i}", {"n": i}) for i in range(7)]


@pytest.fixture
def config() -> DistillConfig:
    """Batches of three requests."""
    return DistillConfig(requests_per_batch=3, poll_interval_seconds=10.0, max_wait_hours=1.0)


@pytest.fixture(scope="session")
def proceso() -> Iterator[Servidor]:
    servidor = Servidor()
    yield servidor
    servidor.stop()


@pytest.fixture
def servidor(proceso: Servidor) -> Servidor:
    """The provider's server, with nothing in it."""
    proceso.reset()
    return proceso


@pytest.fixture
def cliente(servidor: Servidor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClienteAnthropic:
    """A client of that server, that sees nothing of this machine's real credentials."""
    for name in [name for name in os.environ if name.startswith("ANTHROPIC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "casa"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", servidor.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "clave-de-prueba")
    return ClienteAnthropic(DistillConfig(max_tokens=300))
