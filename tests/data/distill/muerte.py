"""Kill the harness at a named point: a forked process does the work, and the kernel kills it there with SIGKILL."""

from __future__ import annotations

import importlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from enlace.data.distill import DistillError

_PACKAGE = "enlace.data.distill."


@dataclass(frozen=True)
class Point:
    """Before or after the n-th time that a function is called; of a generator, after its n-th value."""

    module: str
    name: str
    when: Literal["before", "after", "within"]
    nth: int = 1

    def arm(self) -> None:
        """From now on, this process dies there."""
        owner: Any = importlib.import_module(_PACKAGE + self.module)
        *path, last = self.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        real, calls = getattr(owner, last), 0

        def dying(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if self.when == "before" and calls == self.nth:
                die()
            result = real(*args, **kwargs)
            if self.when == "after" and calls == self.nth:
                die()
            return result

        def dying_within(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for i, value in enumerate(real(*args, **kwargs), start=1):
                yield value
                if i == self.nth:
                    die()

        setattr(owner, last, dying_within if self.when == "within" else dying)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


POINTS = {
    "after the fence": Point("sending", "fence", "after"),
    "after the intent": Point("batches", "_write", "after", 1),
    "after the receipt is reserved": Point("batches", "_write", "after", 2),
    "before sending": Point("anthropic_client", "ClienteAnthropic.crear", "before"),
    "after the server accepted": Point("anthropic_client", "ClienteAnthropic.crear", "after"),
    "after the second batch was accepted": Point("anthropic_client", "ClienteAnthropic.crear", "after", 2),
    "after the id is written, not synced": Point("batches", "os.pwrite", "after"),
    "after the receipt": Point("batches", "Lotes.escribir_recibo", "after"),
    "while polling": Point("anthropic_client", "ClienteAnthropic.estado", "after"),
    "in the middle of a download": Point("anthropic_client", "ClienteAnthropic.lineas", "within", 2),
    "before the raw answers are renamed": Point("collecting", "write_json", "after"),
    "after the raw answers are renamed": Point("collecting", "fsync_dir", "before"),
    "in the middle of a line of the history": Point("records", "os.fsync", "before", 2),
    "in the middle of the results": Point("deriving", "record_line", "after", 3),
    "between the results and the errors": Point("records", "fsync_dir", "after", 3),
    "before derived.json": Point("deriving", "write_json", "before"),
    "after derived.json": Point("deriving", "write_json", "after"),
    "in the middle of the export": Point("exporting", "record_line", "after", 2),
}


def run(action: Callable[[], object], point: Point | None = None) -> int:
    """Do `action` in another process; returns its status: 0 done, 3 a DistillError, -9 killed."""
    child = fork(action, point)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork(action: Callable[[], object], point: Point | None = None) -> int:
    """Begin `action` in another process; returns its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        if point is not None:
            point.arm()
        action()
        status = 0
    except DistillError:
        status = 3
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that another process does."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.01)
