"""Bits per byte: how many bits the model needs for each byte of text it has not seen.

Unlike loss per token it does not depend on the tokenizer, so models with different ones compare. Each byte is scored
once; the first token follows <|endoftext|>; special tokens are neither scored nor counted as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from enlace.model.transformer import Transformer
from enlace.train.loss import loss_sums

BATCH_LOGITS = 2**25  # scores held at once: 128 MiB in float32, of which the loss makes two copies


def bits_per_byte(
    model: Transformer,
    documents: Iterable[npt.NDArray[np.integer]],
    byte_lengths: npt.NDArray[np.int64],
    end_of_text_id: int,
    context_length: int,
) -> float:
    """Bits per byte over `documents`.

    Args:
        documents: ids of each, which may end with <|endoftext|>.
        byte_lengths: [V], UTF-8 bytes of each token, 0 for special ones.
        context_length: longest sequence that the model reads; a longer document is scored by windows that overlap by
            half, each token in the first window that reaches it.
    """
    windows: list[tuple[list[int], int]] = []  # ids, and how many leading targets were scored before
    n_bytes = 0
    for document in documents:
        text = [int(token) for token in document if token != end_of_text_id]
        n_bytes += int(byte_lengths[text].sum())
        windows += scoring_windows([end_of_text_id, *text], context_length)
    nats = sum(
        _batch_nats(model, batch, end_of_text_id) for batch in _batches(windows, context_length * len(byte_lengths))
    )
    return nats / math.log(2) / n_bytes


def scoring_windows(ids: Sequence[int], context_length: int) -> list[tuple[list[int], int]]:
    """Windows of up to `context_length` + 1 ids that cover `ids`, with how many targets of each were scored before."""
    windows = []
    scored = 0  # targets, that is ids after the first, scored so far
    while scored < len(ids) - 1:
        start = 0 if scored == 0 else scored - min(scored, context_length // 2)
        window = list(ids[start : start + context_length + 1])
        windows.append((window, scored - start))
        scored = start + len(window) - 1
    return windows


def _batches(windows: list[tuple[list[int], int]], logits_each: int) -> Iterator[list[tuple[list[int], int]]]:
    ordered = iter(sorted(windows, key=lambda window: len(window[0])))  # little padding
    while batch := list(islice(ordered, max(1, BATCH_LOGITS // logits_each))):
        yield batch


@torch.inference_mode()
def _batch_nats(model: Transformer, batch: list[tuple[list[int], int]], padding: int) -> float:
    device = model.embed_tokens.weight.device
    longest = max(len(ids) for ids, _ in batch)
    tokens = torch.full((len(batch), longest), padding)
    mask = torch.zeros(len(batch), longest - 1, dtype=torch.bool)
    for row, (ids, done) in enumerate(batch):
        tokens[row, : len(ids)] = torch.tensor(ids)
        mask[row, done : len(ids) - 1] = True
    tokens, mask = tokens.to(device), mask.to(device)
    logits = model.logits(model(tokens[:, :-1]))
    return float(loss_sums(logits, tokens[:, 1:], mask).cross_entropy)
