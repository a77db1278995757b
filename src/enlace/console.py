"""What the person sees: one console, progress bars, and errors without tracebacks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from enlace import EnlaceError

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def progress(*extra: str) -> Progress:
    """A progress bar: what, how far, elapsed, how long still, plus `extra` columns (rich markup over task fields).

    Quiet (no bar at all) when the output is not a terminal.
    """
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        *(TextColumn(column) for column in extra),
        TimeElapsedColumn(),
        TextColumn("quedan"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def say(message: str) -> None:
    """Print one line of plain text (square brackets are text, not markup); never wraps, so that logs stay greppable."""
    console.print(message, markup=False, soft_wrap=True)


def run_main(main: Callable[[], None]) -> None:
    """Run a stage or a command; an `EnlaceError` becomes a message on stderr and exit status 1, Ctrl-C status 130."""
    try:
        main()
    except EnlaceError as error:
        errors.print(f"error: {error}", markup=False, soft_wrap=True, style="red")
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("\nInterrumpido.", markup=False)
        sys.exit(128 + signal.SIGINT)
