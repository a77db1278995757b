"""How likely a model finds a text after another one, many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from enlace.model.decode import decoder_of
from enlace.model.transformer import KVCache, Transformer

BATCH_LOGITS = 2**25  # scores held at once: 128 MiB in float32, of which the loss makes a copy


@dataclass(frozen=True)
class Span:
    """A sequence of which only the end is scored: `ids[n_given:]`, each after all that stands before it."""

    ids: tuple[int, ...]
    n_given: int  # at least 1: the first token follows nothing


@torch.inference_mode()
def nats(model: Transformer, spans: Sequence[Span]) -> list[float]:
    """Minus the log-likelihood of the scored end of each span, in nats, in the order given.

    Spans of like length go together, for little padding; the sums are in float64.
    """
    found = [0.0] * len(spans)
    for batch in _batches(spans, model.embed_tokens.num_embeddings):
        for place, value in zip(batch, _batch_nats(model, [spans[place] for place in batch]), strict=True):
            found[place] = value
    return found


@torch.inference_mode()
def nats_after(model: Transformer, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> list[float]:
    """Minus the log-likelihood of each of `answers`, none empty, after the same `prompt`, which is read once."""
    device = model.embed_tokens.weight.device
    longest = max(map(len, answers))
    padded = torch.tensor([[*answer, *[0] * (longest - len(answer))] for answer in answers], device=device)
    cache = KVCache(max_len=len(prompt) + longest)
    logits = model.logits(model(torch.tensor([prompt], device=device), cache)[:, -1]).expand(len(answers), -1)
    rows = (len(answers), 1, 1, 1)
    cache.layers = [(keys.repeat(rows), values.repeat(rows)) for keys, values in cache.layers]
    losses = []
    for i in range(longest):
        losses.append(F.cross_entropy(logits.float(), padded[:, i], reduction="none").double())
        if i + 1 < longest:
            logits = decoder_of(model).step(padded[:, i], cache, [len(prompt) + i] * len(answers))
    sums = [row[: len(answer)].sum() for row, answer in zip(torch.stack(losses, dim=1), answers, strict=True)]
    return torch.stack(sums).tolist()


def _batches(spans: Sequence[Span], vocab_size: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for place in sorted(range(len(spans)), key=lambda place: len(spans[place].ids)):
        if batch and (len(batch) + 1) * (len(spans[place].ids) - 1) * vocab_size > BATCH_LOGITS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _batch_nats(model: Transformer, spans: Sequence[Span]) -> list[float]:
    device = model.embed_tokens.weight.device
    longest = max(len(span.ids) for span in spans)
    tokens = torch.zeros(len(spans), longest, dtype=torch.long)
    scored = torch.zeros(len(spans), longest - 1, dtype=torch.bool)
    for row, span in enumerate(spans):
        tokens[row, : len(span.ids)] = torch.tensor(span.ids)
        scored[row, span.n_given - 1 : len(span.ids) - 1] = True
    tokens, scored = tokens.to(device), scored.to(device)
    hidden = model(tokens[:, :-1])[scored]  # N D: no scores over the vocabulary where none are asked for
    losses = F.cross_entropy(model.logits(hidden).float(), tokens[:, 1:][scored], reduction="none")
    sums = [part.double().sum() for part in losses.split([len(span.ids) - span.n_given for span in spans])]
    return torch.stack(sums).tolist()
