"""Causal depthwise convolution with kernels as long as the sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

BLOCK = 64


def long_conv(
    x: Float[Tensor, "batch slots channels"], kernel: Float[Tensor, "channels slots"], seq_len: int
) -> Float[Tensor, "batch seq channels"]:
    """y_i = sum_{j <= i} kernel[:, i - j] x_j for the last `seq_len` slots, each channel by itself.

    A Toeplitz product for each block of outputs. A Fourier transform would be faster for long sequences, but lets
    roundoff of the future into the past.

    Args:
        x: all inputs so far.
        kernel: value at each lag, from zero.
        seq_len: how many outputs, counted from the right.
    """
    slots = x.shape[1]
    by_channel = x.permute(2, 1, 0)
    # Row i of a Toeplitz matrix is a window of the reversed kernel, one step further left than that of row i - 1.
    backwards = F.pad(kernel.flip(1), (0, BLOCK))
    outputs = []
    for start in range(slots - seq_len, slots, BLOCK):
        stop = min(start + BLOCK, slots)
        windows = backwards[:, slots - stop : slots - start - 1 + stop].unfold(1, stop, 1)
        outputs.append(windows.flip(1) @ by_channel[:, :stop])
    return torch.cat(outputs, dim=1).permute(2, 1, 0)
