"""Units that kill the process they are in, once: for workers that die in the middle."""

from __future__ import annotations

import os
import signal

from enlace.data import units
from enlace.data.units import CleanTask, Done


def clean_unit(task: CleanTask) -> Done:
    """The third unit takes its worker with it, the first time it is tried."""
    died = task.work.parent / "died"
    if task.name.endswith("-00002") and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return units.clean_unit(task)
