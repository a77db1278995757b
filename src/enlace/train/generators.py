"""Every random generator of the process: seeded, saved and put back together.

The training draws nothing at random yet. Whoever adds dropout, or a data transform, must not have to think of resuming.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Start every random generator of the process from `seed`, so that two runs hold the same states."""
    torch.manual_seed(seed)  # the card's too
    random.seed(seed)
    np.random.seed(seed)


def generator_states() -> dict[str, Any]:
    """States of every random generator of the process, as tensors and plain values."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple[str, Any, int, int, float], np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(internal), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Put back what `generator_states` gave (the card's only where there are as many cards)."""
    torch.set_rng_state(states["torch"].cpu())
    if len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
