from __future__ import annotations

import pytest
import torch

from enlace.config.schema import ModelConfig
from enlace.model.generate import Sampling, generate, generate_batch, sample
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


# ── Beside transformers ──────────────────────────────────────────────────────────────────────────────────────────────


def _kept_by_transformers(logits: torch.Tensor, sampling: Sampling, before: list[int]) -> tuple[set[int], torch.Tensor]:
    transformers = pytest.importorskip("transformers")
    scores, ids = logits[None], torch.tensor([before])
    for processor in (
        transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        transformers.TemperatureLogitsWarper(sampling.temperature),
        transformers.TopKLogitsWarper(sampling.top_k or len(logits)),
        transformers.TopPLogitsWarper(sampling.top_p),
        transformers.MinPLogitsWarper(sampling.min_p),
    ):
        scores = processor(ids, scores)
    probabilities = torch.softmax(scores[0], -1)
    return set(probabilities.nonzero().flatten().tolist()), probabilities


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"top_k": 3},
        {"top_k": 1},
        {"top_k": 1000},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.6},
        {"top_k": 5, "top_p": 0.7, "min_p": 0.1, "repetition_penalty": 1.3, "temperature": 0.8},
        {"top_k": 4, "top_p": 0.9, "temperature": 1.4},
    ],
)
def test_each_way_of_choosing_means_what_it_means_in_transformers(changed: dict[str, float]) -> None:
    sampling = Sampling(**{"max_new_tokens": 1, "temperature": 1.0, "top_p": 1.0, "seed": 0, **changed})
    logits = torch.randn(12, generator=torch.Generator().manual_seed(4)) * 2
    before = [int(logits.argmax()), int(logits.argmin()), 5, 5]
    allowed, probabilities = _kept_by_transformers(logits, sampling, before)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.bincount(
        torch.tensor([sample(logits, sampling, generator, before) for _ in range(1000)]), minlength=12
    )
    assert set(drawn.nonzero().flatten().tolist()) <= allowed
    deviation = (probabilities * (1 - probabilities) / 1000).sqrt()
    assert ((drawn / 1000 - probabilities).abs() <= 4.5 * deviation + 1e-9).all()


def test_the_penalty_counts_without_sampling_too_and_on_the_prompt() -> None:
    logits = torch.tensor([2.0, 1.5, -1.0])
    greedy = Sampling(1, 0, 1, 0, repetition_penalty=2.0)
    generator = torch.Generator()
    assert sample(logits, greedy, generator) == 0
    assert sample(logits, greedy, generator, [0]) == 1
    assert sample(torch.tensor([-1.0, -1.5]), greedy, generator, [0]) == 1, "a negative score is made more so"


# ── Several at once ──────────────────────────────────────────────────────────────────────────────────────────────────


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2], [7, 7, 7], [10, 20, 30, 40, 49, 3, 2, 1, 0, 5, 6], [7, 7, 7]]


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_batch_gives_what_each_prompt_gives_alone(model: Transformer, temperature: float) -> None:
    sampling = Sampling(20, temperature, 0.95, seed=3, top_k=30, repetition_penalty=1.1)
    alone = [list(generate(model, prompt, sampling, (), 24)) for prompt in PROMPTS]
    assert generate_batch(model, PROMPTS, sampling, (), 24) == alone
    stop = {alone[0][3], alone[3][2]}  # some end early, and the others go on
    alone = [list(generate(model, prompt, sampling, stop, 24)) for prompt in PROMPTS]
    assert len({len(answer) for answer in alone}) > 1
    assert generate_batch(model, PROMPTS, sampling, stop, 24) == alone


def test_a_batch_of_none_and_of_one_that_does_not_fit(model: Transformer) -> None:
    assert generate_batch(model, [], GREEDY, (), 24) == []
    with pytest.raises(ValueError, match="context"):
        generate_batch(model, [[1], [1] * 24], GREEDY, (), 24)
