from __future__ import annotations

import torch
import torch.nn.functional as F

from enlace.train.loss import loss_sums


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


def test_the_gradient_by_hand_is_that_of_autograd() -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, 6, 13, dtype=torch.float32, requires_grad=True)
    targets, mask = torch.randint(0, 13, (2, 6)), torch.rand(2, 6) > 0.3
    (loss_sums(logits, targets, mask).total(0.1) * 3).backward()
    plain = logits.detach().clone().requires_grad_()
    log_z = plain.logsumexp(-1)
    loss = log_z - plain.gather(-1, targets.unsqueeze(-1)).squeeze(-1) + 0.1 * log_z.square()
    ((loss * mask).sum() * 3).backward()
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
