"""Where the project is, and where what costs money or days, or is private, is kept.

The ledger, the runs and what the agent keeps live beside the stage outputs, never inside them, and are found through
``DVC_ROOT``: DVC runs temporary and queued experiments in a throw-away clone but points that variable at the main
checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

from enlace import EnlaceError


def project_root(start: Path | None = None) -> Path:
    """Nearest folder, from `start` (default: the current one) upwards, that holds a params.yaml.

    Raises:
        EnlaceError: there is none.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "params.yaml").is_file():
            return folder
    raise EnlaceError(f"No hay params.yaml en {start} ni más arriba. Entra en la carpeta del proyecto y repite.")


def main_checkout() -> Path:
    """The project's own folder, where what git does not track lies; also from a throw-away clone of it."""
    root = os.environ.get("DVC_ROOT")
    return Path(root) if root else project_root()


def _kept(variable: str, *default: str) -> Path:
    if chosen := os.environ.get(variable):
        path = Path(chosen).expanduser()
        return path if path.is_absolute() else (main_checkout() / path).resolve()
    return main_checkout().joinpath(*default)


def ledger_dir() -> Path:
    """Paid requests and answers: ``$LEDGER_DIR``, else ``data/ledger``; relative to the main checkout."""
    return _kept("LEDGER_DIR", "data", "ledger")


def runs_dir() -> Path:
    """Checkpoints of unfinished runs: ``$RUNS_DIR``, else ``.runs``; relative to the main checkout."""
    return _kept("RUNS_DIR", ".runs")


def agent_dir() -> Path:
    """The agent's memory and its cache of searches: ``$AGENT_DIR``, else ``data/agent``; relative to the main
    checkout.
    """
    return _kept("AGENT_DIR", "data", "agent")
