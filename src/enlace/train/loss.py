"""Cross entropy and z-loss out of one logsumexp, as sums, so that micro-batches and ranks add up exactly.

The mean is taken once, over the trained tokens of the whole optimizer step: averaging the means of micro-batches
weighs a token by how many neighbours happened to be trained (huggingface/transformers#34191).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CACHED_LOGITS = 2**20  # float32 of them stay in the cache between one operation and the next


class LossSums(NamedTuple):
    """Scalars, each summed over the trained tokens."""

    cross_entropy: Tensor  # nats
    z_squared: Tensor  # log(Z)^2, before its weight

    def total(self, z_loss: float) -> Tensor:
        """What is minimised: cross entropy + `z_loss` * log(Z)^2 (PaLM, arXiv 2204.02311, section 5)."""
        return self.cross_entropy + z_loss * self.z_squared


def loss_sums(logits: Tensor, targets: Tensor, mask: Tensor) -> LossSums:
    """Sums over the trained tokens.

    Args:
        logits: [..., T, V], in the type of the matrix products; what is made of them here is float32.
        targets: [..., T] int64, the next token of each position (shifted by the loader, and only there).
        mask: [..., T] bool or float, 1 where the target is trained.
    """
    flat = logits.flatten(0, -2), targets.flatten().unsqueeze(-1), mask.flatten().unsqueeze(-1).to(torch.float32)
    return LossSums(*_LossSums.apply(*flat))  # type: ignore[no-untyped-call]


def loss_sums_in_chunks(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, mask: Tensor, chunk: int
) -> LossSums:
    """As `loss_sums` of `logits_of(hidden)`, with the logits of `chunk` tokens in memory at a time.

    They are computed again in the backward pass. 8 x 1024 tokens of a vocabulary of 32,768 would be 1 GiB of logits,
    and their gradient as much again.

    Args:
        logits_of: [N, D] -> [N, V].
        hidden: [B, T, D].
    """

    def sums(hidden: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return loss_sums(logits_of(hidden), targets, mask)

    cross_entropy = z_squared = torch.zeros((), device=hidden.device)
    parts = (hidden.flatten(0, 1).split(chunk), targets.flatten().split(chunk), mask.flatten().split(chunk))
    for part in zip(*parts, strict=True):
        part_sums = checkpoint(sums, *part, use_reentrant=False, preserve_rng_state=False)
        cross_entropy, z_squared = cross_entropy + part_sums[0], z_squared + part_sums[1]
    return LossSums(cross_entropy, z_squared)


class _LossSums(torch.autograd.Function):
    """Both sums with their gradient by hand, which autograd would spread over four copies of the logits in float32.

    With p = softmax(logits): d cross_entropy = p - onehot(target), d log(Z)^2 = 2 log(Z) p. Only the logits are kept,
    as they came. Shapes: logits [N, V], targets and weight [N, 1].
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(*_parts(logits, targets), strict=True)
        target_log_p = torch.cat([part.log_softmax(-1, dtype=torch.float32).gather(-1, at) for part, at in parts])
        log_z = logits.gather(-1, targets) - target_log_p
        ctx.save_for_backward(logits, targets, weight, log_z)
        return -(target_log_p * weight).sum(), (log_z.square() * weight).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cross_entropy, z_squared = gradients
        logits, targets, weight, log_z = ctx.saved_tensors
        of_p, of_target = weight * (cross_entropy + 2 * log_z * z_squared), -weight * cross_entropy
        gradient = torch.empty_like(logits)
        for out, part, at, factor, term in zip(*_parts(gradient, logits, targets, of_p, of_target), strict=True):
            p = part.softmax(-1, dtype=torch.float32)
            out.copy_(p.mul_(factor).scatter_add_(-1, at, term))
        return gradient, None, None


def _parts(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The rows of `tensors`, the first one [N, V]: all at once or, on a processor, as many as its cache holds."""
    rows = len(tensors[0])
    if tensors[0].device.type == "cpu":
        rows = max(1, CACHED_LOGITS // tensors[0].shape[-1])
    return [tensor.split(rows) for tensor in tensors]
