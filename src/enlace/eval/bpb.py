"""Bits per byte: how many bits the model needs for each byte of text it has not seen.

Unlike loss per token it does not depend on the tokenizer, so models with different ones compare. Each byte is scored
once; the first token follows <|endoftext|>; special tokens are neither scored nor counted as bytes. The windows are
those of lm-evaluation-harness (`loglikelihood_rolling`), so that its `bits_per_byte` of the exported model is this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from enlace.eval.scoring import Span, nats
from enlace.model.transformer import Transformer


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
        context_length: longest sequence that the model reads; a longer document is scored by windows.
    """
    windows: list[Span] = []
    n_bytes = 0
    for document in documents:
        text = [int(token) for token in document if token != end_of_text_id]
        n_bytes += int(byte_lengths[text].sum())
        windows += scoring_windows([end_of_text_id, *text], context_length)
    return math.fsum(nats(model, windows)) / math.log(2) / n_bytes


def scoring_windows(ids: Sequence[int], context_length: int) -> list[Span]:
    """Windows of up to `context_length` + 1 ids that score each of `ids` but the first once.

    The first token of a window follows the last one of the window before; the last window reaches back to be full.
    """
    windows = []
    scored = 0  # ids after the first, scored so far
    while scored < len(ids) - 1:
        end = min(scored + context_length, len(ids) - 1)
        start = max(0, end - context_length)
        windows.append(Span(tuple(ids[start : end + 1]), scored - start + 1))
        scored = end
    return windows
