"""The loops of `zoo.ops.scan_numba`, compiled at their first call and kept on disk; importing this needs numba.

A task is a row of the batch and a block of channels: tasks share nothing that they write, so any number of threads
computes the same numbers. State index before channel, channel innermost: every inner loop runs over neighbours in
memory, without a branch or a call, and becomes vector instructions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

CHUNK = 32
"""Steps between two states that forward keeps for backward."""
BLOCK = 64
"""Channels of a task: a chunk's states and decays of so many stay in the second-level cache."""

_F0 = np.float32(0.0)
_HALF = np.float32(0.5)
_LOG2_E = np.float32(math.log2(math.e))
# 2^f = 1 + f (P0 + f (P1 + ...)) for |f| <= 1/2: the polynomial of least relative error, below a rounding of float32.
_P0 = np.float32(0.6931472)
_P1 = np.float32(0.24022648)
_P2 = np.float32(0.055503324)
_P3 = np.float32(0.009618438)
_P4 = np.float32(0.0013398875)
_P5 = np.float32(0.0001535335)


def _compiled(function: Callable[..., Any]) -> Any:
    """Machine code that lets other threads run. Sums may be reordered and products fused, NaN and infinity stay."""
    function = inspect.unwrap(function)  # out of the shape checker that the tests put around everything in zoo
    options: dict[str, Any] = {
        "nogil": True,
        "fastmath": {"contract", "reassoc", "nsz"},
        "error_model": "numpy",
        "boundscheck": False,
    }
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder that could hold the code: compile it in each process
        return numba.njit(**options)(function)


@_compiled
def _exp2(e: Any) -> Any:
    """2^e for e <= 0, exactly 1 at 0 and exactly 0 far below: polynomial for the fraction, shift for the rest."""
    e = e if e > np.float32(-127.0) else np.float32(-127.0)
    whole = np.int32(e - _HALF)
    f = e - np.float32(whole)
    p = _P5 * f + _P4
    p = p * f + _P3
    p = p * f + _P2
    p = p * f + _P1
    p = p * f + _P0
    p = p * f + np.float32(1.0)
    return p * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@_compiled
def forward(
    first: int, last: int, x: Any, dt: Any, A: Any, B: Any, C: Any, state: Any, y: Any, final: Any, entering: Any
) -> None:
    """Fill y, final and entering for the tasks from `first` to before `last`."""
    _, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    n_blocks = (d_inner + BLOCK - 1) // BLOCK
    h = np.empty((d_state, BLOCK), np.float32)
    rates = np.empty((d_state, BLOCK), np.float32)
    u = np.empty(BLOCK, np.float32)
    out = np.empty(BLOCK, np.float32)
    for task in range(first, last):
        i, start = task // n_blocks, task % n_blocks * BLOCK
        width = min(BLOCK, d_inner - start)
        for d in range(width):
            for n in range(d_state):
                h[n, d] = state[i, start + d, n]
                rates[n, d] = A[start + d, n] * _LOG2_E
        for t in range(seq_len):
            if t % CHUNK == 0:
                for n in range(d_state):
                    for d in range(width):
                        entering[t // CHUNK, i, n, start + d] = h[n, d]
            steps = dt[i, t, start : start + width]
            for d in range(width):
                u[d] = steps[d] * x[i, t, start + d]
                out[d] = _F0
            for n in range(d_state):
                b, c = B[i, t, n], C[i, t, n]
                for d in range(width):
                    value = _exp2(steps[d] * rates[n, d]) * h[n, d] + u[d] * b
                    h[n, d] = value
                    out[d] += c * value
            for d in range(width):
                y[i, t, start + d] = out[d]
        for d in range(width):
            for n in range(d_state):
                final[i, start + d, n] = h[n, d]


@_compiled
def backward(
    first: int,
    last: int,
    grad_y: Any,
    grad_final: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    entering: Any,
    grad_x: Any,
    grad_dt: Any,
    grad_A: Any,
    grad_B: Any,
    grad_C: Any,
    grad_state: Any,
) -> None:
    """Fill the gradients for the tasks from `first` to before `last`.

    grad_A is a row's share (batch, d_inner, d_state) in float64; grad_B and grad_C are a block's (blocks, batch, seq,
    d_state).
    """
    _, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    n_blocks = (d_inner + BLOCK - 1) // BLOCK
    h = np.empty((CHUNK + 1, d_state, BLOCK), np.float32)
    decay = np.empty((CHUNK, d_state, BLOCK), np.float32)
    g = np.empty((d_state, BLOCK), np.float32)
    rates = np.empty((d_state, BLOCK), np.float32)
    rates2 = np.empty((d_state, BLOCK), np.float32)
    share = np.empty((d_state, BLOCK), np.float32)
    u = np.empty(BLOCK, np.float32)
    grad_u = np.empty(BLOCK, np.float32)
    grad_step = np.empty(BLOCK, np.float32)
    for task in range(first, last):
        i, block = task // n_blocks, task % n_blocks
        start = block * BLOCK
        width = min(BLOCK, d_inner - start)
        for d in range(width):
            for n in range(d_state):
                g[n, d] = grad_final[i, start + d, n]
                rates[n, d] = A[start + d, n]
                rates2[n, d] = A[start + d, n] * _LOG2_E
                grad_A[i, start + d, n] = 0.0
        for chunk in range((seq_len - 1) // CHUNK, -1, -1):
            begin = chunk * CHUNK
            end = min(begin + CHUNK, seq_len)
            for n in range(d_state):
                for d in range(width):
                    h[0, n, d] = entering[chunk, i, n, start + d]
                    share[n, d] = _F0
            for t in range(begin, end):
                k = t - begin
                steps = dt[i, t, start : start + width]
                for d in range(width):
                    u[d] = steps[d] * x[i, t, start + d]
                for n in range(d_state):
                    b = B[i, t, n]
                    for d in range(width):
                        a = _exp2(steps[d] * rates2[n, d])
                        decay[k, n, d] = a
                        h[k + 1, n, d] = a * h[k, n, d] + u[d] * b
            for t in range(end - 1, begin - 1, -1):
                k = t - begin
                steps = dt[i, t, start : start + width]
                gy = grad_y[i, t, start : start + width]
                for d in range(width):
                    u[d] = steps[d] * x[i, t, start + d]
                    grad_u[d] = _F0
                    grad_step[d] = _F0
                for n in range(d_state):
                    b, c = B[i, t, n], C[i, t, n]
                    sum_b = sum_c = _F0
                    for d in range(width):
                        arrived = g[n, d] + gy[d] * c
                        sum_c += gy[d] * h[k + 1, n, d]
                        sum_b += arrived * u[d]
                        grad_u[d] += arrived * b
                        arrived *= decay[k, n, d]
                        g[n, d] = arrived
                        arrived *= h[k, n, d]  # the gradient of dt A
                        grad_step[d] += arrived * rates[n, d]
                        share[n, d] += arrived * steps[d]
                    grad_B[block, i, t, n] = sum_b
                    grad_C[block, i, t, n] = sum_c
                for d in range(width):
                    grad_x[i, t, start + d] = grad_u[d] * steps[d]
                    grad_dt[i, t, start + d] = grad_step[d] + grad_u[d] * x[i, t, start + d]
            for d in range(width):
                for n in range(d_state):
                    grad_A[i, start + d, n] += share[n, d]  # in float64: a sum over all positions
        for d in range(width):
            for n in range(d_state):
                grad_state[i, start + d, n] = g[n, d]
