"""Starting the processes that train together: `GPUS=4` starts four here, and `torchrun` those of several machines.

The stage calls `launch` first. The process that the person (or DVC) started becomes the launcher: it runs the stage
once per card, each with its rank in the environment as torchrun sets it, and ends as they end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from enlace import EnlaceError
from enlace.console import run_main
from enlace.train.distributed import LostConnection, World, lost_connections
from enlace.train.stopping import stop_signals

# Seconds that the processes have, once asked to stop, to end their step and save; torchrun's own 30 would kill them in
# the middle of a long step. Where one of them fails, the others still have those 30: nothing of theirs is worth saving.
PATIENCE = 900
# Seconds that a process leaves to those that may know better what is wrong; the launcher, or torchrun, ends it as soon
# as one has said so. The others of a machine wait for its first, and who lost a connection for the process it lost.
COURTESY = 5.0
# What `init_process_group` and we read, all set by torchrun; a cluster's scheduler may leave one of them alone behind.
TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def launch(work: Callable[[World], None], module: str, device: str) -> None:
    """Do `work` in the processes that train together, this one among them; alone unless ``$GPUS`` or torchrun say more.

    A process that is one of several ends here, with its exit status.

    Args:
        module: what to run, once per card, in place of this process when ``$GPUS`` is over 1.

    Raises:
        EnlaceError: ``$GPUS`` is not a number, or more than there are; or a process of them died.
    """
    if not os.environ.keys() >= TORCHRUN:
        if (count := _wanted(device)) > 1:
            _run(module, count)
        work(World())
        return
    card = int(os.environ["LOCAL_RANK"])
    have = _cards(device)
    if 0 < have <= card:
        raise EnlaceError(f"Hay más procesos que tarjetas. Usa como mucho --nproc-per-node={have}.")
    if have:
        torch.cuda.set_device(card)
    dist.init_process_group("nccl" if have else "gloo")
    world = World(dist.get_rank(), dist.get_world_size())
    status = 1
    try:
        status = _status(lambda: _in_turn(work, world))
        if have and status == 0:
            dist.destroy_process_group()  # NCCL may have something left to send
    finally:
        _end(status)


def _in_turn(work: Callable[[World], None], world: World) -> None:
    """Do `work`; what is wrong is said once, by who knows best."""
    try:
        with lost_connections():
            work(world)
    except (EnlaceError, OSError) as error:
        time.sleep(COURTESY * (isinstance(error, LostConnection) + (os.environ["LOCAL_RANK"] != "0")))
        raise


def _status(main: Callable[[], None]) -> int:
    """The exit status of `main`, what went wrong already said."""
    try:
        run_main(main)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        with suppress(OSError):  # the terminal was closed, or the disk that holds the log is full
            traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End the process without destroying the group of processes, whatever became of its output.

    torch 2.13 can hang there for ever: gloo's thread, which lets go of the last tensor, waits for Python's lock, and
    who destroys the group holds it while waiting for the thread.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def _wanted(device: str) -> int:
    text = os.environ.get("GPUS") or "1"
    if not text.isdecimal() or int(text) < 1:
        raise EnlaceError(f"GPUS={text} no es un número de tarjetas. Por ejemplo: make train GPUS=2")
    have = _cards(device)
    if device == "cuda" and not have:
        return 1
    if 0 < have < int(text):
        raise EnlaceError(f"GPUS={text} y torch ve {have}. Usa como mucho GPUS={have}.")
    return int(text)


def _cards(device: str) -> int:
    """How many there are to train on; where the profile asks for some and there is none, its check says what to do."""
    return torch.cuda.device_count() if device == "cuda" else 0


def _run(module: str, count: int) -> None:
    """Run `module` in `count` processes and end this one as they end."""
    # The processes say what went wrong, in Spanish. Its loggers below have levels of their own: they are cut off here.
    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.propagate = False
    elastic.addHandler(logging.NullHandler())
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        shutdown_timeout=PATIENCE,
        signals_to_handle=",".join(number.name for number in (*stop_signals(), signal.SIGQUIT)),
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *sys.argv[1:])
    except SignalException as stop:
        sys.exit(128 + stop.sigval)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode < 0:
            raise EnlaceError(
                f"El proceso {rank} de los {count} que entrenan murió (señal {-failure.exitcode}). Repite el comando: "
                f"continúa desde el último punto de guardado."
            ) from None
        sys.exit(failure.exitcode)
    sys.exit(0)
