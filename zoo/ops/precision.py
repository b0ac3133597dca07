"""Dtypes of the computation, and blocks without reduced precision: recurrences need at least float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

DType: TypeAlias = torch.dtype | None
Device: TypeAlias = torch.device | str | None

_NO_CHANGE = nullcontext()  # reused: creating one takes half a microsecond, in every op of every decoding step


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switch off autocast on `device` only if it is on: switching takes as long as an operation on one position."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return _NO_CHANGE


def as_type(dtype: torch.dtype, t: Tensor) -> Tensor:
    """Return `t.to(dtype)`, but skip the call if it has no effect, since it takes a microsecond of a decoding step."""
    return t if t.dtype == dtype else t.to(dtype)


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating dtype that `device` computes in: float64, or float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def linear_dtype(t: Tensor) -> torch.dtype:
    """Return the dtype in which a linear map of `t` computes: autocast's dtype if autocast is on, otherwise t's."""
    kind = t.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return t.dtype


Product: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def chunk_product(state: Tensor) -> Product:
    """Return the matrix product for operands in the dtype of `state`, under torch's current settings.

    Under autocast, float32 operands are rounded to autocast's dtype; sums, results and states stay float32. Otherwise
    it is torch.matmul, in ieee float32 or as `torch.set_float32_matmul_precision` allows. On the CPU, products of
    rounded operands are computed in float32, which gives the results of a GPU, but not its speed.
    """
    return product_of(rounded_type(state))


def rounded_type(state: Tensor) -> DType:
    """Return the dtype to which `chunk_product` rounds its operands; None if it does not round."""
    kind = linear_dtype(state)
    return None if torch.float64 in (state.dtype, kind) or kind == state.dtype else kind


def product_of(kind: DType) -> Product:
    """Return the matrix product of operands rounded to `kind`."""
    return torch.matmul if kind is None else partial(_Rounded.apply, kind)


class _Rounded(torch.autograd.Function):
    """a @ b with operands rounded to `kind`; only these are kept. The backward pass rounds in the same way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kind: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.to(kind), b.to(kind)
        if a.device.type == "cpu":
            return a.float() @ b.float()
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (t.expand(*batch, *t.shape[-2:]).reshape(batch.numel(), *t.shape[-2:]) for t in (a, b))
        return torch.bmm(a, b, out_dtype=torch.float32).unflatten(0, batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kind, a, b = inputs
        ctx.shapes = a.shape, b.shape
        ctx.save_for_backward(a.to(ctx.kind), b.to(ctx.kind))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (a, b) = grads, ctx.saved_tensors
        if not torch.is_grad_enabled():  # round once for both products; if differentiated again, each rounds itself
            grad = grad.to(ctx.kind)
        of_a = _Rounded.apply(ctx.kind, grad, b.mT).sum_to_size(ctx.shapes[0]) if ctx.needs_input_grad[1] else None
        of_b = _Rounded.apply(ctx.kind, a.mT, grad).sum_to_size(ctx.shapes[1]) if ctx.needs_input_grad[2] else None
        return None, of_a, of_b


def accumulator(dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which a recurrence accumulates for activations of `dtype`: at least float32."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


def complex_accumulator(dtype: torch.dtype | None) -> torch.dtype:
    """`accumulator` for complex states; a table, since torch.compile does not trace `dtype.to_complex`."""
    return {torch.float32: torch.complex64, torch.float64: torch.complex128}[accumulator(dtype)]
