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
        logits: [..., V]; taken to float32 here, whatever the matrix products used.
        targets: [...] int64, the next token of each position (shifted by the loader, and only there).
        mask: [...] bool or float, 1 where the target is trained.
    """
    return LossSums(*_LossSums.apply(logits.float(), targets.unsqueeze(-1), mask.to(torch.float32)))  # type: ignore[no-untyped-call]


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
    """Both sums with their gradient by hand, which autograd would spread over four copies of the logits.

    With p = softmax(logits): d cross_entropy = p - onehot(target), d log(Z)^2 = 2 log(Z) p. One copy is kept, log p,
    and the backward pass turns it into the gradient where it lies, so it can run once only.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, dim=-1)
        target_log_p = log_p.gather(-1, targets).squeeze(-1)
        log_z = logits.gather(-1, targets).squeeze(-1) - target_log_p
        ctx.save_for_backward(log_p, targets, weight, log_z)
        return -(target_log_p * weight).sum(), (log_z.square() * weight).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cross_entropy, z_squared = gradients
        log_p, targets, weight, log_z = ctx.saved_tensors
        gradient = log_p.exp_().mul_((weight * (cross_entropy + 2 * log_z * z_squared)).unsqueeze(-1))
        gradient.scatter_add_(-1, targets, -(weight * cross_entropy).unsqueeze(-1))
        return gradient, None, None
