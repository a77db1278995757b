from __future__ import annotations

import pytest
import torch

from enlace.config.schema import ModelConfig
from enlace.model.generate import Sampling, generate, sample
from enlace.model.transformer import Transformer

GREEDY = Sampling(max_new_tokens=10, temperature=0, top_p=1, seed=0)


@pytest.fixture
def model(model_config: ModelConfig) -> Transformer:
    model = Transformer(model_config, 50).initialise(torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        model.embed_tokens.weight.mul_(10)
        for layer in model.layers:  # or the tied embedding makes every token repeat itself
            layer.mlp.down_proj.weight.mul_(200)
    return model


def test_greedy_is_what_the_whole_sequence_without_cache_says(model: Transformer) -> None:
    prompt = [3, 1, 4, 1, 5]
    got = list(generate(model, prompt, GREEDY, stop=(), context_length=64))
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(10):
            ids.append(int(model.logits(model(torch.tensor([ids])))[0, -1].argmax()))
    assert got == ids[5:]


def test_ends_before_a_stop_token(model: Transformer) -> None:
    free = list(generate(model, [3, 1, 4], GREEDY, stop=(), context_length=64))
    stop = free[4]
    assert list(generate(model, [3, 1, 4], GREEDY, stop={stop}, context_length=64)) == free[: free.index(stop)]


@pytest.mark.parametrize(("context", "expected"), [(4, 1), (8, 5), (13, 10), (64, 10)])
def test_never_more_than_asked_nor_than_the_context_holds(model: Transformer, context: int, expected: int) -> None:
    assert len(list(generate(model, [3, 1, 4], GREEDY, stop=(), context_length=context))) == expected


@pytest.mark.parametrize("prompt", [[], [1] * 8, [1] * 9])
def test_refuses_a_prompt_that_leaves_no_room(model: Transformer, prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="context"):
        next(generate(model, prompt, GREEDY, stop=(), context_length=8))


def test_a_seed_repeats_its_answer_and_seeds_differ(model: Transformer) -> None:
    def answer(seed: int) -> list[int]:
        sampling = Sampling(max_new_tokens=30, temperature=1.5, top_p=1, seed=seed)
        return list(generate(model, [2], sampling, stop=(), context_length=64))

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    generator = torch.Generator().manual_seed(0)

    def seen(top_p: float) -> set[int]:
        return {sample(logits, Sampling(1, 1.0, top_p, 0), generator) for _ in range(300)}

    assert seen(0.4) == {0}
    assert seen(0.79) == {0, 1}
    assert seen(1.0) == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-7, 1e-5])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logits = torch.tensor([1.0, 9.0, 8.0])
    sampling = Sampling(max_new_tokens=1, temperature=temperature, top_p=1, seed=0)
    assert sample(logits, sampling, torch.Generator().manual_seed(0)) == 1
