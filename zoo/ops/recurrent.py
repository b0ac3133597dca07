"""Torch's fused recurrent kernels, and when they may stand in for the loops that mark their coefficients."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from zoo import coefficient

Kernel = Literal["lstm", "gru", "rnn_tanh"]


def fused_suffices(x: Tensor, valid: Bool[Tensor, "batch seq"] | None) -> bool:
    """Whether nothing needs the loop: no coefficient is asked for, no row stops early, nothing is traced."""
    traced = torch.compiler.is_compiling() or x.is_meta  # the kernels have no form that a compiler can follow
    return not (coefficient.active() or traced) and valid is None and len(x) > 0


def fused_recurrence(
    kernel: Kernel,
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "gates d_model"],
    recurrent: Float[Tensor, "gates d_inner"],
    bias: Float[Tensor, " gates"],
    *state: Float[Tensor, "batch d_inner"],
    recurrent_bias: Float[Tensor, " gates"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], *tuple[Float[Tensor, "batch d_inner"], ...]]:
    """One layer of torch.nn's LSTM, GRU or tanh RNN from given weights and state.

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
