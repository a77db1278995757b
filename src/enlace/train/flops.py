"""How much of the card is used: model FLOPs utilisation, or "n/a" where the card's peak is not known.

A wrong peak is worse than none: other trainers divide by an A100's whatever the card is.
"""

from __future__ import annotations

from enlace.config.schema import ModelConfig, Precision

# Dense matrix products with float32 sums, FLOP/s, by the exact name that torch gives the card. From NVIDIA's data
# sheets and white papers (the figures "with sparsity" halved; GeForce: the rate with FP32 accumulate).
PEAK_FLOPS: dict[str, dict[Precision, float]] = {
    "NVIDIA GeForce RTX 2060": {"float16": 25.8e12, "float32": 6.5e12},
    "NVIDIA GeForce RTX 3090": {"float16": 71e12, "bfloat16": 71e12, "float32": 35.6e12},
    "NVIDIA GeForce RTX 4090": {"float16": 165.2e12, "bfloat16": 165.2e12, "float32": 82.6e12},
    "NVIDIA GeForce RTX 5090": {"float16": 209.5e12, "bfloat16": 209.5e12, "float32": 104.8e12},
    "NVIDIA A100-SXM4-80GB": {"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12},
    "NVIDIA H100 80GB HBM3": {"float16": 989.4e12, "bfloat16": 989.4e12, "float32": 66.9e12},
    "NVIDIA H200": {"float16": 989.4e12, "bfloat16": 989.4e12, "float32": 66.9e12},
}


def flops_per_token(model: ModelConfig, vocab_size: int, seq_len: int) -> float:
    """FLOPs of forward and backward for one token.

    6 per weight that multiplies it (the tied embedding once, as the output), and 12 n_layers d_model T for the scores
    and their sums (PaLM, arXiv 2204.02311, appendix B), half of it since attention is causal. What is computed again
    (chunks of the loss) is not counted.
    """
    norms = model.n_layers * (2 * model.d_model + 2 * model.head_dim) + model.d_model
    weights = model.n_parameters(vocab_size) - norms
    return 6 * weights + 6 * model.n_layers * model.d_model * seq_len


def utilisation(tokens_per_second: float, flops: float, device: str, precision: Precision, cards: int) -> float | None:
    """Share of the peak of `cards` cards that `flops` per token come to; None where the peak is not known."""
    peak = PEAK_FLOPS.get(device, {}).get(precision)
    return None if peak is None else tokens_per_second * flops / (peak * cards)
