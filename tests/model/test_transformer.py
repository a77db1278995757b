from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from enlace.config.schema import ModelConfig
from enlace.model.norm import RMSNorm
from enlace.model.transformer import KVCache, Transformer, rotation_table

VOCAB = 96


def _random_model(config: ModelConfig) -> Transformer:
    generator = torch.Generator().manual_seed(0)
    model = Transformer(config, VOCAB).initialise(generator)
    with torch.no_grad():  # gains too: all ones would hide a norm in the wrong place
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.weight.copy_(0.5 + torch.rand(module.weight.shape, generator=generator))
        for layer in model.layers:  # larger than the initial scale, or attention is uniform and hides its mistakes
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                linear.weight.mul_(20)
    return model.eval()


def test_logits_and_gradients_equal_qwen3_of_transformers(model_config: ModelConfig) -> None:
    transformers = pytest.importorskip("transformers")
    model = _random_model(model_config)
    theirs = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=model_config.d_model,
            intermediate_size=model_config.intermediate_size,
            num_hidden_layers=model_config.n_layers,
            num_attention_heads=model_config.n_heads,
            num_key_value_heads=model_config.n_kv_heads,
            head_dim=model_config.head_dim,
            rms_norm_eps=model_config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": model_config.rope_theta},
            tie_word_embeddings=True,
            max_position_embeddings=128,
        )
    ).eval()
    theirs.model.load_state_dict(model.state_dict(), strict=True)
    ids = torch.randint(0, VOCAB, (2, 96), generator=torch.Generator().manual_seed(1))
    expected, got = theirs(ids).logits, model.logits(model(ids))
    assert expected.std() > 0.05
    assert (got - expected).abs().max() <= 1e-5
    for logits in (expected, got):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = dict(theirs.model.named_parameters())
    for name, parameter in model.named_parameters():
        ours, wanted = parameter.grad, gradients[name].grad
        assert ours is not None and wanted is not None and wanted.abs().max() > 1e-5, name
        assert (ours - wanted).abs().max() <= 1e-6, name


def test_the_future_does_not_change_the_past(model_config: ModelConfig) -> None:
    model = _random_model(model_config)
    ids = torch.randint(0, VOCAB, (1, 20))
    changed = ids.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % VOCAB
    with torch.no_grad():
        assert torch.equal(model(ids)[:, :12], model(changed)[:, :12])
        assert not torch.equal(model(ids)[:, 12:], model(changed)[:, 12:])


@pytest.mark.parametrize("pieces", [[20], [1] * 20, [7, *[1] * 13], [19, 1]])
def test_cache_gives_the_same_states_however_the_tokens_arrive(model_config: ModelConfig, pieces: list[int]) -> None:
    model = _random_model(model_config)
    ids = torch.randint(0, VOCAB, (2, 20))
    with torch.no_grad():
        whole = model(ids)
        cache = KVCache(max_len=20)
        parts = [model(part, cache) for part in ids.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)


def test_positions_do_not_alias_in_low_precision(model_config: ModelConfig) -> None:
    # In bfloat16, 256 and 257 are the same number; the table must not follow the weights' type.
    model = Transformer(model_config, VOCAB).to(torch.bfloat16)
    cos, sin = rotation_table(0, 4097, model.config, torch.device("cpu"))
    half = torch.arange(0, model_config.head_dim, 2, dtype=torch.float64)
    frequency = model_config.rope_theta ** -(half / model_config.head_dim)
    angle = torch.outer(torch.arange(4097, dtype=torch.float64), frequency).repeat(1, 2)
    assert (cos - angle.cos()).abs().max() < 2e-4
    assert (sin - angle.sin()).abs().max() < 2e-4
    assert not torch.equal(cos[256], cos[257])


def test_the_embedding_is_tied_and_counted_once(model_config: ModelConfig) -> None:
    model = Transformer(model_config, VOCAB)
    assert sum(p.numel() for p in model.parameters()) == model_config.n_parameters(VOCAB)
    assert not any("lm_head" in name for name in model.state_dict())


def test_the_same_seed_gives_the_same_weights(model_config: ModelConfig) -> None:
    first, second = (Transformer(model_config, VOCAB).initialise(torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_with_documents_a_token_sees_only_its_own(model_config: ModelConfig) -> None:
    torch.manual_seed(0)
    model = Transformer(model_config, 50).initialise(torch.Generator().manual_seed(1))
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])
    ids = torch.randint(0, 50, (1, 12))
    other = ids.clone()
    other[0, :5] = torch.randint(0, 50, (5,))
    with torch.no_grad():
        before, after = (model.logits(model(x, documents=documents)) for x in (ids, other))
        alone = model.logits(model(ids[:, 5:9]))
        mixed = model.logits(model(other)) - model.logits(model(ids))
    assert torch.equal(before[:, 5:], after[:, 5:]), "not one bit of document 2 knows of document 1"
    torch.testing.assert_close(before[:, 5:9], alone, rtol=1e-4, atol=1e-5)  # only how far apart tokens are counts
    assert mixed[:, 5:].abs().max() > 1e-4, "without it they do know"


def test_one_document_is_plain_causal_attention(model_config: ModelConfig) -> None:
    model = Transformer(model_config, 50).initialise(torch.Generator().manual_seed(1))
    ids = torch.randint(0, 50, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(model(ids, documents=torch.zeros_like(ids)), model(ids), rtol=1e-5, atol=1e-6)
