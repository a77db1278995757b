"""From the name of a teacher to its job in the ledger and the client that talks to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from enlace.data.distill.anthropic_client import ClienteAnthropic
from enlace.data.distill.client import Cliente
from enlace.data.distill.extractive import ClienteExtractivo
from enlace.data.distill.job import Trabajo

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig


def open_job(name: str, config: DistillConfig, ledger: Path) -> tuple[Trabajo, Cliente]:
    """The job of the teacher `name` (a file of configs/distill) under `ledger`, and its client.

    Answers of rules are cheap and change with the rules, so each version of them has a job of its own; answers that
    were paid for are all kept in one.
    """
    if config.teacher == "extractive":
        trabajo = Trabajo(f"{name}-{ClienteExtractivo.version}", ledger)
        return trabajo, ClienteExtractivo(trabajo.carpeta / "extractivo")
    return Trabajo(name, ledger), ClienteAnthropic(config)
