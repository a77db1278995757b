"""Cross entropy and z-loss out of one logsumexp, as sums, so that micro-batches and ranks add up exactly.

The mean is taken once, over the trained tokens of the whole optimizer step: averaging the means of micro-batches
weighs a token by how many neighbours happened to be trained (huggingface/transformers#34191).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
        logits: [B, T, V]; taken to float32 here, whatever the matrix products used.
        targets: [B, T] int64, the next token of each position (shifted by the loader, and only there).
        mask: [B, T] bool or float, 1 where the target is trained.
    """
    logits = logits.float()
    log_z = torch.logsumexp(logits, dim=-1)
    target_logits = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    weight = mask.to(torch.float32)
    return LossSums(((log_z - target_logits) * weight).sum(), (log_z.square() * weight).sum())
