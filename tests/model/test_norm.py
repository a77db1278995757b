import pytest
import torch
import torch.nn.functional as F

from enlace.model.norm import RMSNorm


@pytest.mark.parametrize("shape", [(2, 5, 32), (2, 5, 3, 16), (1, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(shape[-1], 1e-6)
    with torch.no_grad():
        norm.weight.normal_(1, 0.3, generator=generator)
    x = torch.randn(shape, generator=generator).mul_(7).to(dtype).requires_grad_()
    gradient = torch.randn(shape, generator=generator)
    ours = norm(x)
    torchs = F.rms_norm(x.float(), norm.weight.shape, norm.weight, norm.eps)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, torchs)
    with torch.autocast("cpu", torch.bfloat16):  # in force or not, nothing of it is done in bfloat16
        got = torch.autograd.grad(ours, (x, norm.weight), gradient)
    torch.testing.assert_close(got, torch.autograd.grad(torchs, (x, norm.weight), gradient))


def test_a_row_of_zeros_stays_and_its_gradient_is_finite() -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    y = RMSNorm(4, 1e-6)(x)
    y.sum().backward()
    assert x.grad is not None
    assert not y.any() and torch.isfinite(x.grad).all()
