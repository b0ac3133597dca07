"""Torch's fused recurrent kernels, and when they may stand in for the loops that mark their coefficients."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from zoo import coefficient
from zoo.ops.precision import linear_dtype
from zoo.ops.transforms import followed

Kernel = Literal["lstm", "gru", "rnn_tanh"]


def fused_suffices(kernel: Kernel, x: Tensor, valid: Bool[Tensor, "batch seq"] | None) -> bool:
    """Return whether nothing needs the loop: no coefficient is asked for, no row stops early, nothing is traced.

    And the kernel exists: below float32 not every CPU has it.
    """
    if coefficient.active() or followed() or x.is_meta or valid is not None or len(x) == 0:
        return False
    kind = linear_dtype(x)
    return x.device.type != "cpu" or kind.itemsize >= torch.float32.itemsize or _exists_on_cpu(kernel, x.dtype, kind)


@cache
def _exists_on_cpu(kernel: Kernel, dtype: torch.dtype, autocast_to: torch.dtype) -> bool:
    """Return whether this CPU computes `kernel`, forward and backward, asked once of a single number.

    torch leaves the bfloat16 LSTM to oneDNN, which makes it where the processor has AVX-512 and raises elsewhere.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", dtype=autocast_to, enabled=autocast_to != dtype, cache_enabled=False),
    ):
        gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[kernel]
        x, state = (torch.zeros(shape, dtype=dtype) for shape in ((1, 1, 1), (1, 1)))
        weight, bias = (torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in ((gates, 1), (gates,)))
        states = [state] * (2 if kernel == "lstm" else 1)
        try:
            y = fused_recurrence(kernel, x, weight, weight, bias, *states)[0]
            torch.autograd.grad(y.sum(), weight)
        except RuntimeError:
            return False
    return True


def fused_recurrence(
    kernel: Kernel,
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "gates d_model"],
    recurrent: Float[Tensor, "gates d_inner"],
    bias: Float[Tensor, " gates"],
    *state: Float[Tensor, "batch d_inner"],
    recurrent_bias: Float[Tensor, " gates"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], *tuple[Float[Tensor, "batch d_inner"], ...]]:
    """Run one layer of torch.nn's LSTM, GRU or tanh RNN from given weights and state.

    Args:
        kernel: which of the three.
        x: input, before its projection.
        in_weight, recurrent, bias, recurrent_bias: the two maps to the gates, in torch's order of gates.
        state: h, and c of an LSTM, before the first position.

    Returns:
        h at every position, then the state after the last.
    """
    weights = [in_weight, recurrent, bias, torch.zeros_like(bias) if recurrent_bias is None else recurrent_bias]
    if x.is_cuda:
        # cuDNN wants its weights one after the other in memory and warns where they are not.
        flat = torch.cat([w.flatten() for w in weights]).split([w.numel() for w in weights])
        weights = [part.view_as(w) for part, w in zip(flat, weights, strict=True)]
    before = [t.to(x.dtype).unsqueeze(0) for t in state]
    settings = (weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
    if kernel == "lstm":
        y, *after = torch.lstm(x, before, *settings)
    else:
        y, *after = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh}[kernel](x, before[0], *settings)
    return y, *(t.squeeze(0) for t in after)
