"""Muon here (stacked by shape, in the profile's type) beside torch's own (bfloat16, one by one): CPU seconds per step.

python -m benchmarks.muon
"""

from __future__ import annotations

import time

import torch
from torch.optim import Optimizer

from enlace.config.load import load_config
from enlace.console import run_main, say
from enlace.model.transformer import Transformer
from enlace.train.backends import runtime_of, this_machine
from enlace.train.optim import Muon

STEPS = 3


def main() -> None:
    """Time both on the layer matrices of the configured model, in turns."""
    config = load_config()
    torch.set_num_threads(config.hardware.threads or torch.get_num_threads())
    dtype = runtime_of(config.hardware, this_machine()).dtype
    model = Transformer(config.model, config.data.shards.vocab_size).initialise(torch.Generator().manual_seed(0))
    matrices = [p for name, p in model.layers.named_parameters() if p.ndim == 2]
    for p in matrices:
        p.grad = torch.randn_like(p)
    ours = _seconds(Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.1, dtype=dtype))
    theirs = _seconds(torch.optim.Muon(matrices, lr=0.02))
    count = sum(p.numel() for p in matrices)
    say(f"{len(matrices)} matrices, {count:,} parameters: {1000 * ours:.0f} ms of CPU a step here in {dtype},")
    say(f"{1000 * theirs:.0f} ms with torch.optim.Muon: {theirs / ours:.1f} times as long")


def _seconds(optimizer: Optimizer) -> float:
    optimizer.step()
    start = time.process_time()
    for _ in range(STEPS):
        optimizer.step()
    return (time.process_time() - start) / STEPS


if __name__ == "__main__":
    run_main(main)
