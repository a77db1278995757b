"""The optimizers: fused AdamW, and Muon on the matrices with AdamW on the rest.

Every parameter is in exactly one group. Weight decay acts on the matrices of the layers only: never on norm gains,
never on the embedding (which is the output layer too).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from enlace.config.schema import TrainConfig
from enlace.model.transformer import Transformer
from enlace.train.distributed import like, whole

# Quintic Newton-Schulz iteration, https://kellerjordan.github.io/posts/muon/
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NS_STEPS = 5


class Muon(Optimizer):
    """Momentum, orthogonalised: each matrix moves by the nearest (semi-)orthogonal matrix to its momentum.

    The same update as `torch.optim.Muon`, which always iterates in bfloat16. Hardware without bfloat16 (Turing, and
    most processors) emulates it: on two cores of an AMD EPYC 7003, torch's took 2.9 s a step for the 1.6 million
    parameters of the `mini` layers, this one 0.1 s. Here the iteration runs in `dtype`, and matrices of one shape are
    stacked and multiplied together.
    """

    def __init__(
        self, params: Sequence[Tensor], lr: float, momentum: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        if wrong := [tuple(p.shape) for p in params if p.ndim != 2]:
            raise ValueError(f"Muon takes matrices only, not {wrong}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for (rows, columns), params in by_shape.items():
                # Whole matrices, also where each rank holds a part: orthogonalising the parts is not the same.
                directions = torch.stack([whole(self._nesterov(p, group["momentum"])) for p in params])
                updates = orthogonalise(directions.to(self.dtype))
                # A tall matrix gets longer steps, so that its outputs move as much as a square one's.
                lr = group["lr"] * math.sqrt(max(1, rows / columns))
                for p, update in zip(params, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(like(update, p), alpha=-lr)

    def _nesterov(self, p: Tensor, momentum: float) -> Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        assert p.grad is not None
        buffer = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(buffer, momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearly the orthogonal factor of each of `matrices` [N, R, C] (singular values end between about 0.7 and 1.2)."""
    a, b, c = NS_COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NS_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def build_optimizers(model: Transformer, train: TrainConfig, dtype: torch.dtype) -> list[Optimizer]:
    """The optimizers of the recipe; each group carries its peak learning rate as ``peak_lr``.

    Args:
        dtype: of the matrix products in training. Muon iterates in bfloat16 too where that is it, else in float32.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and not name.startswith("embed_tokens")]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    adamw_groups = [{"params": rest, "weight_decay": 0.0}]
    optimizers: list[Optimizer] = []
    if train.optimizer == "muon":
        muon_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        optimizers.append(Muon(matrices, train.muon_lr, train.muon_momentum, train.weight_decay, muon_dtype))
    else:
        adamw_groups.append({"params": matrices, "weight_decay": train.weight_decay})
    optimizers.append(AdamW(adamw_groups, lr=train.lr, betas=(train.beta1, train.beta2), eps=1e-8, fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers
