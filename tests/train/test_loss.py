from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from enlace.train import loss as loss_module
from enlace.train.loss import loss_sums, loss_sums_in_chunks


def test_equals_torchs_cross_entropy_over_the_trained_tokens() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11, requires_grad=True)
    targets = torch.randint(0, 11, (2, 5))
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
    sums = loss_sums(logits, targets, mask)
    expected = F.cross_entropy(logits[mask], targets[mask], reduction="sum")
    torch.testing.assert_close(sums.cross_entropy, expected)
    torch.testing.assert_close(sums.z_squared, logits[mask].logsumexp(-1).square().sum())
    sums.total(1e-3).backward()
    assert logits.grad is not None
    assert logits.grad[~mask].abs().max() == 0, "a token that is not trained has no gradient"


@pytest.mark.parametrize("cached", [1, 30, 2**20])  # logits at a time: one row of 13, two, all 12
def test_the_gradient_by_hand_is_that_of_autograd(monkeypatch: pytest.MonkeyPatch, cached: int) -> None:
    monkeypatch.setattr(loss_module, "CACHED_LOGITS", cached)
    torch.manual_seed(1)
    logits = torch.randn(2, 6, 13, dtype=torch.float32, requires_grad=True)
    targets, mask = torch.randint(0, 13, (2, 6)), torch.rand(2, 6) > 0.3
    total = loss_sums(logits, targets, mask).total(0.1)
    (total * 3).backward()
    plain = logits.detach().clone().requires_grad_()
    log_z = plain.logsumexp(-1)
    loss = log_z - plain.gather(-1, targets.unsqueeze(-1)).squeeze(-1) + 0.1 * log_z.square()
    ((loss * mask).sum() * 3).backward()
    torch.testing.assert_close(total, (loss * mask).sum())
    torch.testing.assert_close(logits.grad, plain.grad)


def test_z_loss_pulls_log_z_to_zero() -> None:
    logits = torch.full((1, 1, 4), 10.0, requires_grad=True)
    loss_sums(logits, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1)).z_squared.backward()
    assert logits.grad is not None and (logits.grad > 0).all()


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(1, 8, 50)
    targets = torch.randint(0, 50, (1, 8))
    sums = loss_sums(logits.to(torch.bfloat16), targets, torch.ones(1, 8))
    assert sums.cross_entropy.dtype == torch.float32
    exact = loss_sums(logits.to(torch.bfloat16).float(), targets, torch.ones(1, 8))
    assert torch.equal(sums.cross_entropy, exact.cross_entropy)


def test_one_token_among_many_weighs_as_one() -> None:
    # Losses 1, 1 and 3 six times, in two micro-batches: the mean over tokens is 2.5; a mean of means gives 2.0.
    def logits_of(losses: list[float]) -> torch.Tensor:
        # Two classes; logit 0 for the target, x for the other: the loss is log(1 + e^x).
        other = torch.tensor(losses, dtype=torch.float64).expm1().log()
        return torch.stack([torch.zeros_like(other), other], dim=-1).float()[None]

    parts = [logits_of([1.0] * 2), logits_of([3.0] * 6)]
    sums = [loss_sums(p, torch.zeros(p.shape[:2], dtype=torch.long), torch.ones(p.shape[:2])) for p in parts]
    total = sum(float(s.cross_entropy) for s in sums)
    assert abs(total / 8 - 2.5) < 1e-5


@pytest.mark.parametrize("chunk", [1, 5, 8, 1000])
def test_in_chunks_it_is_the_same_and_so_is_its_gradient(chunk: int) -> None:
    torch.manual_seed(2)
    targets, mask = torch.randint(0, 13, (2, 6)), torch.rand(2, 6) > 0.3
    gradients = []
    for chunked in (False, True):
        torch.manual_seed(3)
        hidden, head = torch.randn(2, 6, 4, requires_grad=True), torch.nn.Linear(4, 13, bias=False)
        if chunked:
            sums = loss_sums_in_chunks(head, hidden, targets, mask, chunk)
        else:
            sums = loss_sums(head(hidden), targets, mask)
        sums.total(0.1).backward()
        assert hidden.grad is not None and head.weight.grad is not None
        gradients.append((sums.cross_entropy.detach(), sums.z_squared.detach(), hidden.grad, head.weight.grad))
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-6)


def test_in_chunks_the_logits_are_never_all_in_memory() -> None:
    seen: list[int] = []

    def logits_of(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden))
        return hidden @ torch.ones(4, 13)

    hidden = torch.randn(3, 7, 4, requires_grad=True)
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        sums = loss_sums_in_chunks(logits_of, hidden, torch.zeros(3, 7, dtype=torch.long), torch.ones(3, 7), 4)
    assert seen == [4, 4, 4, 4, 4, 1]
    assert max(kept, default=0) < 3 * 7 * 13, "what is kept for the backward pass is not the logits"
    sums.cross_entropy.backward()
    assert sorted(seen) == sorted([4, 4, 4, 4, 4, 1] * 2), "computed again, once"
