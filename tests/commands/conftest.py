from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

Enlace = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's own configuration, in a folder where nothing was done yet."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def enlace(project: Path) -> Enlace:
    """The command, run in `project` as a person does."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("AGENT_DIR", "DVC_ROOT")}
        return subprocess.run(
            [sys.executable, "-m", "enlace.cli", *arguments],
            cwd=project,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=kept | environment,
        )

    return run
