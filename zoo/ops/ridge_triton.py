"""The conjugate gradients of `zoo.ops.ridge` as Triton kernels for CUDA: one launch for any number of steps.

A program solves for the queries of one chunk, then for further chunks. Each step reads the results of the step before
in tiles from the multiprocessor's caches, so any width fits. The forward pass keeps three vectors per query and
overwrites them in each step. The backward pass repeats the steps, keeps all their vectors and walks back: it
differentiates the steps taken, even far from the solution. A query whose residual is roundoff takes no further step.
All products are in full float32.

Under TRITON_INTERPRET=1 the same code runs on the CPU: slowly, for tests.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 256
"""Most concurrent programs, which bounds the memory for the steps of the backward pass."""
BLOCK = 64
"""Most channels of a head that are computed at once."""

# `no_type_check` hides the kernels from the tests' shape checker: triton compiles their source, not the functions.


@triton.jit
@no_type_check
def _tile(ptr, first, size, d_key, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Load channels `first` and following of a (size, d_key) matrix."""
    row, d = tl.arange(0, ROWS)[:, None], first + tl.arange(0, BLOCK)[None, :]
    return tl.load(ptr + row * d_key + d, mask=(row < size) & (d < d_key), other=0.0)


@triton.jit
@no_type_check
def _tile_t(ptr, first, size, d_key, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Load the transpose of `_tile`."""
    row, d = tl.arange(0, ROWS)[None, :], first + tl.arange(0, BLOCK)[:, None]
    return tl.load(ptr + row * d_key + d, mask=(row < size) & (d < d_key), other=0.0)


@triton.jit
@no_type_check
def _put(ptr, first, value, size, d_key, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Store a tile as `_tile` loads it."""
    row, d = tl.arange(0, ROWS)[:, None], first + tl.arange(0, BLOCK)[None, :]
    tl.store(ptr + row * d_key + d, value, mask=(row < size) & (d < d_key))


@triton.jit
@no_type_check
def _solve(
    q_ptr, k_ptr, weights_ptr, since_ptr, entering_ptr, ridge_ptr, x_ptr, r_ptr, p_ptr, w_ptr, square_ptr, curve_ptr,
    size, d_key, steps, kept, EPS: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Solve one chunk by conjugate gradients. Each step stores r, p and the image w of p `kept` elements further on."""
    row, part = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here = row < size
    square = tl.zeros((ROWS,), tl.float32)
    for first in range(0, d_key, BLOCK):
        q = _tile(q_ptr, first, size, d_key, ROWS, BLOCK)
        _put(r_ptr, first, q, size, d_key, ROWS, BLOCK)
        _put(p_ptr, first, q, size, d_key, ROWS, BLOCK)
        _put(x_ptr, first, tl.zeros_like(q), size, d_key, ROWS, BLOCK)
        square += tl.sum(q * q, axis=1)
    floor = square * EPS * EPS + TINY
    pair = row[:, None] * size + row[None, :]
    weights = tl.load(weights_ptr + pair, mask=here[:, None] & here[None, :], other=0.0)
    since = tl.load(since_ptr + row, mask=here, other=0.0)
    tl.store(square_ptr + row, square)
    for step in range(steps):
        tl.debug_barrier()  # a thread reads what others have written
        scores = tl.zeros((ROWS, ROWS), tl.float32)
        for first in range(0, d_key, BLOCK):
            p = _tile(p_ptr, first, size, d_key, ROWS, BLOCK)
            scores = tl.dot(p, _tile_t(k_ptr, first, size, d_key, ROWS, BLOCK), scores, input_precision="ieee")
        scores *= weights
        curve = tl.zeros((ROWS,), tl.float32)
        for first in range(0, d_key, BLOCK):
            d = first + part[None, :]
            image = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, d_key, BLOCK):
                key = start + part[:, None]
                inner = (key < d_key) & (d < d_key)
                state = tl.load(entering_ptr + key * d_key + d, mask=inner, other=0.0)
                image = tl.dot(_tile(p_ptr, start, size, d_key, ROWS, BLOCK), state, image, input_precision="ieee")
            k = _tile(k_ptr, first, size, d_key, ROWS, BLOCK)
            image = tl.dot(scores, k, since[:, None] * image, input_precision="ieee")
            p = _tile(p_ptr, first, size, d_key, ROWS, BLOCK)
            image += tl.load(ridge_ptr + d, mask=d < d_key, other=0.0) * p
            curve += tl.sum(p * image, axis=1)
            _put(w_ptr, first, image, size, d_key, ROWS, BLOCK)
        curve += floor
        length = tl.where(square > floor, square / curve, 0.0)
        before, square = square, tl.zeros((ROWS,), tl.float32)
        tl.debug_barrier()
        for first in range(0, d_key, BLOCK):
            x = _tile(x_ptr, first, size, d_key, ROWS, BLOCK)
            x += length[:, None] * _tile(p_ptr, first, size, d_key, ROWS, BLOCK)
            r = _tile(r_ptr, first, size, d_key, ROWS, BLOCK)
            r -= length[:, None] * _tile(w_ptr, first, size, d_key, ROWS, BLOCK)
            _put(x_ptr, first, x, size, d_key, ROWS, BLOCK)
            _put(r_ptr + kept, first, r, size, d_key, ROWS, BLOCK)
            square += tl.sum(r * r, axis=1)
        growth = tl.where(before > floor, square / (before + floor), 0.0)
        tl.debug_barrier()
        for first in range(0, d_key, BLOCK):
            p = growth[:, None] * _tile(p_ptr, first, size, d_key, ROWS, BLOCK)
            p += _tile(r_ptr + kept, first, size, d_key, ROWS, BLOCK)
            _put(p_ptr + kept, first, p, size, d_key, ROWS, BLOCK)
        r_ptr += kept
        p_ptr += kept
        w_ptr += kept
        tl.store(curve_ptr + step * ROWS + row, curve)
        tl.store(square_ptr + (step + 1) * ROWS + row, square)
    tl.debug_barrier()
    return floor


@triton.jit
@no_type_check
def _forward(
    q_ptr, k_ptr, weights_ptr, since_ptr, entering_ptr, ridge_ptr, x_ptr, vectors_ptr, numbers_ptr,
    total, heads, chunks, size, d_key, steps,
    EPS: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    vector = size * d_key
    r_ptr = vectors_ptr + program * 3 * vector
    numbers_ptr += program * (2 * steps + 1) * ROWS
    for chunk in range(program, total, tl.num_programs(0)):
        chunk = tl.cast(chunk, tl.int64)
        _solve(
            q_ptr + chunk * vector, k_ptr + chunk * vector, weights_ptr + chunk * size * size, since_ptr + chunk * size,
            entering_ptr + chunk * d_key * d_key, ridge_ptr + chunk // chunks % heads * d_key, x_ptr + chunk * vector,
            r_ptr, r_ptr + vector, r_ptr + 2 * vector, numbers_ptr, numbers_ptr + (steps + 1) * ROWS,
            size, d_key, steps, 0, EPS, TINY, ROWS, BLOCK,
        )  # fmt: skip


@triton.jit
@no_type_check
def _backward(
    grad_ptr, q_ptr, k_ptr, weights_ptr, since_ptr, entering_ptr, ridge_ptr,
    of_q_ptr, of_k_ptr, of_weights_ptr, of_since_ptr, of_entering_ptr, of_ridge_ptr, vectors_ptr, numbers_ptr,
    total, heads, chunks, size, d_key, steps,
    EPS: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients (`of_...`; the ridge's per chunk). Before, those of k, state and ridge must be zero."""
    program = tl.program_id(0).to(tl.int64)
    vector = size * d_key
    of_r_ptr = vectors_ptr + program * (3 * steps + 5) * vector
    of_p_ptr, of_w_ptr, r_ptr = of_r_ptr + vector, of_r_ptr + 2 * vector, of_r_ptr + 3 * vector
    p_ptr, w_ptr = r_ptr + (steps + 1) * vector, r_ptr + 2 * (steps + 1) * vector
    square_ptr = numbers_ptr + program * (2 * steps + 1) * ROWS
    curve_ptr = square_ptr + (steps + 1) * ROWS
    row, part = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here = row < size
    pair, pair_t = row[:, None] * size + row[None, :], row[None, :] * size + row[:, None]
    both = here[:, None] & here[None, :]
    for chunk in range(program, total, tl.num_programs(0)):
        chunk = tl.cast(chunk, tl.int64)
        at, at_k, at_state = chunk * vector, k_ptr + chunk * vector, chunk * d_key * d_key
        at_ridge = ridge_ptr + chunk // chunks % heads * d_key
        # of_q holds the solution until its gradient is computed.
        floor = _solve(
            q_ptr + at, at_k, weights_ptr + chunk * size * size, since_ptr + chunk * size, entering_ptr + at_state,
            at_ridge, of_q_ptr + at, r_ptr, p_ptr, w_ptr, square_ptr, curve_ptr,
            size, d_key, steps, vector, EPS, TINY, ROWS, BLOCK,
        )  # fmt: skip
        weights = tl.load(weights_ptr + chunk * size * size + pair, mask=both, other=0.0)
        weights_t = tl.load(weights_ptr + chunk * size * size + pair_t, mask=both, other=0.0)
        since = tl.load(since_ptr + chunk * size + row, mask=here, other=0.0)
        of_weights_t, of_since = tl.zeros((ROWS, ROWS), tl.float32), tl.zeros((ROWS,), tl.float32)
        of_square = tl.zeros((ROWS,), tl.float32)
        for first in range(0, d_key, BLOCK):
            nothing = tl.zeros((ROWS, BLOCK), tl.float32)
            _put(of_r_ptr, first, nothing, size, d_key, ROWS, BLOCK)
            _put(of_p_ptr, first, nothing, size, d_key, ROWS, BLOCK)
        for back in range(steps):
            step = tl.cast(steps - 1 - back, tl.int64)
            p_now, w_now, r_next = p_ptr + step * vector, w_ptr + step * vector, r_ptr + (step + 1) * vector
            before = tl.load(square_ptr + step * ROWS + row)
            after = tl.load(square_ptr + (step + 1) * ROWS + row)
            curve = tl.load(curve_ptr + step * ROWS + row)
            moves = before > floor
            length, growth = tl.where(moves, before / curve, 0.0), tl.where(moves, after / (before + floor), 0.0)
            tl.debug_barrier()  # a thread reads what others have written
            of_growth = tl.zeros((ROWS,), tl.float32)
            for first in range(0, d_key, BLOCK):
                p = _tile(p_now, first, size, d_key, ROWS, BLOCK)
                of_growth += tl.sum(_tile(of_p_ptr, first, size, d_key, ROWS, BLOCK) * p, axis=1)
            of_growth = tl.where(moves, of_growth / (before + floor), 0.0)
            of_after, of_square = of_square + of_growth, -of_growth * growth
            of_length = tl.zeros((ROWS,), tl.float32)
            for first in range(0, d_key, BLOCK):
                of_r = _tile(of_r_ptr, first, size, d_key, ROWS, BLOCK)
                of_r += _tile(of_p_ptr, first, size, d_key, ROWS, BLOCK)
                of_r += 2.0 * of_after[:, None] * _tile(r_next, first, size, d_key, ROWS, BLOCK)
                _put(of_r_ptr, first, of_r, size, d_key, ROWS, BLOCK)
                grad = _tile(grad_ptr + at, first, size, d_key, ROWS, BLOCK)
                gained = grad * _tile(p_now, first, size, d_key, ROWS, BLOCK)
                of_length += tl.sum(gained - of_r * _tile(w_now, first, size, d_key, ROWS, BLOCK), axis=1)
            of_length = tl.where(moves, of_length / curve, 0.0)
            of_square += of_length
            of_curve = -of_length * length
            tl.debug_barrier()
            for first in range(0, d_key, BLOCK):
                p, w = _tile(p_now, first, size, d_key, ROWS, BLOCK), _tile(w_now, first, size, d_key, ROWS, BLOCK)
                of_r = _tile(of_r_ptr, first, size, d_key, ROWS, BLOCK)
                of_p = growth[:, None] * _tile(of_p_ptr, first, size, d_key, ROWS, BLOCK)
                of_p += length[:, None] * _tile(grad_ptr + at, first, size, d_key, ROWS, BLOCK)
                _put(of_p_ptr, first, of_p + of_curve[:, None] * w, size, d_key, ROWS, BLOCK)
                _put(of_w_ptr, first, of_curve[:, None] * p - length[:, None] * of_r, size, d_key, ROWS, BLOCK)
            tl.debug_barrier()
            scores_t, given = tl.zeros((ROWS, ROWS), tl.float32), tl.zeros((ROWS, ROWS), tl.float32)
            given_t = tl.zeros((ROWS, ROWS), tl.float32)
            for first in range(0, d_key, BLOCK):
                k, k_t = _tile(at_k, first, size, d_key, ROWS, BLOCK), _tile_t(at_k, first, size, d_key, ROWS, BLOCK)
                p_t = _tile_t(p_now, first, size, d_key, ROWS, BLOCK)
                of_w = _tile(of_w_ptr, first, size, d_key, ROWS, BLOCK)
                of_w_t = _tile_t(of_w_ptr, first, size, d_key, ROWS, BLOCK)
                scores_t = tl.dot(k, p_t, scores_t, input_precision="ieee")
                given = tl.dot(of_w, k_t, given, input_precision="ieee")
                given_t = tl.dot(k, of_w_t, given_t, input_precision="ieee")
            of_weights_t += scores_t * given_t
            scores_t, given, given_t = scores_t * weights_t, given * weights, given_t * weights_t
            for first in range(0, d_key, BLOCK):
                d = first + part
                p = _tile(p_now, first, size, d_key, ROWS, BLOCK)
                of_w = _tile(of_w_ptr, first, size, d_key, ROWS, BLOCK)
                p_t = _tile_t(p_now, first, size, d_key, ROWS, BLOCK) * since[None, :]
                through = tl.zeros((ROWS, BLOCK), tl.float32)
                for start in range(0, d_key, BLOCK):
                    other = start + part
                    inside = (d[:, None] < d_key) & (other[None, :] < d_key)
                    of_other = _tile(of_w_ptr, start, size, d_key, ROWS, BLOCK)
                    to = of_entering_ptr + at_state + d[:, None] * d_key + other[None, :]
                    of_state = tl.load(to, mask=inside, other=0.0)
                    tl.store(to, tl.dot(p_t, of_other, of_state, input_precision="ieee"), mask=inside)
                    inside = (d[None, :] < d_key) & (other[:, None] < d_key)
                    from_state = entering_ptr + at_state + d[None, :] * d_key + other[:, None]
                    state_t = tl.load(from_state, mask=inside, other=0.0)
                    through = tl.dot(of_other, state_t, through, input_precision="ieee")
                of_since += tl.sum(p * through, axis=1)
                k = _tile(at_k, first, size, d_key, ROWS, BLOCK)
                of_p = tl.dot(given, k, since[:, None] * through, input_precision="ieee")
                of_p += tl.load(at_ridge + d, mask=d < d_key, other=0.0)[None, :] * of_w
                of_p += _tile(of_p_ptr, first, size, d_key, ROWS, BLOCK)
                _put(of_p_ptr, first, of_p, size, d_key, ROWS, BLOCK)
                of_k = _tile(of_k_ptr + at, first, size, d_key, ROWS, BLOCK)
                of_k = tl.dot(scores_t, of_w, of_k, input_precision="ieee")
                of_k = tl.dot(given_t, p, of_k, input_precision="ieee")
                _put(of_k_ptr + at, first, of_k, size, d_key, ROWS, BLOCK)
                to = of_ridge_ptr + chunk * d_key + d
                of_ridge = tl.load(to, mask=d < d_key, other=0.0) + tl.sum(of_w * p, axis=0)
                tl.store(to, of_ridge, mask=d < d_key)
        tl.debug_barrier()
        tl.store(of_weights_ptr + chunk * size * size + pair_t, of_weights_t, mask=both)
        tl.store(of_since_ptr + chunk * size + row, of_since, mask=here)
        for first in range(0, d_key, BLOCK):
            of_q = _tile(of_r_ptr, first, size, d_key, ROWS, BLOCK) + _tile(of_p_ptr, first, size, d_key, ROWS, BLOCK)
            of_q += 2.0 * of_square[:, None] * _tile(q_ptr + at, first, size, d_key, ROWS, BLOCK)
            _put(of_q_ptr + at, first, of_q, size, d_key, ROWS, BLOCK)
        tl.debug_barrier()


def forward(
    q: Tensor, k: Tensor, weights: Tensor, since_start: Tensor, entering: Tensor, ridge: Tensor, steps: int
) -> Tensor:
    """Return the solutions. Arguments are as in `_loop` of zoo.ops.ridge, all contiguous and float32."""
    x = torch.empty_like(q)
    _launch(_forward, 3, steps, (q, k, weights, since_start, entering, ridge), (x,))
    return x


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    weights: Tensor,
    since_start: Tensor,
    entering: Tensor,
    ridge: Tensor,
    steps: int,
) -> tuple[Tensor, ...]:
    """Return the gradients of the six tensors; the ridge's is per chunk, (batch, heads, chunks, d_key)."""
    of_q, of_weights, of_since = (torch.empty_like(t) for t in (q, weights, since_start))
    of_k, of_entering, of_ridge = torch.zeros_like(k), torch.zeros_like(entering), torch.zeros_like(k[:, :, :, 0])
    results = of_q, of_k, of_weights, of_since, of_entering, of_ridge
    _launch(_backward, 3 * steps + 5, steps, (grad, q, k, weights, since_start, entering, ridge), results)
    return results


def _launch(kernel: Any, vectors: int, steps: int, given: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    q = given[-6]
    batch, heads, chunks, size, d_key = q.shape
    total = batch * heads * chunks
    programs, rows = min(PROGRAMS, total), max(16, triton.next_power_of_2(size))
    scratch = q.new_empty(programs * vectors * size * d_key), q.new_empty(programs * (2 * steps + 1) * rows)
    limits = torch.finfo(torch.float32)
    sizes = {"EPS": limits.eps, "TINY": limits.tiny, "ROWS": rows}
    block = min(BLOCK, max(16, triton.next_power_of_2(d_key)))
    with torch.cuda.device_of(q):  # triton launches on the current device, not on the tensors'
        kernel[(programs,)](*given, *results, *scratch, total, heads, chunks, size, d_key, steps, **sizes, BLOCK=block)
