from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enlace.config.schema import ModelConfig
from enlace.eval.bpb import bits_per_byte, scoring_windows
from enlace.model.transformer import Transformer
from enlace.train.loss import loss_sums

VOCAB = 40
LENGTHS = np.array([0, 0, 0, 0, *([1, 2, 3] * 12)], dtype=np.int64)


@pytest.fixture
def model(model_config: ModelConfig) -> Transformer:
    return Transformer(model_config, VOCAB).initialise(torch.Generator().manual_seed(0)).eval()


def _documents(*lengths: int) -> list[np.ndarray]:
    draw = np.random.default_rng(1)
    return [np.append(draw.integers(4, VOCAB, n), 0).astype(np.uint16) for n in lengths]


def test_a_uniform_model_needs_log2_of_the_vocabulary_per_token(model: Transformer) -> None:
    with torch.no_grad():
        model.embed_tokens.weight.zero_()
    documents = _documents(10, 75, 3)
    n_bytes = sum(int(LENGTHS[d].sum()) for d in documents)
    expected = 88 * math.log2(VOCAB) / n_bytes
    assert bits_per_byte(model, documents, LENGTHS, 0, 32) == pytest.approx(expected, rel=1e-5)


def test_equals_scoring_each_document_alone(model: Transformer) -> None:
    documents = _documents(5, 31, 17, 32, 1)
    nats = 0.0
    for document in documents:
        ids = torch.tensor([[0, *map(int, document[:-1])]])
        with torch.no_grad():
            logits = model.logits(model(ids[:, :-1]))
        nats += float(loss_sums(logits, ids[:, 1:], torch.ones(1, len(document) - 1)).cross_entropy)
    n_bytes = sum(int(LENGTHS[d].sum()) for d in documents)
    got = bits_per_byte(model, documents, LENGTHS, 0, 32)
    assert got == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-5)


def test_does_not_depend_on_the_order_of_the_documents(model: Transformer) -> None:
    documents = _documents(5, 90, 17, 64)
    forward = bits_per_byte(model, documents, LENGTHS, 0, 32)
    assert bits_per_byte(model, documents[::-1], LENGTHS, 0, 32) == pytest.approx(forward, rel=1e-6)


@given(st.integers(2, 300), st.integers(8, 64))
def test_windows_score_each_token_once_with_half_a_context_before_it(n: int, context: int) -> None:
    ids = list(range(n))
    scored: list[int] = []
    for window, done in scoring_windows(ids, context):
        assert len(window) <= context + 1
        assert done == 0 or done >= min(context // 2, window[0] + done)
        scored += window[1:][done:]
    assert scored == ids[1:]
