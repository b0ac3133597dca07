"""Causal depthwise convolution with a state; one Triton kernel on CUDA, one loop on the CPU if numba is installed."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from zoo.ops.time import right_align, without_rest
from zoo.ops.transforms import differentiable_again, kernels_suffice, loops_suffice


def causal_conv(
    x: Float[Tensor, "batch seq channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    tail: Float[Tensor, "batch past channels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch past channels"]]:
    """y_i = bias + sum_k weight[:, k] x_{i - (width - 1) + k}: each channel separately; the last tap is lag zero.

    Args:
        x: the chunk.
        weight: taps, oldest first.
        bias: added to every output.
        tail: the `width - 1` inputs before the chunk; zeros at the start.
        lengths: valid positions of each row.

    Returns:
        The outputs, in x's dtype, and the tail for the next chunk.
    """
    seq_len, past = x.shape[1], weight.shape[1] - 1
    tail = tail.to(x.dtype)
    if kernels_suffice(weight) and x.dtype != torch.float64:
        y = _Kernel.apply(x, weight, bias, tail)
        window = torch.cat((tail, x if lengths is not None else x[:, max(0, seq_len - past) :]), dim=1)
    else:
        window = torch.cat((tail, x), dim=1)
        if x.dtype == torch.float32 and loops_suffice(weight):
            y = _Loop.apply(window, weight, bias)
        else:
            y = _by_taps(window, weight, bias).to(x.dtype)
    if lengths is not None:
        window = right_align(window, lengths + past)
    return y, without_rest(window[:, window.shape[1] - past :], window)


def previous(
    x: Float[Tensor, "batch seq channels"],
    last: Float[Tensor, "batch 1 channels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch 1 channels"]]:
    """Return the input before each position (`last` before the first one), and the last input of each row."""
    taps = torch.arange(1, -1, -1, dtype=x.dtype, device=x.device).expand(x.shape[2], 2)
    return causal_conv(x, taps, None, last, lengths)


def token_shift(
    x: Float[Tensor, "batch seq channels"],
    weight: Float[Tensor, "parts channels"],
    last: Float[Tensor, "batch 1 channels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "parts batch seq channels"], Float[Tensor, "batch 1 channels"]]:
    """Return weight_s * x_t + (1 - weight_s) * x_{t-1} for each part s, and the last input of each row."""
    before, last = previous(x, last, lengths)
    return torch.addcmul(before, x - before, weight.view(len(weight), 1, 1, -1)), last


def _by_taps(window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    past = weight.shape[1] - 1
    seq_len = window.shape[1] - past
    y = window[:, past:] * weight[:, past]
    for k in range(past):
        y = torch.addcmul(y, window[:, k : k + seq_len], weight[:, k])
    return y if bias is None else y + bias


def _by_taps_from_tail(x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor) -> Tensor:
    return _by_taps(torch.cat((tail, x), dim=1), weight, bias).to(x.dtype)


class _Loop(torch.autograd.Function):
    """`_by_taps` as machine code."""

    @staticmethod
    def forward(ctx: Any, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from zoo.ops import conv_numba

        ctx.save_for_backward(window, weight, bias)
        return conv_numba.forward(window, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from zoo.ops import conv_numba

        window, weight, bias = given = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: use the taps, whose gradients allow it
            return differentiable_again(_by_taps, given, ctx.needs_input_grad, grads)
        of_window, of_weight, of_bias = conv_numba.backward(grads[0], window, weight)
        return of_window, of_weight, None if bias is None else of_bias


class _Kernel(torch.autograd.Function):
    """`_by_taps` as a Triton kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias, tail)
        return _convolved(x, weight, bias, tail)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, tail = given = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_again(_by_taps_from_tail, given, ctx.needs_input_grad, grads)
        of_x, of_weight, of_bias, of_tail = _convolved_backward(grads[0], x, weight, tail)
        return of_x, of_weight, None if bias is None else of_bias, of_tail


# The kernels are custom ops, so that a compiler sees one operation.


@torch.library.custom_op(
    "zoo::causal_conv", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor? bias, Tensor tail) -> Tensor"
)
def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor) -> Tensor:
    from zoo.ops import conv_triton

    return conv_triton.forward(x, weight, bias, tail)


@_convolved.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op(
    "zoo::causal_conv_backward",
    mutates_args=(),
    schema="(Tensor grad_y, Tensor x, Tensor weight, Tensor tail) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _convolved_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, tail: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from zoo.ops import conv_triton

    return conv_triton.backward(grad_y, x, weight, tail)


@_convolved_backward.register_fake
def _(grad_y: Tensor, x: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = x, weight, weight[:, 0], tail
    return tuple(t.new_empty(t.shape) for t in given)  # pyright: ignore[reportReturnType]
