"""The Triton short convolution against the CPU's in float64, on a CUDA device or interpreted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.cases import draw
from tests.tolerances import assert_close
from zoo.ops import transforms
from zoo.ops.conv import causal_conv

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("batch", "seq_len", "channels", "width"), [(2, 1, 3, 4), (1, 2, 1, 4), (1, 7, 5, 1), (2, 63, 70, 4)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_values_first_and_second_derivatives_are_those_of_the_cpu(
    batch: int,
    seq_len: int,
    channels: int,
    width: int,
    bias: bool,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each tensor is a view of a wider one, like a slice of a mixer's projection."""
    shapes = [(batch, seq_len, channels), (channels, width), (batch, width - 1, channels), *[(channels,)] * bias]
    given = [draw(*shape[:-1], shape[-1] + 2, generator=generator) for shape in shapes]
    seeds = [draw(batch, seq_len, channels, generator=generator), draw(*shapes[2], generator=generator)]

    def results(dtype: torch.dtype, device: str) -> list[Tensor]:
        leaves = [t.to(device, dtype)[..., 1:-1].requires_grad_() for t in given]
        x, weight, tail, *rest = leaves
        outputs = causal_conv(x, weight, rest[0] if rest else None, tail)
        slopes = torch.autograd.grad(outputs, leaves, [t.to(outputs[0]) for t in seeds], retain_graph=True)
        (again,) = torch.autograd.grad(outputs[0].square().sum(), x, create_graph=True)
        return [*outputs, *slopes, *torch.autograd.grad(again.square().sum(), leaves[:3])]

    expected = results(torch.float64, "cpu")
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
    for mine, right in zip(results(torch.float32, DEVICE), expected, strict=True):
        assert (mine.cpu() - right).norm() <= 1e-6 * right.norm()


def test_inputs_in_bfloat16_give_bfloat16(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = draw(1, 9, 3, generator=generator).bfloat16(), draw(3, 4, generator=generator).float()
    tail = torch.zeros(1, 3, 3, dtype=x.dtype)
    expected, _ = causal_conv(x.double(), weight.double(), None, tail.double())
    on_cpu, _ = causal_conv(x, weight, None, tail)
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
    x = x.to(DEVICE).requires_grad_()
    y, after = causal_conv(x, weight.to(DEVICE), None, tail.to(DEVICE))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert {on_cpu.dtype, y.dtype, after.dtype, slope.dtype} == {torch.bfloat16}
    assert_close(y.cpu(), expected)
