"""Backend `numba` of `zoo.ops.scan`: float32 on the CPU, without a compiler on the machine (extra `fast`).

It makes one pass over time with the state in cache; `zoo.ops.scan_torch` uses bulk operations instead. The state index
comes before the channel, and channels are innermost: every inner loop runs over adjacent memory without branches or
calls, so it vectorises. docs/performance.md lists the gain of each trick.

A task is a row of the batch and a block of channels. Tasks write to disjoint memory, so results do not depend on the
number of threads.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.extending import intrinsic
from torch import Tensor

from zoo.ops.numba_loops import compiled, share_out

_CHUNK = 64  # steps between two states that forward keeps for backward
_BLOCK = 256  # channels of a task: fewer would mean more setup per inner loop
_AHEAD = 4  # steps that a row is prefetched ahead: processors do not predict rows that are pages apart


def chunk_length(batch: int, d_inner: int, d_state: int, seq_len: int) -> int:
    """Return the steps between the states that forward keeps for backward."""
    return _CHUNK


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the final state, and the state that enters each chunk (chunk, batch, d_state, d_inner)."""
    batch, seq_len, d_inner = x.shape
    y, final = torch.empty_like(x), torch.empty_like(state)
    entering = x.new_empty(-(-seq_len // _CHUNK), batch, A.shape[1], d_inner)
    share_out(_forward, _tasks(batch, d_inner), _EXP2, x, dt, A, B, C, state, y, final, entering)
    return y, final, entering


def scan_backward(
    grad_y: Tensor, grad_final: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, entering: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of x, dt, A, B, C and the initial state."""
    batch, _, d_inner = x.shape
    grad_x, grad_dt, grad_state = torch.empty_like(x), torch.empty_like(dt), torch.empty_like(grad_final)
    grad_A = A.new_empty(batch, *A.shape, dtype=torch.float64)
    grad_B, grad_C = (t.new_empty(-(-d_inner // _BLOCK), *t.shape) for t in (B, C))
    given = (grad_y, grad_final, x, dt, A, B, C, entering)
    found = (grad_x, grad_dt, grad_A, grad_B, grad_C, grad_state)
    share_out(_backward, _tasks(batch, d_inner), _EXP2, *given, *found)
    return grad_x, grad_dt, _in_order(grad_A).to(A.dtype), _in_order(grad_B), _in_order(grad_C), grad_state


def _in_order(shares: Tensor) -> Tensor:
    """Sum the shares one after the other, so that the result is the same for any number of threads."""
    total = shares.new_zeros(shares.shape[1:])
    for share in shares.unbind(0):
        total += share
    return total


def _tasks(batch: int, d_inner: int) -> int:
    return batch * -(-d_inner // _BLOCK)


# The loops.

_F0 = np.float32(0.0)
_LOG2_E = np.float32(math.log2(math.e))
_LN_2 = np.float32(math.log(2))
# 2^f = 1 + f (p1 + f (p2 + ...)) for |f| <= 1/2: the polynomial of least relative error, 1e-7, with exact value and
# slope at 0. `2 ** e` would be a call, which prevents vectorisation. The coefficients are arguments of the loops:
# constants in their code would be reloaded in every iteration.
_EXP2 = tuple(
    np.float32(value)
    for value in (
        1.5 * 2**23,  # added to a number, the sum's low bits are the nearest integer
        -126.0,  # exponent of the least normal number
        1.0,
        0.6931472,
        0.24022283,
        0.055505585,
        0.009669691,
        0.0013300605,
    )
)


@partial(compiled, fastmath=("contract", "reassoc", "nsz"))
def _plus(total: Any, term: Any) -> Any:
    """Return total + term in a sum that the compiler may reorder, and so vectorise."""
    return total + term


@compiled
def _exp2(e: Any, constants: Any) -> Any:
    """2^e for e <= 0, exactly 1 at 0 and exactly 0 far below: a polynomial for the fraction, bits for the rest."""
    to_round, least, p0, p1, p2, p3, p4, p5 = constants  # p0 = 1
    rounded = e + to_round
    f = e - (rounded - to_round)
    p = p5 * f + p4
    p = p * f + p3
    p = p * f + p2
    p = p * f + p1
    p = p * f + p0
    bits = np.float32(p).view(np.int32) + (np.float32(rounded).view(np.int32) << np.int32(23))
    return np.int32(bits).view(np.float32) if e > least else _F0


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the cache line at `address`."""

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        read, second_level, data = number(0), number(2), number(1)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), read, second_level, data])
        return context.get_dummy_value()

    return numba.void(numba.uintp), call


@compiled
def _ask_for(row: Any) -> None:
    """Prefetch all cache lines of a row of float32."""
    for d in range(0, len(row), 16):
        _prefetch(row[d:].ctypes.data)  # pyright: ignore[reportCallIssue]: numba supplies the typing context


# All values that backward keeps of a step are in one buffer, so the compiler knows without checks that rows do not
# overlap.


@partial(compiled, label="the scan")
def _forward(first: int, last: int, exp2: Any, *arrays: Any) -> None:
    """Fill y, final and entering for the tasks first, ..., last - 1."""
    x, dt, A, B, C, state, y, final, entering = arrays
    _, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    n_blocks = (d_inner + _BLOCK - 1) // _BLOCK
    h = np.empty((d_state, _BLOCK), np.float32)
    rates = np.empty((d_state, _BLOCK), np.float32)
    u = np.empty(_BLOCK, np.float32)
    out = np.empty(_BLOCK, np.float32)
    for task in range(first, last):
        i, start = task // n_blocks, task % n_blocks * _BLOCK
        width = min(_BLOCK, d_inner - start)
        stop = start + width
        for d in range(width):
            for n in range(d_state):
                h[n, d] = state[i, start + d, n]  # transposed: channels are adjacent
                rates[n, d] = A[start + d, n] * _LOG2_E
        for t in range(seq_len):
            if t % _CHUNK == 0:
                for n in range(d_state):
                    for d in range(width):
                        entering[t // _CHUNK, i, n, start + d] = h[n, d]
            ahead = min(t + _AHEAD, seq_len - 1)
            _ask_for(x[i, ahead, start:stop])
            _ask_for(dt[i, ahead, start:stop])
            _ask_for(y[i, ahead, start:stop])
            steps = dt[i, t, start:stop]
            for d in range(width):
                u[d] = steps[d] * x[i, t, start + d]
                out[d] = _F0
            for n in range(d_state):
                b, c = B[i, t, n], C[i, t, n]
                for d in range(width):
                    value = _exp2(steps[d] * rates[n, d], exp2) * h[n, d] + u[d] * b
                    h[n, d] = value
                    out[d] += c * value
            for d in range(width):
                y[i, t, start + d] = out[d]
        for d in range(width):
            for n in range(d_state):
                final[i, start + d, n] = h[n, d]


@partial(compiled, label="the scan")
def _backward(first: int, last: int, exp2: Any, *arrays: Any) -> None:
    """Fill the gradients for the tasks first, ..., last - 1.

    grad_A is per row, (batch, d_inner, d_state) in float64; grad_B and grad_C are per block, (blocks, batch, seq,
    d_state). Chunks are processed from the last to the first, and within a chunk state by state: first recompute its
    values, then propagate the gradients back through them while they are in cache.
    """
    grad_y, grad_final, x, dt, A, B, C, entering = arrays[:8]
    grad_x, grad_dt, grad_A, grad_B, grad_C, grad_state = arrays[8:]
    _, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    n_blocks = (d_inner + _BLOCK - 1) // _BLOCK
    # Per step: dt, u = dt x, the gradients of y, u and dt, and for the current state its value before and its decay.
    kept = np.empty((_CHUNK + 1, 7, _BLOCK), np.float32)
    # Per state: the arriving gradient, the rate, and the chunk's part of the gradient of the rate.
    each = np.empty((d_state, 3, _BLOCK), np.float32)
    for task in range(first, last):
        i, block = task // n_blocks, task % n_blocks
        start = block * _BLOCK
        stop = min(start + _BLOCK, d_inner)
        width = stop - start
        for d in range(width):
            for n in range(d_state):
                each[n, 0, d] = grad_final[i, start + d, n]
                each[n, 1, d] = A[start + d, n] * _LOG2_E
                grad_A[i, start + d, n] = 0.0
        for chunk in range((seq_len - 1) // _CHUNK, -1, -1):
            begin = chunk * _CHUNK
            size = min(_CHUNK, seq_len - begin)
            for k in range(size):
                t = begin + k
                steps, u, gy, grad_u, grad_step = kept[k, 0], kept[k, 1], kept[k, 2], kept[k, 3], kept[k, 4]
                for d in range(width):
                    steps[d] = dt[i, t, start + d]
                    u[d] = steps[d] * x[i, t, start + d]
                    gy[d] = grad_y[i, t, start + d]
                    grad_u[d] = _F0
                    grad_step[d] = _F0
                _ask_for(grad_x[i, t, start:stop])
                _ask_for(grad_dt[i, t, start:stop])
                if chunk > 0:  # the rows of the next chunk
                    _ask_for(x[i, t - _CHUNK, start:stop])
                    _ask_for(dt[i, t - _CHUNK, start:stop])
                    _ask_for(grad_y[i, t - _CHUNK, start:stop])
            for n in range(d_state):
                g, rate, share = each[n, 0], each[n, 1], each[n, 2]
                for d in range(width):
                    kept[0, 5, d] = entering[chunk, i, n, start + d]
                    share[d] = _F0
                for k in range(size):
                    t = begin + k
                    steps, u, gy = kept[k, 0], kept[k, 1], kept[k, 2]
                    h, decay, after = kept[k, 5], kept[k, 6], kept[k + 1, 5]
                    b, total = B[i, t, n], _F0
                    for d in range(width):
                        a = _exp2(steps[d] * rate[d], exp2)
                        value = a * h[d] + u[d] * b
                        total = _plus(total, gy[d] * value)
                        decay[d] = a
                        after[d] = value
                    grad_C[block, i, t, n] = total
                for k in range(size - 1, -1, -1):
                    t = begin + k
                    steps, u, gy, grad_u, grad_step = kept[k, 0], kept[k, 1], kept[k, 2], kept[k, 3], kept[k, 4]
                    h, decay = kept[k, 5], kept[k, 6]
                    b, c, total = B[i, t, n], C[i, t, n], _F0
                    for d in range(width):
                        arrived = g[d] + gy[d] * c  # gradient of h_t: from later steps and from y_t
                        total = _plus(total, arrived * u[d])
                        grad_u[d] += arrived * b
                        arrived *= decay[d]
                        g[d] = arrived  # gradient of h_{t-1}
                        arrived *= h[d]  # the gradient of dt A
                        grad_step[d] += arrived * rate[d]
                        share[d] += arrived * steps[d]
                    grad_B[block, i, t, n] = total
                for d in range(width):  # in float64: a sum over all positions
                    grad_A[i, start + d, n] += share[d]
            for k in range(size):
                t = begin + k
                steps, grad_u, grad_step = kept[k, 0], kept[k, 3], kept[k, 4]
                for d in range(width):
                    grad_x[i, t, start + d] = grad_u[d] * steps[d]
                    # rate = A log2(e), so the gradient of dt through the decay lacks a factor ln 2.
                    grad_dt[i, t, start + d] = grad_step[d] * _LN_2 + grad_u[d] * x[i, t, start + d]
        for d in range(width):
            for n in range(d_state):
                grad_state[i, start + d, n] = each[n, 0, d]
