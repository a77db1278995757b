"""What a machine can train in so many hours: the model and the tokens that make most of them.

Training costs about 6 floating-point operations per parameter and token, and attention some more. Of all models that a
budget can train, the one that reads about 20 tokens per parameter ends best (Hoffmann et al., arXiv 2203.15556), so the
model grows with the square root of the hours. Memory may stop it earlier; then the hours left go into more tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from enlace.config.rules import GIB, estimate_memory
from enlace.config.schema import Config, HardwareConfig, ModelConfig, Precision

TOKENS_PER_PARAMETER = 20  # Hoffmann et al., table 3
ASSUMED_UTILISATION = 0.35  # of the card's peak; what others reach with kernels like these is 0.3 to 0.5
SEQ_LEN = 1024
HEAD_DIM = 64
_MOST_HEADS = 64  # of the largest shape tried
_VOCABULARIES = ((256, 4096), (384, 8192), (640, 16_384), (1 << 30, 32_768))  # for models narrower than the first


@dataclass(frozen=True)
class Speed:
    """What a machine computes while it trains."""

    flops: float  # per second, those of the model only
    measured: bool  # else ASSUMED_UTILISATION of the peak


@dataclass(frozen=True)
class Plan:
    """The best use of a machine for some hours."""

    model: ModelConfig
    vocab_size: int
    parameters: int
    tokens: float
    memory_gib: float  # at one sequence at a time
    hours: float
    kwh: float | None  # None: the profile does not say what the machine draws
    speed: Speed
    tokens_per_second: float
    memory_bound: bool  # a larger model would suit the hours, but does not fit


def speed_of(hardware: HardwareConfig) -> Speed | None:
    """What the profile's machine computes; None when it says neither what was measured nor the card's peak."""
    if hardware.train_tflops is not None:
        return Speed(hardware.train_tflops * 1e12, measured=True)
    if hardware.peak_tflops is not None:
        return Speed(hardware.peak_tflops * 1e12 * ASSUMED_UTILISATION, measured=False)
    return None


def flops_per_token(model: ModelConfig, vocab_size: int, seq_len: int) -> float:
    """Floating-point operations of forward and backward for one token.

    6 per parameter (the tied embedding multiplies once, as the output), and the scores of causal attention and their
    sums: 12 n_layers d_model seq_len, half of which the mask spares (PaLM, arXiv 2204.02311, appendix B).
    """
    return 6.0 * (model.n_parameters(vocab_size) + model.n_layers * model.d_model * seq_len)


def peak_of(profiles: Mapping[str, HardwareConfig], device: str, precision: Precision) -> float | None:
    """FLOP/s at most of the card that torch calls `device`, by the profile of that card; None where there is none.

    Never another card's: a wrong peak is worse than none.
    """
    peaks = [p.peak_tflops for p in profiles.values() if p.gpu == device and p.precision == precision]
    return peaks[0] * 1e12 if peaks and peaks[0] is not None else None


def make_plan(config: Config, hours: float) -> Plan | None:
    """The plan for the hardware of `config`; None when `speed_of` is, or not even the smallest model fits."""
    speed = speed_of(config.hardware)
    if speed is None:
        return None
    plans = [_plan(config, model, vocab_size, hours, speed) for model, vocab_size in shapes()]
    fitting = [plan for plan in plans if plan.memory_gib <= config.hardware.memory_gib]
    if not fitting:
        return None
    smallest = min(fitting, key=lambda plan: plan.parameters)
    best = max((plan for plan in fitting if _is_read_enough(plan)), key=lambda p: p.parameters, default=smallest)
    memory_bound = any(plan.parameters > best.parameters and _is_read_enough(plan) for plan in plans)
    return replace(best, memory_bound=memory_bound)


def shapes() -> Iterator[tuple[ModelConfig, int]]:
    """Models and their vocabulary: about as deep as wide / 64, with heads of 64, a half or a third of them for keys
    and values, a SwiGLU of 8/3 of the width, and a vocabulary that does not take up a small model.
    """
    for n_heads in range(2, _MOST_HEADS + 1, 2):
        width = HEAD_DIM * n_heads
        for n_layers in range(max(2, n_heads * 3 // 4), n_heads * 3 // 2 + 1):
            model = ModelConfig(
                d_model=width,
                n_layers=n_layers,
                n_heads=n_heads,
                n_kv_heads=n_heads // 3 if n_heads % 3 == 0 else n_heads // 2,
                intermediate_size=round(width * 8 / 3 / 64) * 64,
                rope_theta=10_000.0,
                rms_norm_eps=1e-6,
            )
            yield model, next(size for narrower, size in _VOCABULARIES if width < narrower)


def _is_read_enough(plan: Plan) -> bool:
    return plan.tokens >= TOKENS_PER_PARAMETER * plan.parameters


def _plan(config: Config, model: ModelConfig, vocab_size: int, hours: float, speed: Speed) -> Plan:
    tokens_per_second = speed.flops / flops_per_token(model, vocab_size, SEQ_LEN)
    watts = config.hardware.watts
    train = config.train.model_copy(update={"seq_len": SEQ_LEN, "document_mask": False})  # as the larger presets
    return Plan(
        model=model,
        vocab_size=vocab_size,
        parameters=model.n_parameters(vocab_size),
        tokens=tokens_per_second * hours * 3600,
        memory_gib=estimate_memory(model, vocab_size, train, config.hardware, micro_batch=1) / GIB,
        hours=hours,
        kwh=None if watts is None else watts * hours / 1000,
        speed=speed,
        tokens_per_second=tokens_per_second,
        memory_bound=False,
    )
