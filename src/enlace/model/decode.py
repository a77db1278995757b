"""One token at a time, for one sequence or several: the step that generation spends its life in.

The same function as `Transformer`, arranged for single tokens, where the time goes into reading the weights and into
starting small operations: products that share their input are one (query, key and value; gate and up), the weights are
converted once to the type that is computed in, and on a CPU they are packed for oneDNN, whose product of a matrix and
a vector reads 1.7 times as much per second as the one behind `F.linear` and, unlike it, uses every core
(`python -m benchmarks.generate`). The price is a second copy of the weights while the model talks.

Shapes in comments as in `transformer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from enlace.model.transformer import KVCache, Transformer, rotate, rotation_table

_Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Layer:
    """What one layer needs for a token."""

    input_norm: Tensor
    qkv: _Product
    qk_gain: Tensor  # H + K, C
    output: _Product
    mlp_norm: Tensor
    gate_up: _Product
    down: _Product


class Decoder:
    """The weights of a model as they are when this is made; `decoder_of` makes a new one when they change."""

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        """Of `model`, with matrix products in `dtype`; norms, rotations and the residual stay in float32."""
        self.config = config = model.config
        heads, kv_heads, width = config.n_heads, config.n_kv_heads, config.head_dim
        self._embedding = model.embed_tokens.weight.detach()
        self._norm = model.norm.weight.detach()
        self._logits = _product(self._embedding, dtype)
        self._layers = []
        block: Any  # nn.ModuleList gives plain modules
        for block in model.layers:
            attention, mlp = block.self_attn, block.mlp
            gains = (attention.q_norm.weight.expand(heads, width), attention.k_norm.weight.expand(kv_heads, width))
            self._layers.append(
                _Layer(
                    input_norm=block.input_layernorm.weight.detach(),
                    qkv=_product(_stack(attention.q_proj, attention.k_proj, attention.v_proj), dtype),
                    qk_gain=torch.cat(gains).detach(),
                    output=_product(attention.o_proj.weight.detach(), dtype),
                    mlp_norm=block.post_attention_layernorm.weight.detach(),
                    gate_up=_product(_stack(mlp.gate_proj, mlp.up_proj), dtype),
                    down=_product(mlp.down_proj.weight.detach(), dtype),
                )
            )
        self._cos, self._sin = rotation_table(0, 1, config, self._embedding.device)

    @torch.inference_mode()
    def step(self, tokens: Tensor, cache: KVCache, positions: Sequence[int]) -> Tensor:
        """Scores [B, V] of what follows `tokens` [B].

        Args:
            cache: keys and values before these; those of `tokens` are added.
            positions: where each token stands in its sequence, which is how many came before it. In a row that is
                shorter than others, what the cache holds from there on is padding, and is neither read nor kept.
        """
        heads, kv_heads, width = self.config.n_heads, self.config.n_kv_heads, self.config.head_dim
        B, end, eps = len(positions), max(positions) + 1, self.config.rms_norm_eps
        level = min(positions) + 1 == end
        where = torch.tensor(positions, device=tokens.device)
        rows = torch.arange(B, device=tokens.device)
        seen = None if level else (torch.arange(end, device=tokens.device) <= where[:, None])[:, None, None]  # B 1 1 L
        cos, sin = (table[where][:, None] for table in self._rotation(end))  # B 1 C
        with torch.autocast(tokens.device.type, enabled=False):
            x = self._embedding[tokens].float()  # B D
            for layer, (keys, values) in zip(self._layers, cache.layers):
                qkv = layer.qkv(_rms_norm(x, eps, layer.input_norm)).view(B, heads + 2 * kv_heads, width)
                qk = rotate(_rms_norm(qkv[:, : heads + kv_heads].float(), eps) * layer.qk_gain, cos, sin)
                if level:
                    keys[:, :, end - 1], values[:, :, end - 1] = qk[:, heads:], qkv[:, heads + kv_heads :]
                else:
                    keys[rows, :, where] = qk[:, heads:].to(keys.dtype)
                    values[rows, :, where] = qkv[:, heads + kv_heads :].to(values.dtype)
                # The queries that share a key head stand where a sequence of queries would: no key is repeated.
                q = qk[:, :heads].to(keys.dtype).view(B, kv_heads, heads // kv_heads, width)
                y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], attn_mask=seen)
                x = x + layer.output(y.reshape(B, heads * width))
                gate, up = layer.gate_up(_rms_norm(x, eps, layer.mlp_norm)).chunk(2, dim=-1)
                x = x + layer.down(F.silu(gate) * up)
            cache.length = end
            return self._logits(_rms_norm(x, eps, self._norm))

    def _rotation(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin of at least the first `length` positions."""
        if length > len(self._cos):
            self._cos, self._sin = rotation_table(0, 2 * length, self.config, self._cos.device)
        return self._cos, self._sin


def _rms_norm(x: Tensor, eps: float, gain: Tensor | None = None) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], gain, eps)


def _stack(*projections: Any) -> Tensor:
    return torch.cat([projection.weight for projection in projections]).detach()


def _product(weight: Tensor, dtype: torch.dtype) -> _Product:
    """The function x [B, in] -> x weight^T [B, out], in `dtype`."""
    weight = weight.to(dtype)
    if weight.device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return lambda x: F.linear(x.to(dtype), weight)


_decoders: WeakKeyDictionary[Transformer, tuple[object, Decoder]] = WeakKeyDictionary()


def decoder_of(model: Transformer) -> Decoder:
    """The decoder of `model`, made once for as long as its weights and the type it computes in stay the same.

    The type is that of autocast where the caller has it on, else that of the weights.
    """
    weight = model.embed_tokens.weight
    device = weight.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    state = (dtype, [(parameter.data_ptr(), parameter._version) for parameter in model.parameters()])
    held = _decoders.get(model)
    if held is None or held[0] != state:
        held = _decoders[model] = (state, Decoder(model, dtype))
    return held[1]
