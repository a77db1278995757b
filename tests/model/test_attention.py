from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from enlace.model import attention
from enlace.model.attention import attend

B, H, T, C = 2, 6, 24, 8


def _heads(n_kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, H, T, C), (B, n_kv_heads, T, C), (B, n_kv_heads, T, C))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def _documents() -> Tensor:
    """Two documents in each row, cut at another place: [B, 1, T, T]."""
    number = torch.stack([torch.arange(T) >= 7, torch.arange(T) >= 16])
    return (number.unsqueeze(2) == number.unsqueeze(1)).tril().unsqueeze(1)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("visible", [None, _documents()], ids=["causal", "documents"])
def test_plain_products_are_attention_and_so_is_their_gradient(n_kv_heads: int, visible: Tensor | None) -> None:
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        heads = [x.to(dtype).requires_grad_() for x in _heads(n_kv_heads, torch.bfloat16)]
        y = attend(*heads, visible)
        y.float().square().sum().backward()
        found.append([y.float(), *(x.grad.float() for x in heads if x.grad is not None)])
    for products, kernel in zip(*found, strict=True):
        torch.testing.assert_close(products, kernel, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("dtype", "longest", "by_products"),
    [(torch.bfloat16, T, True), (torch.bfloat16, T - 1, False), (torch.float32, T, False), (torch.float16, T, False)],
)
def test_plain_products_are_for_short_rows_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, longest: int, by_products: bool
) -> None:
    kernel, calls = F.scaled_dot_product_attention, []

    def watched(*args: Tensor, **options: object) -> Tensor:
        calls.append(options)
        return kernel(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(attention, "LONGEST_BY_PRODUCTS", longest)
    attend(*_heads(2, dtype), None)
    assert not calls if by_products else len(calls) == 1


def test_a_token_alone_reads_all_that_came_before() -> None:
    q, k, v = _heads(2, torch.bfloat16)
    last = attend(q[:, :, -1:], k, v, None)
    torch.testing.assert_close(last, attend(q, k, v, None)[:, :, -1:], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_torchs_kernels_get_a_key_head_for_every_query_head(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """With fewer there is no memory-efficient kernel, and torch takes the quadratic one (pytorch/pytorch#181528)."""
    kernel, calls = F.scaled_dot_product_attention, []

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        calls.append((q.shape[1], k.shape[1], v.shape[1], options.get("enable_gqa", False)))
        return kernel(q, k, v, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    attend(*_heads(2, dtype), None)
    assert calls == [(H, H, H, False)]
