"""The causal convolution of `zoo.ops.conv` as machine code: float32 on the CPU (extra `fast`).

Each tensor is read and written once, where operations of torch would pass over it once per tap. Channels are innermost,
so inner loops vectorise. A task is a row of the batch and a block of channels. Tasks write to disjoint memory, so
results do not depend on the number of threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.ops.numba_loops import compiled, share_out

_BLOCK = 256  # channels of a task
_STEPS = 64  # positions whose gradients of the taps are summed in float32, before they are added in float64


def forward(window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs (batch, seq, channels) from the contiguous tail and inputs, (batch, past + seq, channels)."""
    batch, length, channels = window.shape
    y = window.new_empty(batch, length - weight.shape[1] + 1, channels)
    start = weight.new_zeros(channels) if bias is None else bias.contiguous()
    share_out(_forward, _tasks(window), window, weight.mT.contiguous(), start, y)
    return y


def backward(grad_y: Tensor, window: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of window, weight and bias."""
    grad_window = torch.empty_like(window)
    shares = window.new_empty(len(window), weight.shape[1] + 1, window.shape[2], dtype=torch.float64)
    given = grad_y.contiguous(), window, weight.mT.contiguous()
    share_out(_backward, _tasks(window), *given, grad_window, shares)
    found = shares.sum(0).to(weight.dtype)
    return grad_window, found[:-1].mT, found[-1]


def _tasks(window: Tensor) -> int:
    return len(window) * -(-window.shape[2] // _BLOCK)


# The loops. Taps are (width, channels).


@partial(compiled, label="the short convolution")
def _forward(first: int, last: int, *arrays: Any) -> None:
    window, taps, bias, y = arrays
    _, seq_len, channels = y.shape
    n_blocks = (channels + _BLOCK - 1) // _BLOCK
    for task in range(first, last):
        i, start = task // n_blocks, task % n_blocks * _BLOCK
        stop = min(start + _BLOCK, channels)
        for t in range(seq_len):
            out = y[i, t, start:stop]
            for c in range(stop - start):
                out[c] = bias[start + c]
            for k in range(len(taps)):
                tap, row = taps[k, start:stop], window[i, t + k, start:stop]
                for c in range(stop - start):
                    out[c] += tap[c] * row[c]


@partial(compiled, label="the short convolution")
def _backward(first: int, last: int, *arrays: Any) -> None:
    """Fill the gradients of the window, and of taps and bias for each row, (batch, width + 1, channels)."""
    grad_y, window, taps, grad_window, shares = arrays
    _, seq_len, channels = grad_y.shape
    width = len(taps)
    n_blocks = (channels + _BLOCK - 1) // _BLOCK
    sums = np.empty((width + 1, _BLOCK), np.float32)
    for task in range(first, last):
        i, start = task // n_blocks, task % n_blocks * _BLOCK
        stop = min(start + _BLOCK, channels)
        for k in range(width + 1):
            for c in range(start, stop):
                shares[i, k, c] = 0.0
        for t in range(width - 1):
            for c in range(start, stop):
                grad_window[i, t, c] = 0.0
        for begin in range(0, seq_len, _STEPS):
            end = min(begin + _STEPS, seq_len)
            for k in range(width + 1):
                for c in range(stop - start):
                    sums[k, c] = 0.0
            for t in range(begin, end):
                g, newest = grad_y[i, t, start:stop], grad_window[i, t + width - 1, start:stop]
                for c in range(stop - start):
                    newest[c] = 0.0
                    sums[width, c] += g[c]
                for k in range(width):
                    tap, row = taps[k, start:stop], window[i, t + k, start:stop]
                    of_row = grad_window[i, t + k, start:stop]
                    for c in range(stop - start):
                        of_row[c] += g[c] * tap[c]
                        sums[k, c] += g[c] * row[c]
            for k in range(width + 1):
                for c in range(stop - start):
                    shares[i, k, start + c] += sums[k, c]
