"""What the person sees: one console, progress bars, and errors without tracebacks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from enlace import EnlaceError
from enlace.durable import reason

console = Console(highlight=False, emoji=False)
errors = Console(stderr=True, highlight=False, emoji=False)


class _Progress(Progress):
    """Bars with a line of figures below each: 80 columns have no room for it beside them."""

    below = ""

    def stop(self) -> None:
        with suppress(OSError):  # the terminal was closed: no reason to lose what follows the work
            super().stop()

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if self.below:
                yield Text(self.below.format(task=task), style="dim")


def progress(below: str = "") -> Progress:
    """A progress bar: what, how far, elapsed, how long still; and `below` it, a text with fields of its task.

    Quiet (no bar at all) when the output is not a terminal.
    """
    bar = _Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("quedan"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    bar.below = below
    return bar


def say(message: str) -> None:
    """Print one line of plain text, as it is (neither "[b]" nor ":heart:" mean anything); never wraps, so that logs
    stay greppable.
    """
    console.print(message, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """In the two units that matter: "2 d 3 h", "4 min 10 s"."""
    left = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def run_main(main: Callable[[], None]) -> None:
    """Run a stage or a command; what a person can act on becomes a message on stderr, not a traceback.

    The exit status is the error's own, 130 after Ctrl-C. A reader of the output that went away (`| head`) gets no
    message.
    """
    try:
        main()
    except EnlaceError as error:
        fail(str(error), error.exit_status)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _drop_output()
        fail(f"{error.filename}: {reason(error)}." if error.filename else f"{reason(error)}.")
    except KeyboardInterrupt:
        errors.print("\nInterrumpido.", markup=False)
        sys.exit(128 + signal.SIGINT)


def fail(message: str, status: int = 1) -> NoReturn:
    """Say on stderr what is wrong, and end the process."""
    errors.print(f"error: {message}", markup=False, soft_wrap=True, style="red")
    sys.exit(status)


def _drop_output() -> None:
    """Where stdout cannot be written, forget what it still holds: else Python tries again, and complains, at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
