"""One position of `dplr`, `mlstm` and minGRU as machine code, for decoders on the CPU in float32 (extra `fast`).

A decoder's step is a dozen operations on a few thousand numbers, of which calling takes torch the most time.
Nothing that is given is written to.
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

_SHARED = 2**18  # numbers of state from which threads share a step: below, to wake them takes longer


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
    _run(_dplr_at, batch * heads, state.numel(), *sizes, *(t.data_ptr() for t in given))
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
    _run(_mlstm_at, batch * heads, memory.numel(), *sizes, *(t.data_ptr() for t in given))
    return y, *after


def min_gru(logit: Tensor, u: Tensor, state: Tensor) -> Tensor:
    """h = (1 - z) state + z g(u), (batch, channels), z = sigmoid(logit), g as `zoo.ops.activation.half_linear`."""
    h = torch.empty(state.shape)
    given = _ready(logit, u, state, h)
    _run(_min_gru_at, len(state), state.numel(), *state.shape, *(t.data_ptr() for t in given))
    return h


def _ready(*given: Tensor) -> list[Tensor]:
    """Return float32 tensors whose numbers lie one after the other; to be kept while a loop has their addresses."""
    return [
        t if t.dtype == torch.float32 and t.is_contiguous() else t.detach().to(torch.float32).contiguous()
        for t in given
    ]


def _run(kernel: Any, n_tasks: int, size: int, *given: Any) -> None:
    if size < _SHARED:
        kernel(0, n_tasks, *given)
    else:
        share_out(kernel, n_tasks, *given)


# The loops. A task is a head of one row; in minGRU a row.

_F0, _F1, _HALF = (np.float32(value) for value in (0, 1, 0.5))


@compiled
def _dplr(
    first: Any, last: Any, q: Any, k: Any, v: Any, decay: Any, p: Any, r: Any, state: Any, y: Any, after: Any
) -> None:
    heads, d_key, d_value = state.shape[1:]
    own_values, own_decays, erases = v.shape[1] > 1, decay.shape[2] > 1, len(p) > 0
    erased = np.zeros(d_value, np.float32)
    for task in range(first, last):
        b, h = task // heads, task % heads
        before, now, out = state[b, h], after[b, h], y[b, h, 0]
        value = v[b, h if own_values else 0, 0]
        for j in range(d_value):
            out[j] = _F0
            erased[j] = _F0
        if erases:
            for i in range(d_key):
                reads = r[b, h, 0, i] * decay[b, h, i if own_decays else 0, 0]
                for j in range(d_value):
                    erased[j] += reads * before[i, j]
        for i in range(d_key):
            kept, key, query = decay[b, h, i if own_decays else 0, 0], k[b, h, 0, i], q[b, h, 0, i]
            erases_by = p[b, h, 0, i] if erases else _F0
            for j in range(d_value):
                s = kept * before[i, j] + (key * value[j] - erases_by * erased[j])
                now[i, j] = s
                out[j] += query * s


@compiled
def _mlstm(
    first: Any,
    last: Any,
    q: Any,
    k: Any,
    v: Any,
    log_input: Any,
    log_forget: Any,
    memory: Any,
    normaliser: Any,
    largest: Any,
    eps: Any,
    ceiling: Any,
    y: Any,
    memory_after: Any,
    normaliser_after: Any,
    largest_after: Any,
) -> None:
    heads, d_key, d_value = memory.shape[1:]
    for task in range(first, last):
        b, h = task // heads, task % heads
        before, now, out, value = memory[b, h], memory_after[b, h], y[b, h, 0], v[b, h, 0]
        log_kept = log_forget[b, h, 0] + largest[b, h]
        m = max(log_kept, log_input[b, h, 0])
        kept, written = np.float32(math.exp(log_kept - m)), np.float32(math.exp(log_input[b, h, 0] - m))
        largest_after[b, h] = m
        along = _F0
        for j in range(d_value):
            out[j] = _F0
        for i in range(d_key):
            key, query = written * k[b, h, 0, i], q[b, h, 0, i]
            n = kept * normaliser[b, h, i] + key
            normaliser_after[b, h, i] = n
            along += query * n
            for j in range(d_value):
                s = kept * before[i, j] + key * value[j]
                now[i, j] = s
                out[j] += query * s
        scale = _F1 / (max(abs(along), np.float32(math.exp(min(-m, ceiling)))) + eps)
        for j in range(d_value):
            out[j] *= scale


@compiled
def _min_gru(first: Any, last: Any, logit: Any, u: Any, state: Any, after: Any) -> None:
    for b in range(first, last):
        for c in range(state.shape[1]):
            x = u[b, 0, c]
            target = x + _HALF if x >= _F0 else sigmoid(x)
            after[b, c] = state[b, c] + sigmoid(logit[b, 0, c]) * (target - state[b, c])


# The same from addresses: to make an array of a tensor and have numba look at it takes as long as two heads of a step.


def _at(_: Any, address: Any) -> Any:
    """Return the pointer to float32 numbers at an address."""

    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), make


_floats: Any = intrinsic(_at)  # in compiled code a function of the address only


@compiled
def _dplr_at(
    first: Any,
    last: Any,
    batch: Any,
    heads: Any,
    value_heads: Any,
    d_key: Any,
    d_value: Any,
    d_decay: Any,
    erases: Any,
    q: Any,
    k: Any,
    v: Any,
    decay: Any,
    p: Any,
    r: Any,
    state: Any,
    y: Any,
    after: Any,
) -> None:
    by_key, by_state = (batch, heads, 1, d_key), (batch, heads, d_key, d_value)
    erased = (batch if erases else 0, heads, 1, d_key)
    _dplr(
        first,
        last,
        carray(_floats(q), by_key),
        carray(_floats(k), by_key),
        carray(_floats(v), (batch, value_heads, 1, d_value)),
        carray(_floats(decay), (batch, heads, d_decay, 1)),
        carray(_floats(p), erased),
        carray(_floats(r), erased),
        carray(_floats(state), by_state),
        carray(_floats(y), (batch, heads, 1, d_value)),
        carray(_floats(after), by_state),
    )


@compiled
def _mlstm_at(
    first: Any,
    last: Any,
    batch: Any,
    heads: Any,
    d_key: Any,
    d_value: Any,
    eps: Any,
    ceiling: Any,
    q: Any,
    k: Any,
    v: Any,
    log_input: Any,
    log_forget: Any,
    memory: Any,
    normaliser: Any,
    largest: Any,
    y: Any,
    memory_after: Any,
    normaliser_after: Any,
    largest_after: Any,
) -> None:
    by_key, by_state = (batch, heads, 1, d_key), (batch, heads, d_key, d_value)
    _mlstm(
        first,
        last,
        carray(_floats(q), by_key),
        carray(_floats(k), by_key),
        carray(_floats(v), (batch, heads, 1, d_value)),
        carray(_floats(log_input), (batch, heads, 1)),
        carray(_floats(log_forget), (batch, heads, 1)),
        carray(_floats(memory), by_state),
        carray(_floats(normaliser), (batch, heads, d_key)),
        carray(_floats(largest), (batch, heads)),
        np.float32(eps),
        np.float32(ceiling),
        carray(_floats(y), (batch, heads, 1, d_value)),
        carray(_floats(memory_after), by_state),
        carray(_floats(normaliser_after), (batch, heads, d_key)),
        carray(_floats(largest_after), (batch, heads)),
    )


@compiled
def _min_gru_at(first: Any, last: Any, batch: Any, channels: Any, logit: Any, u: Any, state: Any, after: Any) -> None:
    _min_gru(
        first,
        last,
        carray(_floats(logit), (batch, 1, channels)),
        carray(_floats(u), (batch, 1, channels)),
        carray(_floats(state), (batch, channels)),
        carray(_floats(after), (batch, channels)),
    )
