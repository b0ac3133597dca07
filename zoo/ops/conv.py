"""Causal depthwise convolution with a state."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from zoo.ops.time import right_align


def causal_conv(
    x: Float[Tensor, "batch seq channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    tail: Float[Tensor, "batch past channels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch past channels"]]:
    """y_i = bias + sum_k weight[:, k] x_{i - (width - 1) + k}: each channel by itself, the last tap is lag zero.

    Args:
        x: the chunk.
        weight: taps, oldest first.
        bias: added to every output.
        tail: the `width - 1` inputs before the chunk; zeros at the start.
        lengths: valid positions of each row.

    Returns:
        The outputs and the tail for the next chunk.
    """
    seq_len, past = x.shape[1], weight.shape[1] - 1
    window = torch.cat((tail.to(x.dtype), x), dim=1)
    y = window[:, past:] * weight[:, past]
    for k in range(past):
        y = torch.addcmul(y, window[:, k : k + seq_len], weight[:, k])
    if bias is not None:
        y = y + bias
    if lengths is not None:
        window = right_align(window, lengths + past)
    return y, window[:, seq_len:]
