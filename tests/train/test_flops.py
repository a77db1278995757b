from __future__ import annotations

import pytest

from enlace.config.load import hardware_profiles
from enlace.config.schema import ModelConfig
from enlace.train.flops import PEAK_FLOPS, flops_per_token, utilisation
from tests.conftest import ROOT


def test_flops_of_a_shape_counted_by_hand() -> None:
    model = ModelConfig(
        d_model=256, n_layers=6, n_heads=4, n_kv_heads=2, intermediate_size=704, rope_theta=1e4, rms_norm_eps=1e-6
    )
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 704
    assert flops_per_token(model, 8192, 256) == 6 * (6 * layer + 8192 * 256) + 6 * 6 * 256 * 256
    assert flops_per_token(model, 8192, 256) == pytest.approx(41.5e6, rel=0.01)


def test_an_unknown_card_has_no_utilisation() -> None:
    assert utilisation(1000, 1e9, "NVIDIA GeForce RTX 9999", "bfloat16", 1) is None
    assert utilisation(1000, 1e9, "NVIDIA GeForce RTX 2060", "bfloat16", 1) is None, "Turing has no bfloat16"
    assert utilisation(1000, 1e9, "AMD EPYC", "float32", 1) is None


def test_cards_share_the_work() -> None:
    alone = utilisation(10_000, 1e9, "NVIDIA H200", "bfloat16", 1)
    assert alone == pytest.approx(1e13 / 989.4e12)
    assert utilisation(10_000, 1e9, "NVIDIA H200", "bfloat16", 4) == pytest.approx(alone / 4)


def test_the_cards_of_the_profiles_are_known() -> None:
    for profile in hardware_profiles(ROOT).values():
        if profile.gpu is not None:
            assert profile.precision in PEAK_FLOPS[profile.gpu]
