from __future__ import annotations

import pytest

from enlace.config.schema import TrainConfig
from enlace.data.loader import phase
from enlace.train.schedule import lr_scale


def _train(train_config: TrainConfig, **changes: object) -> TrainConfig:
    return train_config.model_copy(update={"steps": 1000, "warmup_steps": 100, "decay_steps": 200, **changes})


def test_warm_up_stable_decay_at_their_edges(train_config: TrainConfig) -> None:
    train = _train(train_config, min_lr_ratio=0.1)
    assert lr_scale(0, train) == 0.01
    assert lr_scale(99, train) == 1
    assert lr_scale(799, train) == 1
    assert lr_scale(800, train) < 1
    assert lr_scale(999, train) == pytest.approx(0.1)
    assert [phase(step, train) for step in (0, 799, 800, 999)] == ["stable", "stable", "decay", "decay"]


@pytest.mark.parametrize(
    "changes",
    [
        {"warmup_steps": 0},
        {"decay_steps": 0},
        {"warmup_steps": 0, "decay_steps": 0},
        {"warmup_steps": 800, "decay_steps": 200},
        {"min_lr_ratio": 0.0},
        {"min_lr_ratio": 1.0},
    ],
)
def test_no_step_is_wasted_and_none_passes_the_peak(train_config: TrainConfig, changes: dict[str, object]) -> None:
    train = _train(train_config, **changes)
    rates = [lr_scale(step, train) for step in range(train.steps)]
    assert all(0 < rate <= 1 for rate in rates)
    assert max(rates) == 1
    peak = rates.index(1)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
