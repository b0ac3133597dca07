"""The causal convolution of `zoo.ops.conv` as Triton kernels for CUDA: each tensor is read and written once.

A program handles a block of positions and channels of one row; the shifted reads of its taps come from the cache. Each
program writes its part of the gradients of weight and bias; the parts are summed afterwards in a fixed order. Sums are
float32. Under TRITON_INTERPRET=1 the same code runs on the CPU.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

TIME, CHANNELS = 32, 64  # block of a program

# `no_type_check` hides the kernels from the tests' shape checker: triton compiles their source, not the functions.


@triton.jit
@no_type_check
def _at(x_ptr, tail_ptr, t, c, seq_len, channels, x_step, PAST: tl.constexpr):
    """Load positions t of x: from the tail before the first position, zero after the last."""
    inside = c < channels
    x = tl.load(x_ptr + t * x_step + c, mask=inside & (t >= 0) & (t < seq_len), other=0.0).to(tl.float32)
    tail = tl.load(tail_ptr + (t + PAST) * channels + c, mask=inside & (t < 0) & (t >= -PAST), other=0.0)
    return x + tail.to(tl.float32)


@triton.jit
@no_type_check
def _forward(
    x_ptr, tail_ptr, weight_ptr, bias_ptr, y_ptr, seq_len, channels, x_row, x_step,
    PAST: tl.constexpr, BIAS: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(seq_len, TIME)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    t = ((tl.program_id(0) % blocks).to(tl.int64) * TIME + tl.arange(0, TIME))[:, None]
    c = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    x_ptr += row * x_row
    tail_ptr += row * PAST * channels
    y = tl.zeros([TIME, CHANNELS], tl.float32)
    if BIAS:
        y += tl.load(bias_ptr + c, mask=c < channels, other=0.0)
    for k in tl.static_range(PAST + 1):
        weight = tl.load(weight_ptr + c * (PAST + 1) + k, mask=c < channels, other=0.0)
        y += weight * _at(x_ptr, tail_ptr, t - PAST + k, c, seq_len, channels, x_step, PAST)
    tl.store(y_ptr + (row * seq_len + t) * channels + c, y, mask=(t < seq_len) & (c < channels))


@triton.jit
@no_type_check
def _backward(
    grad_y_ptr, x_ptr, tail_ptr, weight_ptr, grad_x_ptr, grad_tail_ptr, shares_ptr, seq_len, channels, x_row, x_step,
    PAST: tl.constexpr, TIME: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute all gradients; positions start with the tail's. shares: (rows * blocks, taps + bias, channels)."""
    blocks = tl.cdiv(seq_len + PAST, TIME)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    t = ((tl.program_id(0) % blocks).to(tl.int64) * TIME + tl.arange(0, TIME) - PAST)[:, None]
    c = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    inside = c < channels
    x_ptr += row * x_row
    tail_ptr += row * PAST * channels
    grad_y_ptr += row * seq_len * channels
    shares_ptr += tl.program_id(0).to(tl.int64) * (PAST + 2) * channels
    x = _at(x_ptr, tail_ptr, t, c, seq_len, channels, x_step, PAST)
    grad_x = tl.zeros([TIME, CHANNELS], tl.float32)
    for k in tl.static_range(PAST + 1):
        later = t + PAST - k
        there = inside & (later >= 0) & (later < seq_len)
        grad_y = tl.load(grad_y_ptr + later * channels + c, mask=there, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + c * (PAST + 1) + k, mask=inside, other=0.0)
        grad_x += weight * grad_y
        tl.store(shares_ptr + k * channels + c, tl.sum(grad_y * x, axis=0)[None, :], mask=inside)
        if k == PAST:  # lag zero
            tl.store(shares_ptr + (PAST + 1) * channels + c, tl.sum(grad_y, axis=0)[None, :], mask=inside)
    to_x = grad_x_ptr + (row * seq_len + t) * channels + c
    tl.store(to_x, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside & (t >= 0) & (t < seq_len))
    to_tail = grad_tail_ptr + (row * PAST + t + PAST) * channels + c
    tl.store(to_tail, grad_x.to(grad_tail_ptr.dtype.element_ty), mask=inside & (t < 0))


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor) -> Tensor:
    """Return y. Arguments are as in `zoo.ops.conv.causal_conv`; weight and bias are float32."""
    x, y = _along_channels(x), x.new_empty(x.shape)
    given = x, tail.contiguous(), weight.contiguous(), weight if bias is None else bias, y
    _launch(_forward, x.shape[1], x, weight, *given, BIAS=bias is not None)
    return y


def backward(grad_y: Tensor, x: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of x, weight, bias and tail."""
    x, (batch, seq_len, channels) = _along_channels(x), x.shape
    steps = seq_len + weight.shape[1] - 1
    grad_x, grad_tail = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, tail))
    shares = weight.new_empty(batch * triton.cdiv(steps, TIME), weight.shape[1] + 1, channels)
    given = grad_y.contiguous(), x, tail.contiguous(), weight.contiguous(), grad_x, grad_tail, shares
    _launch(_backward, steps, x, weight, *given)
    *of_weight, of_bias = shares.sum(0).unbind(0)
    return grad_x, torch.stack(of_weight, dim=1), of_bias.clone(), grad_tail


def _along_channels(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _launch(kernel: Any, steps: int, x: Tensor, weight: Tensor, *tensors: Tensor, **more: bool) -> None:
    batch, seq_len, channels = x.shape
    grid = (batch * triton.cdiv(steps, TIME), triton.cdiv(channels, CHANNELS))
    sizes = {"PAST": weight.shape[1] - 1, "TIME": TIME, "CHANNELS": CHANNELS}
    with torch.cuda.device_of(x):  # triton launches on the current device, not on the tensors'
        kernel[grid](*tensors, seq_len, channels, *x.stride()[:2], **sizes, **more, enable_fp_fusion=True)
