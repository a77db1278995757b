"""Distillation: ask a teacher many things in batches, paying for each answer once and losing none."""

from enlace.data.distill.anthropic_client import ClienteAnthropic
from enlace.data.distill.collecting import collect, status
from enlace.data.distill.compatible_client import ClienteCompatible
from enlace.data.distill.doubt import resolve
from enlace.data.distill.errors import DistillError, EnvioRechazado
from enlace.data.distill.extractive import ClienteExtractivo
from enlace.data.distill.job import Trabajo
from enlace.data.distill.requests import Peticion, leer_especificaciones
from enlace.data.distill.retry import Retry, retry_failed
from enlace.data.distill.sending import submit
from enlace.data.distill.usage import resumen_de_uso

__all__ = [
    "ClienteAnthropic",
    "ClienteCompatible",
    "ClienteExtractivo",
    "DistillError",
    "EnvioRechazado",
    "Peticion",
    "Retry",
    "Trabajo",
    "collect",
    "leer_especificaciones",
    "resolve",
    "resumen_de_uso",
    "retry_failed",
    "status",
    "submit",
]
