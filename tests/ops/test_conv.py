"""The short convolution by numba, and by Triton on a CUDA device or interpreted, against the taps in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.cases import draw
from tests.ops.as_python import run_as_python
from tests.tolerances import assert_close
from zoo.ops import conv_numba, transforms
from zoo.ops.conv import causal_conv
from zoo.threads import threads

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=["loop", "python", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """A function that chooses the code under test for later calls and returns its device.

    As Python, the loop has blocks of two channels and sums of two positions, so that an index beyond an array is seen.
    """
    if request.param == "kernel":
        pytest.importorskip("triton")

    def choose() -> str:
        if request.param == "kernel":
            monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
            return DEVICE
        if request.param == "python":
            run_as_python(monkeypatch, conv_numba, _BLOCK=2, _STEPS=2)
        return "cpu"

    return choose


@pytest.mark.parametrize(
    ("batch", "seq_len", "channels", "width"), [(2, 1, 3, 4), (1, 2, 1, 4), (1, 7, 5, 1), (2, 63, 70, 4)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_values_first_and_second_derivatives_are_those_of_the_taps(
    path: Callable[[], str],
    batch: int,
    seq_len: int,
    channels: int,
    width: int,
    bias: bool,
    generator: torch.Generator,
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
    for mine, right in zip(results(torch.float32, path()), expected, strict=True):
        assert (mine.cpu() - right).norm() <= 1e-6 * right.norm()


def test_gradients_of_the_loop_do_not_depend_on_the_number_of_threads(
    two_threads: None, generator: torch.Generator
) -> None:
    x, weight, tail = (draw(*shape, generator=generator).float() for shape in ((5, 70, 300), (300, 4), (5, 3, 300)))

    def gradients() -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (x, weight, tail)]
        return torch.autograd.grad(causal_conv(leaves[0], leaves[1], None, leaves[2])[0].square().sum(), leaves)

    shared = gradients()
    with threads(1):
        assert all(map(torch.equal, shared, gradients()))


def test_inputs_in_bfloat16_give_bfloat16(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = draw(1, 9, 3, generator=generator).bfloat16(), draw(3, 4, generator=generator).float()
    pytest.importorskip("triton")
    tail = torch.zeros(1, 3, 3, dtype=x.dtype)
    expected, _ = causal_conv(x.double(), weight.double(), None, tail.double())
    on_cpu, _ = causal_conv(x, weight, None, tail)
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
    x = x.to(DEVICE).requires_grad_()
    y, after = causal_conv(x, weight.to(DEVICE), None, tail.to(DEVICE))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert {on_cpu.dtype, y.dtype, after.dtype, slope.dtype} == {torch.bfloat16}
    assert_close(y.cpu(), expected)
