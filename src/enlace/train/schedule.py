"""Warm-up, stable, decay (WSD): the learning rate as a pure function of the step.

Nothing to save and nothing to restore, so a resumed run cannot be one step behind. Source: MiniCPM (arXiv 2404.06395)
for the shape, arXiv 2405.18392 for the linear decay.
"""

from __future__ import annotations

from enlace.config.schema import TrainConfig
from enlace.data.loader import stable_end


def lr_scale(step: int, train: TrainConfig) -> float:
    """Learning rate of step `step` (from 0) as a share of the peak.

    Rises linearly over `warmup_steps` (the first step already moves, the last one is at the peak), stays at 1, then
    falls linearly over `decay_steps` so that the last step is at `min_lr_ratio`, or just above 0 when that is 0: an
    update at rate 0 would be a wasted step.
    """
    if step < train.warmup_steps:
        return (step + 1) / train.warmup_steps
    if step < stable_end(train):
        return 1.0
    done = (step - stable_end(train) + 1) / (train.decay_steps + (train.min_lr_ratio == 0))
    return 1 - done * (1 - train.min_lr_ratio)
