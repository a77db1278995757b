"""What can go wrong between a request and its answer."""

from __future__ import annotations

from enlace import EnlaceError


class DistillError(EnlaceError):
    """Every failure of the distillation that a person can act on; the message says what to do."""


class EnvioRechazado(DistillError):
    """The teacher certainly did not take the batch (refused, or never reached): nothing was paid, it may go again."""
