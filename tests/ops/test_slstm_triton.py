"""sLSTM's Triton kernels against the loop in float64: on a CUDA device, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from tests import python
from tests.ops.test_slstm import cotangents, draw, results
from tests.tolerances import assert_close

pytest.importorskip("triton")

from zoo.ops import transforms
from zoo.ops.slstm import slstm_scan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("shape", "scale", "ragged"),
    [
        ((1, 1, 1, 4), 2.0, False),
        ((2, 2, 2, 3), 2.0, True),
        ((17, 1, 7, 5), 2.0, True),  # more rows than a program has
        ((1, 1, 5, 4), 1000.0, False),  # gates far beyond what float32 can exponentiate
        ((1, 2, 4, 70), 2.0, False),  # more channels than are computed at once
        pytest.param((1, 1, 1000, 4), 2.0, True, marks=pytest.mark.slow),
        pytest.param((2, 2, 63, 130), 2.0, True, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_any_shape_gives_the_numbers_of_the_loop(
    shape: tuple[int, int, int, int],
    scale: float,
    ragged: bool,
    monkeypatch: pytest.MonkeyPatch,
    generator: torch.Generator,
) -> None:
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
    given = draw(generator, *shape, scale=scale)
    batch, seq_len = shape[0], shape[2]
    valid = torch.arange(seq_len) < torch.randint(seq_len + 1, (batch, 1), generator=generator) if ragged else None
    weights = cotangents(generator, given)
    expected = results([t.detach().double().requires_grad_() for t in given], valid, weights)
    # Views are read as they are.
    mine = [t.detach().to(DEVICE).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for t in given]
    found = results(mine, None if valid is None else valid.to(DEVICE), [t.to(DEVICE) for t in weights])
    for actual, right in zip(found, expected, strict=True):
        assert_close(actual.cpu(), right)


def test_gradients_of_the_kernel_can_be_differentiated_again(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    def second(given: list[Tensor]) -> Tensor:
        u, recurrent, *state = given
        y, _ = slstm_scan(u, recurrent, tuple(state))
        (slope,) = torch.autograd.grad(y.square().sum(), u, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), recurrent)[0]

    given = draw(generator, 2, 1, 3, 4)
    expected = second([t.detach().double().requires_grad_() for t in given])
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
    assert_close(second([t.detach().to(DEVICE).requires_grad_() for t in given]).cpu(), expected)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zoo.ops import slstm_triton as ours

for capability in (80, 90, 100):
    for kernel in (ours._forward, ours._backward):
        constants = dict(d_head=96, RAGGED=True, PRECISION="tf32", ROWS=ours.ROWS, BLOCK=ours.BLOCK)
        types = {name: "constexpr" for name in constants} | {"moves_ptr": "*u8"}
        types |= {name: "i32" for name in ("batch", "heads", "seq_len")}
        signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
        source = ASTSource(kernel, signature=signature, constexprs=constants)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(num_warps=4))
        assert made.asm["cubin"]
"""


@pytest.mark.slow
def test_the_kernels_compile_for_gpus_that_are_not_here() -> None:
    python("-c", COMPILE, env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"})
