"""One position of `dplr`, `mlstm` and minGRU as machine code, for decoding on the CPU in float32 (extra `fast`).

A decoding step is a dozen operations on a few thousand numbers, and torch spends most of its time on calling them.
Arguments are not modified.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import (
    carray,  # pyright: ignore[reportPrivateImportUsage]
    types,
)
from numba.extending import intrinsic
from torch import Tensor

from zoo.ops.numba_loops import compiled, share_out
from zoo.ops.slstm_numba import sigmoid

_SHARED = 2**18  # elements of state from which threads share a step: below, waking them takes longer


def dplr(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, p: Tensor | None, r: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `zoo.ops.dplr.dplr_step`."""
    batch, heads, d_key, d_value = state.shape
    y, after = torch.empty(batch, heads, 1, d_value), torch.empty(state.shape)
    decay = torch.ones(batch, heads, 1, 1) if decay is None else decay
    erasure = (q, q) if p is None or r is None else (p, r)
    given = _ready(q, k, v, decay, *erasure, state, y, after)
    sizes = batch, heads, v.shape[1], d_key, d_value, decay.shape[2], p is not None
    _run(_dplr, batch * heads, state.numel(), *sizes, *(t.data_ptr() for t in given))
    return y, after


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_input: Tensor,
    log_forget: Tensor,
    memory: Tensor,
    normaliser: Tensor,
    largest: Tensor,
    eps: float,
    ceiling: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute `zoo.ops.mlstm.mlstm` of one position."""
    batch, heads, d_key, d_value = memory.shape
    y = torch.empty(batch, heads, 1, d_value)
    after = torch.empty(memory.shape), torch.empty(normaliser.shape), torch.empty(largest.shape)
    given = _ready(q, k, v, log_input, log_forget, memory, normaliser, largest, y, *after)
    sizes = batch, heads, d_key, d_value, eps, ceiling
    _run(_mlstm, batch * heads, memory.numel(), *sizes, *(t.data_ptr() for t in given))
    return y, *after


def min_gru(logit: Tensor, u: Tensor, state: Tensor) -> Tensor:
    """Compute `zoo.ops.linear_recurrence.min_gru` of one position: h, (batch, channels)."""
    h = torch.empty(state.shape)
    given = _ready(logit, u, state, h)
    _run(_min_gru, len(state), state.numel(), *state.shape, *(t.data_ptr() for t in given))
    return h


def _ready(*given: Tensor) -> list[Tensor]:
    """Return contiguous float32 tensors; the caller must keep them while a loop uses their addresses."""
    return [
        t if t.dtype == torch.float32 and t.is_contiguous() else t.detach().to(torch.float32).contiguous()
        for t in given
    ]


def _run(kernel: Any, n_tasks: int, size: int, *given: Any) -> None:
    if size < _SHARED:
        kernel(0, n_tasks, *given)
    else:
        share_out(kernel, n_tasks, *given)


# The loops. A task is a head of one row; in minGRU a row. Arrays are passed as addresses: converting a tensor and
# letting numba inspect the array takes as long as two heads of a step.

_F0, _F1, _HALF = (np.float32(value) for value in (0, 1, 0.5))


def _at(_: Any, address: Any) -> Any:
    """Return the pointer to float32 elements at an address."""

    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), make


_floats: Any = intrinsic(_at)  # compiled code calls it with the address alone


@compiled
def _dplr(first: int, last: int, *given: Any) -> None:
    batch, heads, value_heads, d_key, d_value, d_decay, erases, q, k, v, decay, p, r, state, y, after = given
    by_key, by_state, by_erased = (batch, heads, d_key), (batch, heads, d_key, d_value), (batch * erases, heads, d_key)
    q, k, p, r = (
        carray(_floats(q), by_key),
        carray(_floats(k), by_key),
        carray(_floats(p), by_erased),
        carray(_floats(r), by_erased),
    )
    v, y = carray(_floats(v), (batch, value_heads, d_value)), carray(_floats(y), (batch, heads, d_value))
    decay = carray(_floats(decay), (batch, heads, d_decay))
    state, after = carray(_floats(state), by_state), carray(_floats(after), by_state)
    erased = np.zeros(d_value, np.float32)
    for task in range(first, last):
        b, h = task // heads, task % heads
        before, now, out = state[b, h], after[b, h], y[b, h]
        value = v[b, h if value_heads > 1 else 0]
        for j in range(d_value):
            out[j] = _F0
            erased[j] = _F0
        if erases:  # erased = r^T diag(decay) S: the value under r after the decay
            for i in range(d_key):
                reads = r[b, h, i] * decay[b, h, i if d_decay > 1 else 0]
                for j in range(d_value):
                    erased[j] += reads * before[i, j]
        for i in range(d_key):
            kept, key, query = decay[b, h, i if d_decay > 1 else 0], k[b, h, i], q[b, h, i]
            erases_by = p[b, h, i] if erases else _F0
            for j in range(d_value):
                s = kept * before[i, j] + (key * value[j] - erases_by * erased[j])
                now[i, j] = s
                out[j] += query * s


@compiled
def _mlstm(first: int, last: int, *given: Any) -> None:
    batch, heads, d_key, d_value, eps, ceiling, q, k, v, log_input, log_forget, memory, normaliser, largest = given[:14]
    y, memory_after, normaliser_after, largest_after = given[14:]
    by_head, by_key, by_value = (batch, heads), (batch, heads, d_key), (batch, heads, d_value)
    by_state = (batch, heads, d_key, d_value)
    q, k = carray(_floats(q), by_key), carray(_floats(k), by_key)
    v, y = carray(_floats(v), by_value), carray(_floats(y), by_value)
    log_input, log_forget = carray(_floats(log_input), by_head), carray(_floats(log_forget), by_head)
    memory, memory_after = carray(_floats(memory), by_state), carray(_floats(memory_after), by_state)
    normaliser, normaliser_after = carray(_floats(normaliser), by_key), carray(_floats(normaliser_after), by_key)
    largest, largest_after = carray(_floats(largest), by_head), carray(_floats(largest_after), by_head)
    eps, ceiling = np.float32(eps), np.float32(ceiling)
    for task in range(first, last):
        b, h = task // heads, task % heads
        before, now, out, value = memory[b, h], memory_after[b, h], y[b, h], v[b, h]
        log_kept = log_forget[b, h] + largest[b, h]  # memory and normaliser are stored divided by exp(largest)
        m = max(log_kept, log_input[b, h])
        kept, written = np.float32(math.exp(log_kept - m)), np.float32(math.exp(log_input[b, h] - m))
        largest_after[b, h] = m
        along = _F0
        for j in range(d_value):
            out[j] = _F0
        for i in range(d_key):
            key, query = written * k[b, h, i], q[b, h, i]
            n = kept * normaliser[b, h, i] + key
            normaliser_after[b, h, i] = n
            along += query * n
            for j in range(d_value):
                s = kept * before[i, j] + key * value[j]
                now[i, j] = s
                out[j] += query * s
        # max(|n q|, 1) divided by exp(m): the 1 becomes exp(-m), bounded so that it stays finite.
        scale = _F1 / (max(abs(along), np.float32(math.exp(min(-m, ceiling)))) + eps)
        for j in range(d_value):
            out[j] *= scale


@compiled
def _min_gru(first: Any, last: Any, batch: Any, channels: Any, logit: Any, u: Any, state: Any, after: Any) -> None:
    shape = (batch, channels)
    logit, u = carray(_floats(logit), shape), carray(_floats(u), shape)
    state, after = carray(_floats(state), shape), carray(_floats(after), shape)
    for b in range(first, last):
        for c in range(channels):
            target = u[b, c] + _HALF if u[b, c] >= _F0 else sigmoid(u[b, c])
            after[b, c] = state[b, c] + sigmoid(logit[b, c]) * (target - state[b, c])
