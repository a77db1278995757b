"""Who does the work: this process, processes of this machine, or a Dask cluster; all as concurrent.futures does it.

The work is a function of this package and a small description of a unit; it reads and writes files, so the workers of a
cluster must see the same folders as the main process, and run the same version of ENLACE.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from enlace import EnlaceError

Task = TypeVar("Task")
Result = TypeVar("Result")
_PATIENCE = 10  # seconds for the scheduler to answer
_RETRIES = 3  # of a unit on a cluster, when the worker that had it dies


class WorkersLost(EnlaceError):
    """The work stopped in the middle through no fault of the data; what was finished stays."""


@dataclass(frozen=True)
class Work:
    """How units of work are done: "local" in so many processes (0: one per core; 1: this one), or "dask"."""

    executor: str = "local"
    workers: int = 1
    scheduler: str | None = None

    @contextmanager
    def started(self, units: int) -> Iterator[Executor | None]:
        """Those who do `units` of work, started once for all that is asked of them; None: this process itself.

        Raises WorkersLost when a cluster cannot be reached, or its workers die.
        """
        if self.executor == "dask":
            with _dask(str(self.scheduler)) as pool:
                yield pool
            return
        workers = min(self.workers or os.cpu_count() or 1, units)
        if workers <= 1:
            yield None
            return
        # Started afresh: a fork would copy the threads' locks of the tokenizer as they are.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
            yield pool


def results(pool: Executor | None, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """What `function` gives for each task, as they are finished.

    Raises WorkersLost when the processes die; the function's own errors come through.
    """
    if pool is None:
        yield from map(function, tasks)
        return
    futures: list[Future[Result]] = []
    try:
        futures += (pool.submit(function, task) for task in tasks)
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        futures.clear()  # the pool is failing them all, and trips over one that is cancelled at that moment
        raise WorkersLost(
            "Un proceso de trabajo murió (¿falta memoria?); repite, quizá con menos data.workers: sigue donde estaba"
        ) from None
    finally:
        for future in futures:
            future.cancel()


def _begin() -> None:
    """In a new process: leave Ctrl-C to the main process, and end when that ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


@contextmanager
def _dask(scheduler: str) -> Iterator[Executor]:
    try:
        from distributed import Client
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise EnlaceError("data.executor: dask necesita distributed: pip install -e '.[cluster]'") from None
    try:
        client = Client(scheduler, timeout=_PATIENCE)
    except (OSError, ValueError) as error:
        raise WorkersLost(f"data.scheduler: no responde nadie en {scheduler} ({type(error).__name__})") from error
    with client:
        try:
            yield client.get_executor(pure=False, retries=_RETRIES)
        except CancelledError as error:
            raise WorkersLost(
                f"data.scheduler: {scheduler} dejó de responder a la mitad; levántalo y repite: sigue donde estaba"
            ) from error
        except KilledWorker as error:
            raise WorkersLost(
                "Los procesos del cluster mueren una y otra vez con la misma unidad (¿falta memoria?); repite: "
                "sigue donde estaba"
            ) from error
