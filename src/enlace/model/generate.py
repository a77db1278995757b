"""Generation: one token after another, with a cache of what was read, for one prompt or for several at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from enlace.model.decode import decoder_of
from enlace.model.transformer import KVCache, Transformer


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. What is not said here changes nothing.

    With the meaning and in the order of transformers: repetition penalty (also when `temperature` is 0), temperature,
    top_k, top_p, min_p.
    """

    max_new_tokens: int
    temperature: float  # 0 takes the likeliest token, always
    top_p: float  # sample among the likeliest tokens that together reach this probability (arXiv 1904.09751)
    seed: int
    top_k: int = 0  # sample among this many of the likeliest, before top_p; 0 among all
    min_p: float = 0.0  # leave out what is less likely than this share of the likeliest (arXiv 2407.01082)
    repetition_penalty: float = 1.0  # above 1, tokens of the prompt and the answer are less likely (arXiv 1909.05858)


def generate(
    model: Transformer, prompt: Sequence[int], sampling: Sampling, stop: Collection[int], context_length: int
) -> Iterator[int]:
    """Tokens that follow `prompt`, one at a time; ends before a token of `stop`, or when the context is full.

    Raises:
        ValueError: the prompt is empty or fills the context.
    """
    for tokens in _steps(model, [prompt], sampling, stop, context_length):
        yield tokens[0]


def generate_batch(
    model: Transformer, prompts: Sequence[Sequence[int]], sampling: Sampling, stop: Collection[int], context_length: int
) -> list[list[int]]:
    """For each prompt the tokens that `generate` gives alone, several read at once: much sooner, and the memory of all.

    Raises:
        ValueError: a prompt is empty or fills the context.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    for tokens in _steps(model, prompts, sampling, stop, context_length):
        for row, token in tokens.items():
            answers[row].append(token)
    return answers


@torch.inference_mode()
def _steps(
    model: Transformer, prompts: Sequence[Sequence[int]], sampling: Sampling, stop: Collection[int], context_length: int
) -> Iterator[dict[int, int]]:
    """The next token of each prompt that is not done, by its number, until none is left.

    Prompts are padded on the right: in a causal model nothing before the padding sees it, and each new token is then
    written over it, where its own sequence ends. Sequences that are done leave the batch.
    """
    for prompt in prompts:
        if not 0 < len(prompt) < context_length:
            raise ValueError(f"a prompt of {len(prompt)} tokens does not fit a context of {context_length}")
    if not prompts:
        return
    device = model.embed_tokens.weight.device
    rows = [
        _Row(i, list(prompt), min(context_length, len(prompt) + sampling.max_new_tokens), sampling.seed)
        for i, prompt in enumerate(prompts)
    ]
    longest = max(len(prompt) for prompt in prompts)
    cache = KVCache(max_len=max(row.limit for row in rows))
    padded = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    hidden = model(padded, cache)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    logits = model.logits(hidden[torch.arange(len(rows), device=device), last])
    while True:
        chosen = {
            row: sample(scores, sampling, row.generator, row.tokens) for row, scores in zip(rows, logits.float().cpu())
        }
        if said := {row.number: token for row, token in chosen.items() if token not in stop}:
            yield said
        for row in rows:
            row.tokens.append(chosen[row])
        going = [i for i, row in enumerate(rows) if row.number in said and len(row.tokens) < row.limit]
        if not going:
            return
        if len(going) < len(rows):
            rows = [rows[i] for i in going]
            cache.layers = [(keys[going], values[going]) for keys, values in cache.layers]
        tokens = torch.tensor([row.tokens[-1] for row in rows], device=device)
        logits = decoder_of(model).step(tokens, cache, [len(row.tokens) - 1 for row in rows])


class _Row:
    """One sequence of a batch, with a generator of its own: what it says does not depend on the others."""

    def __init__(self, number: int, tokens: list[int], limit: int, seed: int) -> None:
        self.number, self.tokens, self.limit = number, tokens, limit
        self.generator = torch.Generator().manual_seed(seed)


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator, before: Sequence[int] = ()) -> int:
    """Choose a token by `logits` [V]; `before` are those of the prompt and the answer so far."""
    if sampling.repetition_penalty != 1 and before:
        logits = _penalised(logits, sampling.repetition_penalty, before)
    if sampling.temperature < 1e-6:  # float32 would divide by zero
        return int(logits.argmax())
    probabilities = torch.softmax(logits / sampling.temperature, dim=-1)
    if 0 < sampling.top_k < len(logits):
        probabilities, tokens = probabilities.topk(sampling.top_k)
        probabilities = probabilities / probabilities.sum()
    else:
        probabilities, tokens = probabilities.sort(descending=True, stable=True)
    earlier = probabilities.cumsum(-1) - probabilities
    dropped = (earlier >= sampling.top_p) | (probabilities < sampling.min_p * probabilities[0])
    probabilities = probabilities.masked_fill(dropped, 0)  # the likeliest always stays
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])


def _penalised(logits: Tensor, penalty: float, before: Sequence[int]) -> Tensor:
    """A positive score is divided, a negative one multiplied, once however often the token occurred."""
    tokens = torch.tensor(sorted(set(before)))
    scores = logits[tokens]
    return logits.scatter(0, tokens, torch.where(scores > 0, scores / penalty, scores * penalty))
