"""The step for single tokens says what the whole model says, whatever it is arranged for."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from enlace.config.schema import ModelConfig
from enlace.model.decode import decoder_of
from enlace.model.transformer import KVCache, Transformer


@pytest.fixture
def model(model_config: ModelConfig) -> Transformer:
    model = Transformer(model_config, 50).initialise(torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(8)
            if "norm" in name:  # gains that differ, or a forgotten one stays invisible
                parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    return model


def _whole(model: Transformer, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model.logits(model(torch.tensor([ids])))[0]


@torch.inference_mode()
def _prefilled(model: Transformer, prompts: list[list[int]], room: int) -> KVCache:
    cache = KVCache(room)
    longest = max(map(len, prompts))
    model(torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]), cache)
    return cache


def test_logits_with_the_cache_equal_those_without_at_every_position(model: Transformer) -> None:
    ids = torch.randint(0, 50, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    whole = _whole(model, ids)
    cache = _prefilled(model, [ids[:3]], 40)
    for position in range(3, 40):
        logits = decoder_of(model).step(torch.tensor([ids[position]]), cache, [position])
        torch.testing.assert_close(logits[0], whole[position], rtol=1e-5, atol=1e-5)


def test_rows_of_different_lengths_do_not_see_each_other_nor_the_padding(model: Transformer) -> None:
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, 50, (n,), generator=generator).tolist() for n in (5, 12, 1, 9)]
    news = torch.randint(0, 50, (4, 8), generator=generator).tolist()
    cache = _prefilled(model, rows, 20)
    for step in range(8):
        tokens = [new[step] for new in news]
        logits = decoder_of(model).step(torch.tensor(tokens), cache, [len(row) for row in rows])
        for row, token, got in zip(rows, tokens, logits):
            row.append(token)
            torch.testing.assert_close(got, _whole(model, row)[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(4, 4), (2, 5)])
def test_in_bfloat16_it_says_what_the_model_says_in_bfloat16(model: Transformer, lengths: tuple[int, int]) -> None:
    rows = [list(range(3, 3 + n)) for n in lengths]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cache = _prefilled(model, rows, 16)
        assert cache.layers[0][0].dtype == torch.bfloat16
        logits = decoder_of(model).step(torch.tensor([7, 8]), cache, list(lengths))
        wholes = [_whole(model, [*row, token])[-1] for row, token in zip(rows, (7, 8))]
    exact = [_whole(model, [*row, token])[-1] for row, token in zip(rows, (7, 8))]
    error = max(float((a.float() - b).abs().max()) for a, b in zip(wholes, exact))
    for got, right in zip(logits, exact):
        assert float((got.float() - right).abs().max()) < 3 * error, "no further off than bfloat16 itself is"


def test_weights_that_change_are_seen_and_those_that_do_not_are_prepared_once(model: Transformer) -> None:
    first = decoder_of(model)
    assert decoder_of(model) is first
    with torch.no_grad():
        model.layers[0].mlp.up_proj.weight.mul_(3)
    ids = [3, 1, 4, 1]
    cache = _prefilled(model, [ids[:3]], 8)
    torch.testing.assert_close(decoder_of(model).step(torch.tensor([1]), cache, [3])[0], _whole(model, ids)[-1])
    model.load_state_dict({name: tensor * 1.1 for name, tensor in model.state_dict().items()})
    cache = _prefilled(model, [ids[:3]], 8)
    torch.testing.assert_close(decoder_of(model).step(torch.tensor([1]), cache, [3])[0], _whole(model, ids)[-1])


def test_what_was_prepared_goes_with_its_model(model_config: ModelConfig) -> None:
    model = Transformer(model_config, 50).eval()
    decoder = weakref.ref(decoder_of(model))
    del model
    gc.collect()
    assert decoder() is None
