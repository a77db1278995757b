from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from enlace.data.chat import Message, encode_prompt
from enlace.eval import greedy
from enlace.eval.greedy import likeliest_turns
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate, generate_batch
from enlace.model.transformer import Transformer
from tests.conftest import sentences


def test_in_batches_of_any_size_each_turn_is_what_the_model_says_alone(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = deepcopy(trained.model)
    with torch.no_grad():
        for parameter in model.parameters():  # or the tied embedding makes every token repeat itself
            parameter.mul_(10 if parameter.ndim > 1 else 1)
    trained = replace(trained, model=model)
    prompts = [(Message("user", text[: 8 + 7 * i]),) for i, text in enumerate(sentences()[:9])][::-1]
    sampling = Sampling(12, temperature=0, top_p=1, seed=0)
    alone = []
    for prompt in prompts:
        ids = encode_prompt(trained.tokenizer, prompt)
        tokens = list(generate(trained.model, ids, sampling, trained.stop_ids, trained.context_length))
        alone.append(trained.tokenizer.decode(tokens))
    assert len(set(alone)) > 3
    assert likeliest_turns(trained, prompts, 12, "") == alone
    sizes = []

    def counted(model: Transformer, prompts: list[list[int]], *others: Any) -> list[list[int]]:
        sizes.append(len(prompts))
        return generate_batch(model, prompts, *others)

    monkeypatch.setattr(greedy, "generate_batch", counted)
    monkeypatch.setattr(greedy, "BATCH_TOKENS", 150)
    assert likeliest_turns(trained, prompts, 12, "") == alone
    assert len(sizes) > 1 and max(sizes) > 1, "more than one batch, and of more than one"
    assert likeliest_turns(trained, [], 12, "") == []
