"""From the configuration of a teacher to its job in the ledger and the client that talks to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from enlace.data.distill.anthropic_client import ClienteAnthropic
from enlace.data.distill.client import Cliente
from enlace.data.distill.compatible_client import ClienteCompatible
from enlace.data.distill.extractive import ClienteExtractivo
from enlace.data.distill.job import Trabajo

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig


def who_answers(config: DistillConfig) -> str:
    """The model, or the version of the rules where there is none."""
    return ClienteExtractivo.version if config.teacher == "extractive" else config.model


def open_job(config: DistillConfig, ledger: Path) -> tuple[Trabajo, Cliente]:
    """The job under `ledger` of who answers, and the client that talks to it.

    Another model, or other rules, is another job: its answers are others. Nothing else starts a job, so neither how
    the configuration's file is called nor `max_tokens` makes anything be bought again; an answer that was cut because
    `max_tokens` was small stays an error of this job.
    """
    trabajo = Trabajo(f"{config.teacher}-{quote(who_answers(config), safe='')}", ledger)
    if config.teacher == "extractive":
        return trabajo, ClienteExtractivo(trabajo.carpeta / "extractivo")
    if config.teacher == "compatible":
        return trabajo, ClienteCompatible(config, trabajo.carpeta / "compatible")
    return trabajo, ClienteAnthropic(config)
