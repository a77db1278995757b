"""A job, some requests, and a teacher in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from maestro import Maestro

from enlace.config.schema import DistillConfig
from enlace.data.distill import Peticion, Trabajo


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
