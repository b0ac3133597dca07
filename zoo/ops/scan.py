"""The selective scan of Mamba (Gu and Dao 2312.00752, Algorithm 2), with hand-written backward passes.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t        h (d_inner, d_state)
    y_t = h_t C_t

Three backends compute the same results, one file each: `scan_torch` (everywhere, the only one in float64), `scan_numba`
(CPU) and `scan_triton` (CUDA). All keep one state per chunk, recompute the others in the backward pass, and never
divide by a decay. Each defines `chunk_length`, `scan` and `scan_backward`, which the custom ops here call, and is
imported on first use.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.cores import core
from zoo.errors import unknown
from zoo.extras import how_to_install
from zoo.ops import scan_torch
from zoo.ops.precision import as_type, full_precision
from zoo.ops.ranks import spread
from zoo.ops.transforms import followed, transformable, whole_in_export

BACKENDS = ("torch", "numba", "triton")
_INSTALLED = {"numba": find_spec("numba") is not None, "triton": find_spec("triton") is not None}
_HOW_TO_INSTALL = {
    "numba": how_to_install("numba", "fast"),
    "triton": "pip install triton (builds of torch for CUDA bring it)",
}


@core("x", "batch seq channel")
def selective_scan(
    x: Float[Tensor, "batch seq d_inner"],
    dt: Float[Tensor, "batch seq d_inner"],
    A: Float[Tensor, "d_inner d_state"],
    B: Float[Tensor, "batch seq d_state"],
    C: Float[Tensor, "batch seq d_state"],
    D: Float[Tensor, " d_inner"] | None = None,
    state: Float[Tensor, "batch d_inner d_state"] | None = None,
    *,
    backend: str | None = None,
    check: bool = True,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner d_state"]]:
    """Scan the whole sequence; differentiable once, in every argument.

    In float32, a decay exp(dt A) close to 1 has a rounding error of 6e-8. If steps vary, these errors average out. If
    every step is the same small number they add up, in every backend: after 4096 positions, to 4e-6 of the output for
    dt = 1e-3 and to 3e-5 for 1e-6. float64 avoids this.

    Args:
        x: input.
        dt: step sizes, not negative; a zero leaves the state as it is.
        A: decay rates, not positive.
        B, C: input and output directions.
        D: skip, adds D x.
        state: h before the first position, in float32, or in float64 if x is float64; default zero.
        backend: "torch", "numba" or "triton". By default, triton on CUDA and numba on the CPU if installed, and torch
            otherwise and in float64.
        check: check the values of dt and A. A caller that guarantees their signs saves a pass by False; a NaN then
            reaches the outputs.

    Returns:
        y in x's dtype, and h after the last position. Computed in at least float32.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together, an empty sequence, a backend that is unknown or
            cannot take x; a dt that is negative or not finite, an A that is positive or not finite. On CUDA the last
            two are torch's device-side assertions, since reading the values here would wait for the device.
        ImportError: the requested backend is not installed.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    _require_fit(x, dt, A, B, C, D, state, wide)
    chosen = _choose(backend, x, wide)
    if state is None:
        state = x.new_zeros(x.shape[0], *A.shape, dtype=wide)
    narrow = torch.bfloat16 if chosen == "triton" else wide
    x_, dt_, B_, C_ = (t if t.dtype == narrow else as_type(wide, t) for t in (x, dt, B, C))
    inputs = (x_, dt_, as_type(wide, A), B_, C_, state)
    if entering := spread():
        over = torch.exp(as_type(wide, dt).sum(1).unsqueeze(2) * inputs[2])
        written = _outputs(*inputs[:5], torch.zeros_like(state), chosen, check)[1]
        inputs = (*inputs[:5], entering(torch.mul, over, written))
    if x.shape[1] == 1 and backend is None and not _is_watched((*inputs, D)):
        if check:
            _require_signs(dt_, A)
        y, final = scan_torch.step(*(as_type(wide, t) for t in inputs))
    else:
        y, final = _outputs(*inputs, chosen, check)
    if D is not None:
        y = torch.addcmul(as_type(wide, y), as_type(wide, x), as_type(wide, D))
    return as_type(x.dtype, y), final


def _require_fit(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor | None, wide: torch.dtype
) -> None:
    """Raise ValueError unless the arguments fit together: shapes, dtypes, devices."""
    if x.ndim != 3 or x.shape[1] == 0:
        raise ValueError(f"x must be (batch, seq >= 1, d_inner), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point, got {x.dtype}")
    batch, seq_len, d_inner = x.shape
    if A.ndim != 2 or A.shape[0] != d_inner or A.shape[1] == 0:
        raise ValueError(f"A must be (d_inner={d_inner}, d_state >= 1), got {tuple(A.shape)}")
    directions = (batch, seq_len, A.shape[1])
    for name, t, shape in (
        ("dt", dt, x.shape),
        ("A", A, A.shape),
        ("B", B, directions),
        ("C", C, directions),
        ("D", D, (d_inner,)),
        ("state", state, (batch, *A.shape)),
    ):
        if t is None:
            continue
        if t.shape != shape:
            raise ValueError(f"{name} must be {tuple(shape)}, got {tuple(t.shape)}")
        if t.dtype != wide and (not t.is_floating_point() or torch.promote_types(t.dtype, wide) != wide):
            raise ValueError(f"{name} must be floating point and no wider than {wide}, got {t.dtype}")
        if t.device != x.device:
            raise ValueError(f"{name} is on {t.device}, x on {x.device}")
    if state is not None and state.dtype != wide:
        raise ValueError(f"state must be {wide} for x in {x.dtype}, got {state.dtype}")


def _is_watched(tensors: tuple[Tensor | None, ...]) -> bool:
    """Return whether autograd, a compiler, torch.func or autocast affects the operations outside the custom ops."""
    if followed() or torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _choose(backend: str | None, x: Tensor, wide: torch.dtype) -> str:
    """Return the name of the requested backend, if it can take x, or by default of the fastest one available."""
    kind = x.device.type
    if backend is None:
        fastest = {"cpu": "numba", "cuda": "triton"}.get(kind, "torch")
        return fastest if wide == torch.float32 and _INSTALLED.get(fastest) else "torch"
    if backend not in BACKENDS:
        raise ValueError(unknown("backend", backend, BACKENDS))
    if backend == "torch":
        return backend
    if wide != torch.float32:
        raise ValueError(f"backend {backend!r} computes in float32: for x in {x.dtype} use 'torch'")
    if backend == "numba" and kind != "cpu":
        raise ValueError(f"backend 'numba' needs tensors on the CPU, x is on {x.device}")
    if backend == "triton" and kind != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"backend 'triton' needs tensors on CUDA (or TRITON_INTERPRET=1), x is on {x.device}")
    if not _INSTALLED[backend]:
        raise ImportError(f"backend {backend!r} is not installed: {_HOW_TO_INSTALL[backend]}")
    return backend


def _module(backend: str) -> ModuleType:
    if backend == "numba":
        from zoo.ops import scan_numba

        return scan_numba
    if backend == "triton":
        from zoo.ops import scan_triton

        return scan_triton
    return scan_torch


def _require_signs(dt: Tensor, A: Tensor) -> None:
    """Raise ValueError unless dt >= 0 >= A, with all values finite."""
    if dt.numel() == 0 or dt.is_meta:
        return
    if dt.is_cuda:
        torch.ops.aten._assert_async.msg(((dt >= 0) & dt.isfinite()).all(), "dt must be finite and not negative")
        torch.ops.aten._assert_async.msg(((A <= 0) & A.isfinite()).all(), "A must be finite and not positive")
        return
    low, high = (float(t) for t in dt.aminmax())  # NaN wins in both
    if not 0 <= low <= high < float("inf"):
        raise ValueError(f"dt must be finite and not negative, got values from {low:g} to {high:g}")
    low, high = (float(t) for t in A.aminmax())
    if not -float("inf") < low <= high <= 0:
        raise ValueError(f"A must be finite and not positive, got values from {low:g} to {high:g}")


# Explicit schemas: the tests' shape checker wraps the functions and hides their annotations from torch.
_GIVEN = "(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor state, str backend, bool check)"
_BACKWARD_SCHEMA = (
    "(Tensor grad_y, Tensor grad_final, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor entering,"
    " str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("zoo::selective_scan", mutates_args=(), schema=f"{_GIVEN} -> (Tensor, Tensor, Tensor)")
def _scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, backend: str, check: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the final state, and the state that enters each chunk (chunk, batch, d_state, d_inner)."""
    if check:
        _require_signs(dt, A)
    with full_precision(x.device):
        return _module(backend).scan(*(t.contiguous() for t in (x, dt, A, B, C, state)))


@torch.library.custom_op("zoo::selective_scan_backward", mutates_args=(), schema=_BACKWARD_SCHEMA)
def _scan_backward(*given: Any) -> tuple[Tensor, ...]:
    """Return gradients of x, dt, A, B, C and the initial state, each in the dtype of its tensor.

    With g_t the gradient that reaches h_t:  g_t = C_t grad_y_t + exp(dt_{t+1} A) g_{t+1}.
    """
    *tensors, backend = given
    _, _, x, dt, A, B, C, _ = tensors
    with full_precision(x.device):
        grads = _module(backend).scan_backward(*(t.contiguous() for t in tensors))
    return tuple(grad.to(t.dtype).contiguous() for grad, t in zip(grads, (x, dt, A, B, C, A), strict=True))


@_scan.register_fake
def _(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, backend: str, check: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    chunks = -(-seq_len // _module(backend).chunk_length(batch, d_inner, d_state, seq_len))
    entering = A.new_empty(chunks, batch, d_state, d_inner)
    return x.new_empty(x.shape), state.new_empty(state.shape), entering


@_scan_backward.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    x, A = given[2], given[4]
    return (*(t.new_empty(t.shape) for t in given[2:7]), A.new_empty(x.shape[0], *A.shape))


def _keep(ctx, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    x, dt, A, B, C, _, ctx.backend, _ = inputs
    ctx.save_for_backward(x, dt, A, B, C, output[2])
    ctx.mark_non_differentiable(output[2])


def _differentiate(
    ctx, grad_y: Tensor | None, grad_final: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: under activation checkpointing each read recomputes them
    x, A = saved[0], saved[2]
    grad_y = torch.zeros_like(x) if grad_y is None else grad_y
    grad_final = A.new_zeros(x.shape[0], *A.shape) if grad_final is None else grad_final
    return *_gradients(grad_y, grad_final, *saved, ctx.backend), None, None


_gradients = transformable(_scan_backward)
_differentiable_scan = transformable(_scan, _keep, _differentiate)


@whole_in_export(
    f"{_GIVEN} -> (Tensor, Tensor)",
    lambda x, dt, A, B, C, state, backend, check: (x.new_empty(x.shape), state.new_empty(state.shape)),
)
def _outputs(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, backend: str, check: bool
) -> tuple[Tensor, Tensor]:
    """Return y and the final state, without the states between chunks."""
    y, final, _ = _differentiable_scan(x, dt, A, B, C, state, backend, check)
    return y, final
