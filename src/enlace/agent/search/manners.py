"""Good manners towards a service: one request at a time, a gap between two, and silence after it said no.

What is to be remembered lies in a small file, locked for the length of a request: the manners are those of the
household, not of one process.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from enlace import EnlaceError
from enlace.config.schema import SearchService
from enlace.durable import reason

# For the searches of others that come before: several slow ones, or one whose process is stopped.
_PATIENCE_SECONDS = 90


class Turn:
    """The right to make one request."""

    def __init__(self, file: BinaryIO, service: SearchService, clock: Callable[[], float]) -> None:
        self._file = file
        self._service = service
        self._clock = clock
        self._asked, self._blocked_until = _read(file)

    @property
    def silence(self) -> float:
        """Seconds during which nothing may be asked, because the service refused."""
        rest = self._blocked_until - self._clock()
        # More than a whole cooldown: the clock was set back, or the cooldown made shorter.
        return rest if 0 < rest <= self._service.cooldown_seconds else 0

    def wait(self, sleep: Callable[[float], object]) -> None:
        """Keep the gap since the last request, and note that another one begins."""
        since = self._clock() - self._asked
        if 0 <= since < self._service.gap_seconds:
            sleep(self._service.gap_seconds - since)
        self._asked = self._clock()
        self._write()

    def refused(self) -> None:
        """Note that the service refused."""
        self._blocked_until = self._clock() + self._service.cooldown_seconds
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # a full disk does not stop a search
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps({"asked": self._asked, "blocked_until": self._blocked_until}).encode())


class Manners:
    """Turns of one service, kept in the file `path`."""

    def __init__(self, path: Path, service: SearchService, clock: Callable[[], float]) -> None:
        self._path = path
        self._service = service
        self._clock = clock
        self._thread = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Wait for the requests of others, of this process or not, and hold off those that come after.

        Raises:
            EnlaceError: the file cannot be written.
            TimeoutError: others do not end.
        """
        patience = time.monotonic() + _PATIENCE_SECONDS
        if not self._thread.acquire(timeout=_PATIENCE_SECONDS):
            raise TimeoutError
        try:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                file = self._path.open("a+b", buffering=0)
            except OSError as error:
                raise EnlaceError(f"{self._path}: no se puede abrir ({reason(error)}).") from error
            with file:
                while not _locked(file):
                    if time.monotonic() > patience:
                        raise TimeoutError
                    time.sleep(0.05)  # the kernel has no lock with a time limit
                yield Turn(file, self._service, self._clock)
        finally:
            self._thread.release()


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: BinaryIO) -> tuple[float, float]:
    """When it was last asked, and until when it is left alone; what cannot be read is as nothing."""
    try:
        file.seek(0)
        state = json.loads(file.read())
        return float(state["asked"]), float(state["blocked_until"])
    except (OSError, ValueError, TypeError, KeyError):
        return float("-inf"), float("-inf")
