"""The Triton scan against a loop in float64, on a CUDA device or interpreted; all kernels compile for other GPUs."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from tests import python, slow
from tests.ops.test_ops import scan_loop
from tests.tolerances import assert_close

pytest.importorskip("triton")

from zoo.ops import scan_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _inputs(
    batch: int, seq_len: int, d_inner: int, d_state: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """x, dt, A, B, C and a state; steps between 1e-3 and 1, rates between -8 and 0."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    dt = 1e-3 * 1e3 ** torch.rand(batch, seq_len, d_inner, generator=generator)
    A = -8 * torch.rand(d_inner, d_state, generator=generator)
    B, C = (draw(batch, seq_len, d_state).to(dtype) for _ in range(2))
    return [draw(batch, seq_len, d_inner).to(dtype), dt.to(dtype), A, B, C, draw(batch, d_inner, d_state)]


def _check(inputs: list[Tensor], generator: torch.Generator) -> None:
    """Assert that outputs and input gradients are those of the loop in float64, and have the inputs' dtypes."""
    wide = [t.double().requires_grad_() for t in inputs]
    outputs = scan_loop(*wide[:5], None, wide[5])
    seeds = [torch.randn(t.shape, generator=generator) for t in outputs]
    seeds[0] = seeds[0].to(inputs[0].dtype)
    gradients = torch.autograd.grad(outputs, wide, [t.double() for t in seeds])
    x, dt, A, B, C, state = (t.to(DEVICE) for t in inputs)
    y, final, entering = scan_triton.scan(x, dt, A, B, C, state)
    found = scan_triton.scan_backward(*(t.to(DEVICE) for t in seeds), x, dt, A, B, C, entering)
    expected_types = [inputs[0].dtype, torch.float32, *(t.dtype for t in inputs)]
    assert [t.dtype for t in (y, final, *found)] == expected_types
    for actual, expected in zip((y, final, *found), (*outputs, *gradients), strict=True):
        assert_close(actual.cpu(), expected.detach())


@pytest.mark.parametrize(
    "shape",
    [
        *((0, 9, 3, 4), (2, 1, 3, 4), (1, 19, 33, 5), (1, 9, 2, 17), (2, 7, 5, 3), (1, 63, 3, 2), (1, 16, 32, 16)),
        slow((1, 1000, 3, 4)),
    ],
    ids=str,
)
def test_any_shape_equals_the_loop(shape: tuple[int, ...], generator: torch.Generator) -> None:
    _check(_inputs(*shape, generator), generator)


@pytest.mark.parametrize("shape", [(2, 17, 3, 4), slow((1, 63, 33, 5)), slow((1, 64, 32, 16))], ids=str)
def test_time_in_segments_equals_the_loop(
    shape: tuple[int, ...], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_triton, "SEGMENT", 1)
    _check(_inputs(*shape, generator), generator)


@pytest.mark.slow
def test_bfloat16_inputs_have_a_float32_state(generator: torch.Generator) -> None:
    _check(_inputs(2, 18, 33, 5, generator, torch.bfloat16), generator)


def test_no_step_and_a_huge_one_are_exact(generator: torch.Generator) -> None:
    """exp(0) keeps the state and exp(-3200) clears it; the kernel divides by neither, so nothing is NaN."""
    inputs = _inputs(1, 9, 4, 2, generator)
    inputs[1][:, ::3] = 0
    inputs[1][:, 1::3] = 100
    inputs[2] -= 32
    _check(inputs, generator)


def test_strided_views_are_read_correctly(generator: torch.Generator) -> None:
    inputs = _inputs(2, 5, 3, 4, generator)
    views = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in inputs]
    assert not any(t.is_contiguous() for t in views)
    _check(views, generator)


@pytest.mark.gpu
def test_results_are_deterministic(generator: torch.Generator) -> None:
    x, dt, A, B, C, state = (t.cuda() for t in _inputs(4, 300, 200, 16, generator))
    runs = []
    for _ in range(2):
        y, final, entering = scan_triton.scan(x, dt, A, B, C, state)
        runs.append((y, final, *scan_triton.scan_backward(y, final, x, dt, A, B, C, entering)))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zoo.ops import carry_triton, conv_triton, decays_triton, delta_triton, ridge_triton
from zoo.ops import scan_triton, slstm_triton, ssd_triton

def compile_kernel(kernel, values, constants, **options):
    types = {name: "i32" for name in kernel.arg_names} | {name: "constexpr" for name in constants}
    of_values = {f"{name}_ptr" for name in ("x", "dt", "y", "grad_x", "grad_dt", "grad_y", "keys", "sought")}
    of_values |= {f"{name}_ptr" for name in ("q", "k", "v", "kept", "arriving", "grad_q", "grad_k", "grad_v")}
    of_values |= {f"{name}_ptr" for name in ("r", "w", "inverse", "within", "erased", "a", "a2", "b", "b2")}
    types |= {name: f"*{values if name in of_values else 'fp32'}" for name in kernel.arg_names if name.endswith("_ptr")}
    types |= {"moves_ptr": "*u8"} if "moves_ptr" in types else {}
    types |= {"total_ptr": "*fp64"} if "total_ptr" in types else {}
    source = ASTSource(kernel, signature=types, constexprs=constants)
    options = dict(enable_fp_fusion=True, **options)
    compiled = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options)
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]

sizes = dict(d_inner=96, d_state=16, FULL=False)
forward, backward = scan_triton.forward_tile(16), scan_triton.backward_tile(16)
for kernel, tile, steps in (
    (scan_triton._forward, forward, dict(STEPS=scan_triton.STEPS, CHUNK=scan_triton.CHUNK)),
    (scan_triton._backward, backward, dict(STEPS=scan_triton.STEPS_BACKWARD, PARTS=2)),
    (scan_triton._segment_finals, forward, dict(STEPS=scan_triton.STEPS, BACKWARDS=False)),
    (scan_triton._segment_finals, backward, dict(STEPS=scan_triton.STEPS_BACKWARD, BACKWARDS=True)),
):
    constants = dict(sizes, STATES=tile.states, CHANNELS=tile.channels, **steps)
    ptx = compile_kernel(kernel, "bf16", constants, num_warps=tile.warps)
    assert "ex2.approx" in ptx
    assert "div." not in ptx.replace("div.s32", "").replace("div.u32", "")  # floats by floats
for backwards in (False, True):
    compile_kernel(carry_triton._decayed, "fp32", dict(BACKWARDS=backwards, COMPLEX=backwards, NUMBERS=256))
    tile = dict(SIZE=64 if backwards else 32, KEYS=carry_triton.KEYS, VALUES=carry_triton.VALUES)
    precision = "tf32" if backwards else "ieee"
    constants = dict(tile, BACKWARDS=backwards, ADDED=backwards, ACROSS=backwards, PRECISION=precision)
    assert ("tf32" in compile_kernel(carry_triton._erased, "fp32", constants)) == backwards
    assert "bf16" in compile_kernel(carry_triton._erased, "bf16", constants)
for kernel, more in ((conv_triton._forward, dict(BIAS=True)), (conv_triton._backward, {})):
    constants = dict(more, PAST=3, TIME=conv_triton.TIME, CHANNELS=conv_triton.CHANNELS)
    compile_kernel(kernel, "bf16", constants)
constants = dict(SIZE=64, KEYS=64, VALUES=64)
for kernel, more in (
    (ssd_triton._outputs, {}),
    (ssd_triton._of_queries, dict(STRICT=False)),
    (ssd_triton._of_keys, dict(STRICT=False)),
    (ssd_triton._of_keys, dict(STRICT=True)),
    (ssd_triton._of_values, dict(WITHIN=False)),
    (ssd_triton._states, dict(BACKWARDS=True)),
    (delta_triton._inverses, {}),
):
    assert ("tf32" in compile_kernel(kernel, "bf16", constants | more)) == (kernel is delta_triton._inverses)
for kernel in (delta_triton._states, delta_triton._states_back):
    assert "tf32" not in compile_kernel(kernel, "bf16", dict(constants, KEYS=128), num_stages=delta_triton.STAGES)
for kernel in (decays_triton._forward, decays_triton._backward):
    compile_kernel(kernel, "bf16", dict(READS=2, WRITES=2, SIZE=32, CHANNELS=decays_triton.CHANNELS))
for kernel in (ridge_triton._forward, ridge_triton._backward):
    assert "tf32" not in compile_kernel(kernel, "fp32", dict(EPS=1e-7, TINY=1e-38, ROWS=32, BLOCK=ridge_triton.BLOCK))
for kernel in (slstm_triton._forward, slstm_triton._backward):
    tile = dict(d_head=96, RAGGED=True, PRECISION="tf32", ROWS=slstm_triton.ROWS, BLOCK=slstm_triton.BLOCK)
    compile_kernel(kernel, "fp32", tile, num_warps=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernels_compile_for_absent_gpus(capability: int) -> None:
    """The interpreter accepts much that the compiler rejects. Compiling needs no device, but a separate process."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    python("-c", COMPILE, str(capability), env=environment)
