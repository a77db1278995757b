"""The model: a Llama-style decoder in exactly the Qwen3 layout.

RMSNorm before each block, SwiGLU, rotary positions (half-split), grouped-query attention, RMSNorm on every query and
key head before the rotation (QK-norm), no biases, the embedding tied to the output. Module names are those of Hugging
Face's `Qwen3Model`, so the weights load in transformers, llama.cpp and vLLM by adding the prefix ``model.``.

Shapes in comments: B sequences, T tokens, D d_model, H query heads, K key/value heads, C head width, V vocabulary.

Sources: Qwen3 (arXiv 2505.09388), RoPE (2104.09864), SwiGLU (2002.05202), GQA (2305.13245), RMSNorm (1910.07467).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from enlace.config.schema import ModelConfig
from enlace.model.attention import attend
from enlace.model.norm import RMSNorm

INIT_STD = 0.02


def head_dim(config: ModelConfig) -> int:
    """Width of one attention head."""
    return config.d_model // config.n_heads


class KVCache:
    """Keys and values of the tokens already read, one pair of [B, K, max_len, C] tensors per layer."""

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self.layers: list[tuple[Tensor, Tensor]] = []
        self.length = 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [B, K, T, C] of one layer after what is there; gives all of them [B, K, length + T, C]."""
        if layer == len(self.layers):  # the first tokens: room for all, in the type that the profile computes in
            shape = (*k.shape[:2], self.max_len, k.shape[3])
            self.layers.append((k.new_zeros(shape), v.new_zeros(shape)))
        keys, values = self.layers[layer]
        end = self.length + k.shape[2]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return keys[:, :, :end], values[:, :, :end]


class Attention(nn.Module):
    """Causal grouped-query attention with QK-norm."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.n_heads, self.n_kv_heads, self.head_dim = config.n_heads, config.n_kv_heads, head_dim(config)
        self.q_proj = nn.Linear(config.d_model, self.n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.d_model, self.n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.d_model, self.n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.n_heads * self.head_dim, config.d_model, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor | None, cache: KVCache | None) -> Tensor:
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, self.n_heads, self.head_dim)).transpose(1, 2)  # B H T C
        k = self.k_norm(self.k_proj(x).view(B, T, self.n_kv_heads, self.head_dim)).transpose(1, 2)  # B K T C
        v = self.v_proj(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)  # B K T C
        q, k = rotate(q, cos, sin), rotate(k, cos, sin).to(v.dtype)
        q = q.to(v.dtype)
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        y = attend(q, k, v, visible)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.d_model, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.d_model, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention and MLP, each on the normalised residual and added back to it."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor | None, cache: KVCache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, visible, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """The decoder: token ids in, final hidden states out; `logits` turns those into scores over the vocabulary."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.rms_norm_eps)

    def initialise(self, generator: torch.Generator) -> Transformer:
        """Draw all weights from `generator` (on the CPU, so that every device starts from the same bits).

        Normal with deviation 0.02; what writes into the residual stream is divided by sqrt(2 n_layers), so that the
        stream does not grow with depth (GPT-2).
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                std = INIT_STD
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * self.config.n_layers)
                values = torch.empty(parameter.shape).normal_(0, std, generator=generator)
                with torch.no_grad():
                    parameter.copy_(values)
        return self

    def forward(self, ids: Tensor, cache: KVCache | None = None, documents: Tensor | None = None) -> Tensor:
        """Hidden states [B, T, D] for ids [B, T].

        With a cache, ids are the whole beginning when it is empty, and the one next token afterwards. With
        `documents` [B, T], the number of the document of each token, no token sees another document than its own.
        """
        assert cache is None or cache.length == 0 or ids.shape[1] == 1
        start = cache.length if cache else 0
        cos, sin = rotation_table(start, ids.shape[1], self.config, ids.device)
        visible = None if documents is None else visible_tokens(documents)
        x = self.embed_tokens(ids)
        for block in self.layers:
            x = block(x, cos, sin, visible, cache)
        if cache:
            cache.length += ids.shape[1]
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [..., V] of hidden states [..., D], by the tied embedding."""
        return F.linear(hidden, self.embed_tokens.weight)


def visible_tokens(documents: Tensor) -> Tensor:
    """Whether query t sees key s, [B, 1, T, T] bool, for documents [B, T]: not later, and of the same document.

    Positions need not begin anew: rotary attention depends on how far apart two tokens are, not on where they stand.
    """
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return same.tril().unsqueeze(1)


def rotation_table(start: int, length: int, config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [T, C] of positions start … start + length - 1, float32.

    Made anew at each call, which costs nothing beside a layer, so that no buffer can be cast to bfloat16, where
    positions above 256 fall on each other.
    """
    half = torch.arange(0, head_dim(config), 2, device=device, dtype=torch.float32)
    inverse_frequency = config.rope_theta ** -(half / head_dim(config))
    position = torch.arange(start, start + length, device=device, dtype=torch.float32)
    angle = torch.outer(position, inverse_frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on x [..., T, C], pairing dimension i with i + C/2 (half-split, as Qwen3 and Llama in HF)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
