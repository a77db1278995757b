"""Causal attention of grouped heads: torch's kernels, and plain products where they are three times as fast.

Shapes as in `transformer`; G = H / K, the query heads that share a key/value head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Scores are T x T: at 1024 tokens the plain products still win on a CPU, and a row of 12 heads keeps 24 MiB a layer.
LONGEST_BY_PRODUCTS = 1024


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """What each of the queries q [B, H, T, C] reads of k, v [B, K, S, C]: [B, H, T, C].

    Args:
        visible: [B, 1, T, S] bool, the keys that a query sees; None: those not after its own place, where T = S, and
            all of them for the one query of T = 1.
    """
    T, S = q.shape[2], k.shape[2]
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and 1 < T == S <= LONGEST_BY_PRODUCTS:
        return _by_products(q, k, v, visible)
    # Repeated by hand: on Turing, enable_gqa has no memory-efficient kernel and uses the quadratic one in silence.
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None and T > 1)


def _by_products(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """softmax(q kᵀ / sqrt(C)) v, the query heads of a group as more queries of one head.

    A processor multiplies bfloat16 matrices in hardware (AMX, AVX512-BF16) some ten times as fast as float32, which
    the flash kernel of torch 2.13 for CPUs does not make use of in its backward pass.
    """
    B, H, T, C = q.shape
    K = k.shape[1]
    rows = H // K * T  # the queries of a group, one head after another
    if visible is None:
        visible = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
    unseen = torch.zeros(visible.shape, dtype=q.dtype).masked_fill_(~visible, -torch.inf).repeat(1, 1, H // K, 1)
    unseen = unseen.expand(B, K, rows, T).reshape(B * K, rows, T)
    queries = (q * C**-0.5).reshape(B * K, rows, C)
    scores = torch.baddbmm(unseen, queries, k.flatten(0, 1).mT)
    return torch.bmm(scores.softmax(dim=-1), v.flatten(0, 1)).view(B, H, T, C)
