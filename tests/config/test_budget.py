from __future__ import annotations

import math
from itertools import pairwise

import pytest

from enlace.config.budget import (
    ASSUMED_UTILISATION,
    TOKENS_PER_PARAMETER,
    Plan,
    Speed,
    flops_per_token,
    make_plan,
    peak_of,
    shapes,
    speed_of,
)
from enlace.config.load import hardware_profiles, load_config
from enlace.config.schema import Config, ModelConfig
from tests.conftest import ROOT

PROFILES = ("cpu", "rtx2060", "rtx5090", "h200")


def _config(profile: str, **hardware: object) -> Config:
    config = load_config(ROOT, params=ROOT / "configs/presets/demo.yaml", hardware=profile)
    return config.model_copy(update={"hardware": config.hardware.model_copy(update=hardware)})


def _plan(profile: str, hours: float, **hardware: object) -> Plan:
    made = make_plan(_config(profile, **hardware), hours)
    assert made is not None
    return made


@pytest.mark.parametrize("profile", PROFILES)
def test_the_model_reads_enough_fits_and_is_the_largest_that_does(profile: str) -> None:
    made = _plan(profile, 72)
    assert made.tokens >= TOKENS_PER_PARAMETER * made.parameters
    assert made.memory_gib <= _config(profile).hardware.memory_gib and not made.memory_bound
    larger = [(m, v) for m, v in shapes() if m.n_parameters(v) > made.parameters]
    for model, vocab_size in larger:
        seconds = TOKENS_PER_PARAMETER * model.n_parameters(vocab_size) * flops_per_token(model, vocab_size, 1024)
        assert seconds / made.speed.flops > 72 * 3600, "would not read enough"
    # By hand: C = 6 N D and D = 20 N; attention and the steps between shapes take the rest.
    by_hand = math.sqrt(made.speed.flops * 72 * 3600 / (6 * TOKENS_PER_PARAMETER))
    assert 0.7 * by_hand < made.parameters < by_hand


def test_more_hours_never_mean_a_smaller_model() -> None:
    for profile in PROFILES:
        sizes = [_plan(profile, hours).parameters for hours in (1, 8, 24, 72, 168, 1000)]
        assert all(a <= b for a, b in pairwise(sizes))


def test_memory_stops_the_model_and_the_hours_go_into_tokens() -> None:
    free, held = _plan("rtx2060", 72), _plan("rtx2060", 72, memory_gib=1.5)
    assert held.memory_bound and held.memory_gib <= 1.5
    assert held.parameters < free.parameters and held.tokens > free.tokens
    assert make_plan(_config("rtx2060", memory_gib=0.001), 72) is None


def test_a_measured_speed_wins_over_an_assumed_share_of_the_peak() -> None:
    assumed, measured = _config("rtx2060"), _config("rtx2060", train_tflops=8.5)
    assert speed_of(assumed.hardware).flops == pytest.approx(25.8e12 * ASSUMED_UTILISATION)  # type: ignore[union-attr]
    assert not speed_of(assumed.hardware).measured  # type: ignore[union-attr]
    assert speed_of(measured.hardware) == Speed(8.5e12, measured=True)
    assert speed_of(_config("rtx2060", peak_tflops=None).hardware) is None
    assert make_plan(_config("rtx2060", peak_tflops=None), 72) is None


def test_the_processor_is_as_fast_as_the_readme_measured() -> None:
    """The demo: 1680 steps of 2048 tokens in 272 seconds, apart from reading and measuring."""
    config = _config("cpu")
    cost = flops_per_token(config.model, config.data.shards.vocab_size, config.train.seq_len)
    tokens_per_second = config.train.steps * config.train.batch_tokens / 272
    assert config.hardware.train_tflops == pytest.approx(tokens_per_second * cost / 1e12, rel=0.05)


def test_energy_is_power_times_time() -> None:
    assert _plan("h200", 10, watts=1000.0).kwh == 10
    assert _plan("h200", 10, watts=None).kwh is None


def test_shapes_are_valid_models() -> None:
    for model, vocab_size in shapes():
        assert model.d_model % model.n_heads == 0 and model.n_heads % model.n_kv_heads == 0
        assert vocab_size * model.d_model < 0.7 * model.n_parameters(vocab_size)


def test_flops_of_a_shape_counted_by_hand() -> None:
    model = ModelConfig(
        d_model=256, n_layers=6, n_heads=4, n_kv_heads=2, intermediate_size=704, rope_theta=1e4, rms_norm_eps=1e-6
    )
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 704
    by_hand = 6 * (6 * layer + 8192 * 256) + 6 * 6 * 256 * 256
    assert flops_per_token(model, 8192, 256) == pytest.approx(by_hand, rel=1e-3)  # the gains of the norms are few


def test_the_peak_is_that_of_this_very_card_or_none() -> None:
    profiles = hardware_profiles(ROOT)
    assert peak_of(profiles, "NVIDIA H200", "bfloat16") == 989.4e12
    assert peak_of(profiles, "NVIDIA GeForce RTX 2060", "float16") == 25.8e12
    assert peak_of(profiles, "NVIDIA GeForce RTX 2060", "bfloat16") is None, "Turing has none"
    assert peak_of(profiles, "NVIDIA GeForce RTX 2060 SUPER", "float16") is None
    assert peak_of(profiles, "AMD EPYC", "float32") is None
