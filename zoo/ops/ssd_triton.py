"""State space duality as Triton kernels (`zoo.ops.ssd` on CUDA): two launches forward, four backward.

    S_{c+1} = end_c S_c + sum_j until_j k_j v_j^T                      `_states`, chunk after chunk
    y_i = since_i S_c^T q_i + sum_{j <= i} D_ij (q_i . k_j) v_j        `_outputs`, all chunks at once

With T the sum of the log-decays from the start of a chunk, D_ij = exp(T_i - T_j), since_i = exp(T_i), until_j =
exp(T_end - T_j) and end = exp(T_end). T is float64, so that differences of two sums keep float32's digits. The gradient
that arrives at the states follows the first recurrence, last chunk first, with since_i q_i grad_i^T.

Operands of products are rounded to the dtype of the kept states, which has two bytes; sums are float32. If a product is
needed transposed, it is computed again: Triton before 3.7 miscompiles the transpose of an accumulator. Inputs may have
any strides, but the last must be 1. Under TRITON_INTERPRET=1 the same code runs on the CPU.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from zoo.ops.ssd import time_first

# Channels of a tile, at least 64: ptxas 12.8 (Triton 3.6) miscompiles products of width 32 with four warps for an H200.
BLOCK = 64


# `no_type_check` hides the kernels from the tests' shape checker: triton compiles their source, not the functions.


@triton.jit
@no_type_check
def tile(ptr, rows, columns, row_stride, column_stride, n_rows, n_columns):
    """Load ptr[rows, columns], zero beyond the edges."""
    inside = (rows[:, None] < n_rows) & (columns[None, :] < n_columns)
    return tl.load(ptr + rows[:, None] * row_stride + columns[None, :] * column_stride, mask=inside, other=0.0)


@triton.jit
@no_type_check
def put(ptr, rows, columns, row_stride, column_stride, n_rows, n_columns, values):
    """Store ptr[rows, columns] within the edges."""
    inside = (rows[:, None] < n_rows) & (columns[None, :] < n_columns)
    at = ptr + rows[:, None] * row_stride + columns[None, :] * column_stride
    tl.store(at, values.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def between(later, earlier, i, j, STRICT: tl.constexpr):
    """exp(T_i - T_j) for positions i and j; zero if j > i, or if j >= i and STRICT."""
    if STRICT:
        reads = i > j
    else:
        reads = i >= j
    return tl.exp(tl.where(reads, (later - earlier).to(tl.float32), float("-inf")))


@triton.jit
@no_type_check
def dot_products(
    a_ptr, b_ptr, t, a_time, b_time, seq_len, width,
    KIND: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """a_i . b_j over all channels, for the positions t of a chunk."""
    scores = tl.zeros([SIZE, SIZE], tl.float32)
    for first in range(0, width, BLOCK):
        channel = first + tl.arange(0, BLOCK)
        a = tile(a_ptr, t, channel, a_time, 1, seq_len, width).to(KIND)
        b = tile(b_ptr, channel, t, 1, b_time, width, seq_len).to(KIND)
        scores = tl.dot(a, b, scores, input_precision="ieee")
    return scores


@triton.jit
@no_type_check
def _states(
    k_ptr, v_ptr, total_ptr, state_ptr, kept_ptr, final_ptr, heads, share, seq_len, chunks, d_key, d_value,
    k_row, k_head, k_time, v_row, v_head, v_time,
    BACKWARDS: tl.constexpr, SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Store the state before each chunk; if BACKWARDS, the gradient of the state after it, with k = q, v = grad_y."""
    KIND: tl.constexpr = kept_ptr.dtype.element_ty
    sequence = tl.program_id(0).to(tl.int64)
    row, head = sequence // heads, sequence % heads
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    r = tl.arange(0, SIZE)
    k_ptr += row * k_row + head // share * k_head
    v_ptr += row * v_row + head * v_head
    kept_ptr += sequence * chunks * d_key * d_value
    total_ptr += sequence * chunks * SIZE
    s = tile(state_ptr + sequence * d_key * d_value, key, value, d_value, 1, d_key, d_value)
    for step in range(chunks):
        chunk = step
        if BACKWARDS:
            chunk = chunks - 1 - step
        put(kept_ptr + tl.cast(chunk, tl.int64) * d_key * d_value, key, value, d_value, 1, d_key, d_value, s)
        total = tl.load(total_ptr + chunk * SIZE + r)
        end = tl.load(total_ptr + chunk * SIZE + SIZE - 1)
        if BACKWARDS:
            weight = tl.exp(total.to(tl.float32))
        else:
            weight = tl.exp((end - total).to(tl.float32))
        t = tl.cast(chunk, tl.int64) * SIZE + r
        k = tile(k_ptr, key, t, 1, k_time, d_key, seq_len).to(KIND)
        v = tile(v_ptr, t, value, v_time, 1, seq_len, d_value).to(tl.float32) * weight[:, None]
        s = tl.dot(k, v.to(KIND), tl.exp(end.to(tl.float32)) * s, input_precision="ieee")
    put(final_ptr + sequence * d_key * d_value, key, value, d_value, 1, d_key, d_value, s)


@triton.jit
@no_type_check
def _outputs(
    q_ptr, k_ptr, v_ptr, total_ptr, kept_ptr, y_ptr, heads, share, seq_len, chunks, d_key, d_value,
    q_row, q_head, q_time, k_row, k_head, k_time, v_row, v_head, v_time, y_row, y_head, y_time,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    KIND: tl.constexpr = kept_ptr.dtype.element_ty
    chunk = tl.program_id(0).to(tl.int64)  # index over the chunks of all sequences
    sequence = chunk // chunks
    row, head = sequence // heads, sequence % heads
    r = tl.arange(0, SIZE)
    t = chunk % chunks * SIZE + r
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    q_ptr += row * q_row + head // share * q_head
    k_ptr += row * k_row + head // share * k_head
    kept_ptr += chunk * d_key * d_value
    scores = tl.zeros([SIZE, SIZE], tl.float32)
    y = tl.zeros([SIZE, VALUES], tl.float32)
    for first in range(0, d_key, KEYS):
        key = first + tl.arange(0, KEYS)
        q = tile(q_ptr, t, key, q_time, 1, seq_len, d_key).to(KIND)
        k = tile(k_ptr, key, t, 1, k_time, d_key, seq_len).to(KIND)
        s = tile(kept_ptr, key, value, d_value, 1, d_key, d_value)
        scores = tl.dot(q, k, scores, input_precision="ieee")
        y = tl.dot(q, s, y, input_precision="ieee")
    total = tl.load(total_ptr + chunk * SIZE + r)
    scores *= between(total[:, None], total[None, :], r[:, None], r[None, :], False)
    v = tile(v_ptr + row * v_row + head * v_head, t, value, v_time, 1, seq_len, d_value).to(KIND)
    y = tl.dot(scores.to(KIND), v, y * tl.exp(total.to(tl.float32))[:, None], input_precision="ieee")
    put(y_ptr + row * y_row + head * y_head, t, value, y_time, 1, seq_len, d_value, y)


@triton.jit
@no_type_check
def _of_queries(
    q_ptr, k_ptr, v_ptr, total_ptr, kept_ptr, grad_ptr, grad_q_ptr, grad_total_ptr,
    heads, share, seq_len, chunks, d_key, d_value,
    q_row, q_head, q_time, k_row, k_head, k_time, v_row, v_head, v_time,
    grad_row, grad_head, grad_time, grad_q_row, grad_q_head, grad_q_time,
    STRICT: tl.constexpr, SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of q, and of T_i as a factor of position i's reads; if STRICT, reads precede writes."""
    KIND: tl.constexpr = kept_ptr.dtype.element_ty
    chunk = tl.program_id(0).to(tl.int64)
    sequence = chunk // chunks
    row, head = sequence // heads, sequence % heads
    r = tl.arange(0, SIZE)
    t = chunk % chunks * SIZE + r
    q_ptr += row * q_row + head // share * q_head
    k_ptr += row * k_row + head // share * k_head
    v_ptr += row * v_row + head * v_head
    grad_ptr += row * grad_row + head * grad_head
    kept_ptr += chunk * d_key * d_value
    total = tl.load(total_ptr + chunk * SIZE + r)
    scores = dot_products(q_ptr, k_ptr, t, q_time, k_time, seq_len, d_key, KIND, SIZE, KEYS)
    of_scores = dot_products(grad_ptr, v_ptr, t, grad_time, v_time, seq_len, d_value, KIND, SIZE, VALUES)
    of_scores *= between(total[:, None], total[None, :], r[:, None], r[None, :], STRICT)
    of_total = tl.sum(tl.where(r[:, None] > r[None, :], scores * of_scores, 0.0), axis=1)
    narrow = of_scores.to(KIND)
    for first in range(0, d_key, KEYS):
        key = first + tl.arange(0, KEYS)
        grad_q = tl.zeros([SIZE, KEYS], tl.float32)
        for other in range(0, d_value, VALUES):
            value = other + tl.arange(0, VALUES)
            grad = tile(grad_ptr, t, value, grad_time, 1, seq_len, d_value).to(KIND)
            s = tile(kept_ptr, value, key, 1, d_value, d_value, d_key)
            grad_q = tl.dot(grad, s, grad_q, input_precision="ieee")
        grad_q *= tl.exp(total.to(tl.float32))[:, None]
        q = tile(q_ptr, t, key, q_time, 1, seq_len, d_key).to(tl.float32)
        of_total += tl.sum(q * grad_q, axis=1)
        k = tile(k_ptr, t, key, k_time, 1, seq_len, d_key).to(KIND)
        grad_q = tl.dot(narrow, k, grad_q, input_precision="ieee")
        put(grad_q_ptr + row * grad_q_row + head * grad_q_head, t, key, grad_q_time, 1, seq_len, d_key, grad_q)
    tl.store(grad_total_ptr + chunk * SIZE + r, of_total)


@triton.jit
@no_type_check
def _of_keys(
    q_ptr, k_ptr, v_ptr, total_ptr, kept_ptr, grad_ptr, arriving_ptr, grad_k_ptr, grad_total_ptr, grad_end_ptr,
    heads, share, seq_len, chunks, d_key, d_value,
    q_row, q_head, q_time, k_row, k_head, k_time, v_row, v_head, v_time,
    grad_row, grad_head, grad_time, grad_k_row, grad_k_head, grad_k_time,
    STRICT: tl.constexpr, SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of k, of -T_j as a factor of position j's writes, and of T_end.

    If STRICT, positions read before they write, no gradient arrives at the state, and the result is added to k's
    gradient.
    """
    KIND: tl.constexpr = kept_ptr.dtype.element_ty
    chunk = tl.program_id(0).to(tl.int64)
    sequence = chunk // chunks
    row, head = sequence // heads, sequence % heads
    r = tl.arange(0, SIZE)
    t = chunk % chunks * SIZE + r
    q_ptr += row * q_row + head // share * q_head
    k_ptr += row * k_row + head // share * k_head
    v_ptr += row * v_row + head * v_head
    grad_ptr += row * grad_row + head * grad_head
    grad_k_ptr += row * grad_k_row + head * grad_k_head
    kept_ptr += chunk * d_key * d_value
    arriving_ptr += chunk * d_key * d_value
    total = tl.load(total_ptr + chunk * SIZE + r)
    end = tl.load(total_ptr + chunk * SIZE + SIZE - 1)
    until = tl.exp((end - total).to(tl.float32))
    scores = dot_products(k_ptr, q_ptr, t, k_time, q_time, seq_len, d_key, KIND, SIZE, KEYS)
    of_scores = dot_products(v_ptr, grad_ptr, t, v_time, grad_time, seq_len, d_value, KIND, SIZE, VALUES)
    of_scores *= between(total[None, :], total[:, None], r[None, :], r[:, None], STRICT)  # rows are earlier here
    of_total = tl.sum(tl.where(r[:, None] < r[None, :], scores * of_scores, 0.0), axis=1)
    narrow = of_scores.to(KIND)
    of_until = tl.zeros([SIZE], tl.float32)
    of_over = tl.zeros([KEYS], tl.float32)
    for first in range(0, d_key, KEYS):
        key = first + tl.arange(0, KEYS)
        if STRICT:
            grad_k = tile(grad_k_ptr, t, key, grad_k_time, 1, seq_len, d_key).to(tl.float32)
        else:
            grad_k = tl.zeros([SIZE, KEYS], tl.float32)
            for other in range(0, d_value, VALUES):
                value = other + tl.arange(0, VALUES)
                v = tile(v_ptr, t, value, v_time, 1, seq_len, d_value).to(KIND)
                arriving = tile(arriving_ptr, value, key, 1, d_value, d_value, d_key)
                s = tile(kept_ptr, value, key, 1, d_value, d_value, d_key)
                of_over += tl.sum(s.to(tl.float32) * arriving.to(tl.float32), axis=0)
                grad_k = tl.dot(v, arriving, grad_k, input_precision="ieee")
            grad_k *= until[:, None]
            of_until += tl.sum(tile(k_ptr, t, key, k_time, 1, seq_len, d_key).to(tl.float32) * grad_k, axis=1)
        q = tile(q_ptr, t, key, q_time, 1, seq_len, d_key).to(KIND)
        grad_k = tl.dot(narrow, q, grad_k, input_precision="ieee")
        put(grad_k_ptr, t, key, grad_k_time, 1, seq_len, d_key, grad_k)
    tl.store(grad_total_ptr + chunk * SIZE + r, of_total + of_until)
    if not STRICT:
        tl.store(grad_end_ptr + chunk, tl.sum(of_until, axis=0) + tl.exp(end.to(tl.float32)) * tl.sum(of_over, axis=0))


@triton.jit
@no_type_check
def _of_values(
    q_ptr, k_ptr, total_ptr, grad_ptr, arriving_ptr, grad_v_ptr, heads, share, seq_len, chunks, d_key, d_value,
    q_row, q_head, q_time, k_row, k_head, k_time, grad_row, grad_head, grad_time, grad_v_row, grad_v_head, grad_v_time,
    WITHIN: tl.constexpr, SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of v from the outputs of its chunk and, unless WITHIN, from the state after it."""
    KIND: tl.constexpr = arriving_ptr.dtype.element_ty
    chunk = tl.program_id(0).to(tl.int64)
    sequence = chunk // chunks
    row, head = sequence // heads, sequence % heads
    r = tl.arange(0, SIZE)
    t = chunk % chunks * SIZE + r
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    q_ptr += row * q_row + head // share * q_head
    k_ptr += row * k_row + head // share * k_head
    arriving_ptr += chunk * d_key * d_value
    scores = tl.zeros([SIZE, SIZE], tl.float32)
    grad_v = tl.zeros([SIZE, VALUES], tl.float32)
    for first in range(0, d_key, KEYS):
        key = first + tl.arange(0, KEYS)
        k = tile(k_ptr, t, key, k_time, 1, seq_len, d_key).to(KIND)
        q = tile(q_ptr, key, t, 1, q_time, d_key, seq_len).to(KIND)
        scores = tl.dot(k, q, scores, input_precision="ieee")
        if not WITHIN:
            arriving = tile(arriving_ptr, key, value, d_value, 1, d_key, d_value)
            grad_v = tl.dot(k, arriving, grad_v, input_precision="ieee")
    total = tl.load(total_ptr + chunk * SIZE + r)
    end = tl.load(total_ptr + chunk * SIZE + SIZE - 1)
    scores *= between(total[None, :], total[:, None], r[None, :], r[:, None], False)
    grad_v *= tl.exp((end - total).to(tl.float32))[:, None]
    grad = tile(grad_ptr + row * grad_row + head * grad_head, t, value, grad_time, 1, seq_len, d_value).to(KIND)
    grad_v = tl.dot(scores.to(KIND), grad, grad_v, input_precision="ieee")
    put(grad_v_ptr + row * grad_v_row + head * grad_v_head, t, value, grad_v_time, 1, seq_len, d_value, grad_v)


def forward(q: Tensor, k: Tensor, v: Tensor, total: Tensor, state: Tensor, kind: torch.dtype) -> tuple[Tensor, ...]:
    """Return outputs, the final state, and the states before the chunks in dtype `kind`.

    q, k are (batch, groups, seq, d_key), v (batch, heads, seq, d_value), `total` (batch, heads, chunks, size) the sums
    of the log-decays in float64, and the state (batch, heads, d_key, d_value) in float32.
    """
    q, k, v, state = *(dense(t) for t in (q, k, v)), state.contiguous()
    kept, final = _run_states(k, v, total, state, kind, backwards=False)
    return outputs(q, k, v, total, kept, state.dtype), final, kept


def backward(
    grad_y: Tensor, grad_final: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, kept: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v, of `total` and of the state before the first chunk.

    The gradients of q and k are per head, in float32 if heads share q and k.
    """
    grad_y, q, k, v = (dense(t) for t in (grad_y, q, k, v))
    arriving, grad_state = _run_states(q, grad_y, total, grad_final.contiguous(), kept.dtype, backwards=True)
    given = q, k, v, total, kept, grad_y
    grad_q, reading = of_queries(*given)
    grad_k, writing, at_end = of_keys(*given, arriving)
    grad_total = reading.double() - writing
    grad_total[..., -1] += at_end
    return grad_q, grad_k, of_values(q, k, total, grad_y, arriving, v.dtype), grad_total, grad_state


def outputs(q: Tensor, k: Tensor, v: Tensor, total: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor:
    """Return y from the states before the chunks."""
    y = time_first(v, v.shape[3], dtype)
    grid = len(kept.flatten(0, 2)), triton.cdiv(v.shape[3], BLOCK)
    launch(_outputs, grid, (q, k, v, total, kept, y), (q, k, v, y), k, v, total)
    return y


def of_queries(
    q: Tensor, k: Tensor, v: Tensor, total: Tensor, kept: Tensor, grad_y: Tensor, *, strict: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradients of q, and of T as a factor of the reads; if `strict`, positions read before they write."""
    grad_q = _gradient_of_keys(q, v)
    reading = torch.empty_like(total, dtype=torch.float32)
    given = q, k, v, total, kept, grad_y, grad_q, reading
    grid = (len(kept.flatten(0, 2)),)
    launch(_of_queries, grid, given, (q, k, v, grad_y, grad_q), k, v, total, STRICT=strict)
    return grad_q, reading


def of_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor,
    kept: Tensor,
    grad_y: Tensor,
    arriving: Tensor,
    added_to: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of k, of -T as a factor of the writes, and of T at the ends of chunks.

    With `added_to`, k's gradient so far, q reads before a position writes, and no gradient arrives at the states.
    """
    grad_k = _gradient_of_keys(k, v) if added_to is None else added_to
    writing = torch.empty_like(total, dtype=torch.float32)
    at_end = writing.new_empty(total.shape[:3])
    given = q, k, v, total, kept, grad_y, arriving, grad_k, writing, at_end
    strided, strict = (q, k, v, grad_y, grad_k), added_to is not None
    launch(_of_keys, (at_end.numel(),), given, strided, k, v, total, STRICT=strict)
    return grad_k, writing, at_end


def of_values(
    q: Tensor, k: Tensor, total: Tensor, grad_y: Tensor, arriving: Tensor, dtype: torch.dtype, *, within: bool = False
) -> Tensor:
    """Return the gradient of v; if `within`, only from the outputs of its chunk, without reading `arriving`."""
    grad_v = time_first(grad_y, grad_y.shape[3], dtype)
    grid = total.shape[:3].numel(), triton.cdiv(grad_y.shape[3], BLOCK)
    given = q, k, total, grad_y, arriving, grad_v
    launch(_of_values, grid, given, (q, k, grad_y, grad_v), k, grad_y, total, WITHIN=within)
    return grad_v


def _gradient_of_keys(k: Tensor, v: Tensor) -> Tensor:
    return time_first(v, k.shape[3], torch.float32 if k.shape[1] != v.shape[1] else k.dtype)


def _run_states(
    k: Tensor, v: Tensor, total: Tensor, state: Tensor, kind: torch.dtype, *, backwards: bool
) -> tuple[Tensor, Tensor]:
    kept, final = state.new_empty(*total.shape[:3], *state.shape[2:], dtype=kind), torch.empty_like(state)
    grid = v.shape[0] * v.shape[1], *(triton.cdiv(t.shape[3], BLOCK) for t in (k, v))
    launch(_states, grid, (k, v, total, state, kept, final), (k, v), k, v, total, BACKWARDS=backwards)
    return kept, final


def dense(t: Tensor) -> Tensor:
    """Return `t`, or a copy with adjacent channels."""
    return t if t.stride(3) == 1 else t.contiguous()


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: tuple[Tensor, ...],
    strided: tuple[Tensor, ...],
    k: Tensor,
    v: Tensor,
    total: Tensor,
    **more: Any,
) -> None:
    """Call a kernel with tensors, sizes, the strides of `strided`, and the default tile sizes updated by `more`."""
    heads, (seq_len, d_value) = v.shape[1], v.shape[2:]
    sizes = heads, heads // k.shape[1], seq_len, total.shape[2], k.shape[3], d_value
    strides = [stride for t in strided for stride in t.stride()[:3]]
    tiles = {"SIZE": total.shape[3], "KEYS": BLOCK, "VALUES": BLOCK}
    with torch.cuda.device_of(v):  # triton launches on the current device, not on the tensors'
        kernel[grid](*tensors, *sizes, *strides, **tiles | more, enable_fp_fusion=True)
