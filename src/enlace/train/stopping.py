"""Stopping when asked: the step in progress ends, the state is saved, and the exit status says which signal it was."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch.distributed as dist

from enlace.console import errors


class Interrupted(Exception):
    """A signal asked to stop; the state was saved first. `signal_number` says which."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


def stop_signals() -> list[signal.Signals]:
    """Those that ask to stop: SIGTERM, Ctrl-C and, unless nohup has it ignored, the end of the terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


@contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """While inside, `stop_signals` only ask; the value given answers with the signal's number, or 0.

    A second Ctrl-C ends at once, for a person who will not wait for the step.
    """
    asked = 0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = number
        if dist.is_initialized() and dist.get_rank() > 0:
            return  # the first rank says it for all
        # Ctrl-C ends the reader of a pipe (`| tee`) too, and rich leaves with SystemExit when nobody reads.
        with suppress(OSError, SystemExit):
            errors.print("\nGuardo y salgo al acabar este paso…", markup=False)

    previous = {number: signal.signal(number, ask) for number in stop_signals()}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
