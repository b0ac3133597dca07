"""The loops of `zoo.ops.slstm` as machine code: float32 on the CPU (extra `fast`).

A task is a head of one row, whose recurrent matrices stay in cache. Tasks write to disjoint memory, so results do not
depend on the number of threads. As in the selective scan, forward keeps one state per chunk, and backward recomputes
the others while the data of the chunk are in cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from zoo.ops.numba_loops import compiled, share_out
from zoo.ops.slstm import ARTANH, TANH

_CHUNK = 32  # steps between two states that forward keeps for backward


def forward(
    u: Tensor, recurrent: Tensor, state: Sequence[Tensor], valid: Tensor | None
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return h at every position, the last h, c, n and m, and c, n and m before each chunk. u must be contiguous."""
    batch, heads, seq_len, _, d_head = u.shape
    y = u.new_empty(batch, heads, seq_len, d_head)
    entering = u.new_empty(batch, heads, -(-seq_len // _CHUNK), 3, d_head)
    last = _copies(state)
    share_out(_forward, batch * heads, u, _from_h(recurrent), _moving(valid), y, entering, *last)
    return y, last, entering


def backward(
    grads: Sequence[Tensor],
    u: Tensor,
    recurrent: Tensor,
    h: Tensor,
    valid: Tensor | None,
    y: Tensor,
    entering: Tensor,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return gradients of u, of the recurrent matrices and of the state before the first position."""
    batch, heads = u.shape[:2]
    before = torch.cat((h.unsqueeze(2), y[:, :, :-1]), dim=2)
    grad_u = torch.empty_like(u, memory_format=torch.contiguous_format)
    first = _copies(grads[1:])
    to_h = rearrange(recurrent, "four heads out d_head -> heads (four out) d_head").contiguous()
    given = (u, _from_h(recurrent), to_h, before, _moving(valid), entering)
    share_out(_backward, batch * heads, grads[0].contiguous(), *given, grad_u, *first)
    outer = (grad_u.flatten(3).mT @ before).sum(0)
    return grad_u, rearrange(outer, "heads (four out) d_head -> four heads out d_head", four=4), first


def _copies(state: Sequence[Tensor]) -> list[Tensor]:
    return [t.clone(memory_format=torch.contiguous_format) for t in state]


def _from_h(recurrent: Tensor) -> Tensor:
    """Return the matrices with one row per element of h."""
    return rearrange(recurrent, "four heads out d_head -> heads d_head (four out)").contiguous()


def _moving(valid: Tensor | None) -> Tensor:
    """Return the mask of the positions that update the state; an empty one if all do."""
    return torch.empty(0, 0, dtype=torch.bool) if valid is None else valid.contiguous()


# The loops.

_WIDTH = 64  # channels computed at once
_F0, _F1, _F2 = (np.float32(value) for value in (0, 1, 2))
_LOG2_E = np.float32(math.log2(math.e))
# ln 2 in two parts, the first with so few digits that its small multiples are exact.
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
_TO_ROUND = np.float32(1.5 * 2**23)  # added to a number, the sum's low bits are the nearest integer
_LEAST = np.float32(-126 * math.log(2))  # below this an exponential is subnormal
# exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2, with least relative error, below 5e-9.
_EXP = tuple(np.float32(p) for p in (0.49999993437, 0.16666520476, 0.04166838987, 0.00836873573, 0.00138145600))
_TANH, _ARTANH = tuple(map(np.float32, TANH)), tuple(map(np.float32, ARTANH))


@compiled
def _exp(x: Any) -> Any:
    """exp(x) for x <= 0; zero if the result would be subnormal."""
    rounded = x * _LOG2_E + _TO_ROUND
    turns = rounded - _TO_ROUND
    r = (x - turns * _LN_2_HIGH) - turns * _LN_2_LOW
    p = (((_EXP[4] * r + _EXP[3]) * r + _EXP[2]) * r + _EXP[1]) * r + _EXP[0]
    p = p * (r * r) + r + _F1
    bits = np.float32(p).view(np.int32) + (np.float32(rounded).view(np.int32) << np.int32(23))
    return _F0 if x < _LEAST else np.int32(bits).view(np.float32)


@compiled
def _log1p(s: Any) -> Any:
    """log(1 + s) for s from 0 to 1: twice artanh(s / (2 + s))."""
    w = s / (_F2 + s)
    q = w * w
    p = ((_ARTANH[3] * q + _ARTANH[2]) * q + _ARTANH[1]) * q + _ARTANH[0]
    return _F2 * (w + w * q * p)


@compiled
def _tanh(z: Any) -> Any:
    """tanh(z), accurate for small z."""
    q = z * z
    p = (((_TANH[4] * q + _TANH[3]) * q + _TANH[2]) * q + _TANH[1]) * q + _TANH[0]
    s = _exp(-_F2 * abs(z))
    away = (_F1 - s) / (_F1 + s)
    return z + z * q * p if abs(z) < np.float32(0.625) else (away if z > _F0 else -away)


@compiled
def sigmoid(z: Any) -> Any:
    """1 / (1 + exp(-z))."""
    s = _exp(-abs(z))
    return (_F1 if z > _F0 else s) / (_F1 + s)


@compiled
def _add_product(total: Any, weights: Any, rows: Any) -> None:
    """total += sum_k weights[k] rows[k], four rows at a time, which reads and writes the total a quarter as often."""
    whole = len(weights) // 4 * 4
    for k in range(0, whole, 4):
        a, b, c, d = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        row_a, row_b, row_c, row_d = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        for j in range(len(total)):
            total[j] += (a * row_a[j] + b * row_b[j]) + (c * row_c[j] + d * row_d[j])
    for k in range(whole, len(weights)):
        weight, row = weights[k], rows[k]
        for j in range(len(total)):
            total[j] += weight * row[j]


# The operands of a step are rows of one buffer, so the compiler knows without checks that rows do not overlap.
_I, _F, _Z, _O, _M, _N, _C, _H, _FORGETS, _ROWS = range(10)


@compiled
def _step(w: Any) -> None:
    """Advance one position in place.

    Rows on entry: log i, the logits of f, z and o, and m, n, c. Rows on exit: i, f, tanh(z), sigmoid(o), m, n, c, h,
    and sigmoid(-logit of f), the slope of log f.
    """
    for k in range(_WIDTH):
        log_i, logit = w[_I, k], w[_F, k]
        small = _exp(-abs(logit))
        log_kept = min(logit, _F0) - _log1p(small) + w[_M, k]
        falls = _exp(-abs(log_i - log_kept))  # one of i and f is 1
        written = log_i >= log_kept
        i, f = _F1 if written else falls, falls if written else _F1
        z, o = _tanh(w[_Z, k]), sigmoid(w[_O, k])
        c, n = f * w[_C, k] + i * z, f * w[_N, k] + i
        w[_M, k] = log_i if written else log_kept
        w[_N, k] = n
        w[_C, k] = c
        w[_H, k] = o / n * c
        w[_I, k] = i
        w[_F, k] = f
        w[_Z, k] = z
        w[_O, k] = o
        w[_FORGETS, k] = (small if logit > _F0 else _F1) / (_F1 + small)


@partial(compiled, label="the sLSTM")
def _forward(first: int, last: int, *arrays: Any) -> None:
    """Fill y and entering, and advance the state, for the tasks first, ..., last - 1."""
    u, from_h, valid, y, entering, h, c, n, m = arrays
    batch, _, seq_len, _, d_head = u.shape
    gates = np.empty(4 * d_head, np.float32)
    w = np.zeros((_ROWS, _WIDTH), np.float32)
    for task in range(first, last):
        head, row = task // batch, task % batch
        for t in range(seq_len):
            if t % _CHUNK == 0:
                for k in range(d_head):
                    entering[row, head, t // _CHUNK, 0, k] = c[row, head, k]
                    entering[row, head, t // _CHUNK, 1, k] = n[row, head, k]
                    entering[row, head, t // _CHUNK, 2, k] = m[row, head, k]
            if len(valid) == 0 or valid[row, t]:
                for g in range(4):
                    for k in range(d_head):
                        gates[g * d_head + k] = u[row, head, t, g, k]
                _add_product(gates, h[row, head], from_h[head])
                for start in range(0, d_head, _WIDTH):
                    width = min(_WIDTH, d_head - start)
                    for g in range(4):
                        for k in range(width):
                            w[g, k] = gates[g * d_head + start + k]
                    for k in range(width):
                        w[_M, k] = m[row, head, start + k]
                        w[_N, k] = n[row, head, start + k]
                        w[_C, k] = c[row, head, start + k]
                    _step(w)
                    for k in range(width):
                        m[row, head, start + k] = w[_M, k]
                        n[row, head, start + k] = w[_N, k]
                        c[row, head, start + k] = w[_C, k]
                        h[row, head, start + k] = w[_H, k]
            for k in range(d_head):
                y[row, head, t, k] = h[row, head, k]


@partial(compiled, label="the sLSTM")
def _backward(first: int, last: int, *arrays: Any) -> None:
    """Fill grad_u, and turn the gradients of the last state into gradients of the first."""
    grad_y, u, from_h, to_h, before, valid, entering, grad_u, grad_h, grad_c, grad_n, grad_m = arrays
    batch, _, seq_len, d_head = grad_y.shape
    n_blocks = (d_head + _WIDTH - 1) // _WIDTH
    gates = np.empty(4 * d_head, np.float32)
    kept = np.zeros((_CHUNK + 1, n_blocks, _ROWS, _WIDTH), np.float32)  # the state before the chunk, then each step
    g = np.zeros((8, _WIDTH), np.float32)  # gradients of h, c, n and m, and of the four gates
    for task in range(first, last):
        head, row = task // batch, task % batch
        for chunk in range((seq_len - 1) // _CHUNK, -1, -1):
            begin = chunk * _CHUNK
            size = min(_CHUNK, seq_len - begin)
            for block in range(n_blocks):
                start = block * _WIDTH
                for k in range(min(_WIDTH, d_head - start)):
                    kept[0, block, _C, k] = entering[row, head, chunk, 0, start + k]
                    kept[0, block, _N, k] = entering[row, head, chunk, 1, start + k]
                    kept[0, block, _M, k] = entering[row, head, chunk, 2, start + k]
            for s in range(size):
                t = begin + s
                moves = len(valid) == 0 or valid[row, t]
                if moves:
                    for gate in range(4):
                        for k in range(d_head):
                            gates[gate * d_head + k] = u[row, head, t, gate, k]
                    _add_product(gates, before[row, head, t], from_h[head])
                for block in range(n_blocks):
                    start = block * _WIDTH
                    w, earlier = kept[s + 1, block], kept[s, block]
                    for each in range(_M, _H):
                        for k in range(_WIDTH):
                            w[each, k] = earlier[each, k]
                    if moves:
                        for gate in range(4):
                            for k in range(min(_WIDTH, d_head - start)):
                                w[gate, k] = gates[gate * d_head + start + k]
                        _step(w)
            for s in range(size - 1, -1, -1):
                t = begin + s
                gh = grad_h[row, head]
                if len(valid) and not valid[row, t]:
                    for k in range(d_head):
                        gh[k] += grad_y[row, head, t, k]
                    for gate in range(4):
                        for k in range(d_head):
                            grad_u[row, head, t, gate, k] = _F0
                    continue
                for block in range(n_blocks):
                    start = block * _WIDTH
                    width = min(_WIDTH, d_head - start)
                    for k in range(width):
                        g[0, k] = gh[start + k] + grad_y[row, head, t, start + k]
                        g[1, k] = grad_c[row, head, start + k]
                        g[2, k] = grad_n[row, head, start + k]
                        g[3, k] = grad_m[row, head, start + k]
                        gh[start + k] = _F0
                    _step_backward(kept[s + 1, block], kept[s, block], g)
                    for k in range(width):
                        grad_c[row, head, start + k] = g[1, k]
                        grad_n[row, head, start + k] = g[2, k]
                        grad_m[row, head, start + k] = g[3, k]
                    for gate in range(4):
                        for k in range(width):
                            grad_u[row, head, t, gate, start + k] = g[4 + gate, k]
                            gates[gate * d_head + start + k] = g[4 + gate, k]
                _add_product(gh, gates, to_h[head])


@compiled
def _step_backward(w: Any, before: Any, g: Any) -> None:
    """Turn gradients of h and of the next c, n and m into gradients of the previous ones and of the four gates."""
    for k in range(_WIDTH):
        i, f, z, o = w[_I, k], w[_F, k], w[_Z, k], w[_O, k]
        inverse = _F1 / w[_N, k]
        scale = o * inverse
        h = scale * w[_C, k]
        of_c = g[1, k] + g[0, k] * scale
        of_n = g[2, k] - g[0, k] * h * inverse
        by_f = (of_c * before[_C, k] + of_n * before[_N, k]) * f
        by_i = (of_c * z + of_n) * i
        written = i == _F1  # m equals the larger of the two exponents, which gets m's gradient
        of_kept = by_f if written else g[3, k] - by_i
        g[4, k] = g[3, k] - by_f if written else by_i
        g[5, k] = of_kept * w[_FORGETS, k]
        g[6, k] = of_c * i * (_F1 - z * z)
        g[7, k] = g[0, k] * h * (_F1 - o)
        g[1, k] = of_c * f
        g[2, k] = of_n * f
        g[3, k] = of_kept
