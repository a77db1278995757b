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
def test_windows_score_each_token_once_after_the_one_before(n: int, context: int) -> None:
    ids = list(range(n))
    scored: list[int] = []
    windows = scoring_windows(ids, context)
    for window in windows:
        assert len(window.ids) <= context + 1
        assert list(window.ids) == list(range(window.ids[0], window.ids[-1] + 1))
        scored += window.ids[window.n_given :]
    assert scored == ids[1:]
    assert n <= context or len(windows[-1].ids) == context + 1, "the last window reaches back as far as it can"


def test_a_long_document_is_scored_as_its_windows_one_by_one(model: Transformer) -> None:
    document = _documents(75)[0]
    ids = [0, *map(int, document[:-1])]
    nats = 0.0
    for start, first in ((0, 1), (32, 33), (43, 65)):  # two whole windows, and one that reaches back to be whole
        window = ids[start : start + 33]
        with torch.no_grad():
            log_p = model.logits(model(torch.tensor([window[:-1]]))).log_softmax(-1)[0]
        nats -= sum(float(log_p[i - start - 1, ids[i]]) for i in range(first, min(start + 33, len(ids))))
    expected = nats / math.log(2) / int(LENGTHS[document].sum())
    assert bits_per_byte(model, [document], LENGTHS, 0, 32) == pytest.approx(expected, rel=1e-5)
