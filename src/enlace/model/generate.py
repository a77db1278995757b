"""Generation: one token after another, with a cache of what was read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from enlace.model.transformer import KVCache, Transformer


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    max_new_tokens: int
    temperature: float  # 0 takes the likeliest token, always
    top_p: float  # sample among the likeliest tokens that together reach this probability (arXiv 1904.09751)
    seed: int


@torch.inference_mode()
def generate(
    model: Transformer, prompt: Sequence[int], sampling: Sampling, stop: Collection[int], context_length: int
) -> Iterator[int]:
    """Tokens that follow `prompt`, one at a time; ends before a token of `stop`, or when the context is full.

    Raises:
        ValueError: the prompt is empty or fills the context.
    """
    if not 0 < len(prompt) < context_length:
        raise ValueError(f"a prompt of {len(prompt)} tokens does not fit a context of {context_length}")
    device = model.embed_tokens.weight.device
    generator = torch.Generator().manual_seed(sampling.seed)
    limit = min(context_length, len(prompt) + sampling.max_new_tokens)
    cache = KVCache(max_len=limit)
    ids = torch.tensor([list(prompt)], device=device)
    while True:
        logits = model.logits(model(ids, cache)[:, -1])[0].float().cpu()
        token = sample(logits, sampling, generator)
        if token in stop:
            return
        yield token
        if cache.length + 1 >= limit:
            return
        ids = torch.tensor([[token]], device=device)


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Choose a token by `logits` [V]."""
    if sampling.temperature < 1e-6:  # float32 would divide by zero
        return int(logits.argmax())
    probabilities, tokens = torch.softmax(logits / sampling.temperature, dim=-1).sort(descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    probabilities = probabilities.masked_fill(before >= sampling.top_p, 0)  # the likeliest always stays
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])
