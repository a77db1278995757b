"""What can go wrong between a request and its answer. Each exit status tells a script what to do next."""

from __future__ import annotations

from enlace import EnlaceError


class DistillError(EnlaceError):
    """Every failure of the distillation that a person can act on; the message says what to do."""


class TrabajoOcupado(DistillError):
    """Another process is writing in this job."""

    exit_status = 3


class SigueEnMarcha(DistillError):
    """The wait is over and some batches are not: the same command goes on later."""

    exit_status = 4


class EnvioEnDuda(DistillError):
    """A batch may or may not have been accepted (and paid for); nothing is sent until that is known."""

    exit_status = 5


class PresupuestoAgotado(DistillError):
    """Sending more could cost more than the person allowed, or nobody knows what it costs."""

    exit_status = 7


class OtraIdentidad(DistillError):
    """The job is bound to another model, other parameters or another account."""


class EnvioRechazado(DistillError):
    """The teacher certainly did not take the batch (refused, or never reached): nothing was paid, it may go again.

    Attributes:
        esperar: seconds after which the teacher said to try again, if it did.
        demasiado_grande: whether a smaller batch might be taken.
    """

    def __init__(self, message: str, *, esperar: float | None = None, demasiado_grande: bool = False) -> None:
        super().__init__(message)
        self.esperar, self.demasiado_grande = esperar, demasiado_grande


class DescargaRota(DistillError):
    """The answers of a batch came cut or garbled: another download may bring them whole."""
