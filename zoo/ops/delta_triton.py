"""The delta rule with at most one decay as Triton kernels (`zoo.ops.dplr` on CUDA): three launches forward, six back.

Given the values that each position writes, the rule is `zoo.ops.ssd_triton`, whose notation we use:

    (I + A) w = v - since S_c^T r,    A_ij = D_ij (r_i . k_j) for j < i         w: written in place of v
    S_{c+1} = end_c S_c + sum_j until_j k_j w_j^T                               `_states`, chunk after chunk

`_inverses` computes (I + A)^-1 for all chunks at once. SSD then runs on the values w = v - e. The erased part e is
itself an output of SSD: with the queries r, read before a position writes. So SSD computes the gradients of q and of r,
and of k for both, with -grad_v = -(I + A)^-T grad_w as the gradient of e. `_states_back` computes the gradients of the
states:

    grad_w_j = within_j + until_j G^T k_j      G <- end G + sum_i since_i (q_i grad_y_i^T - r_i grad_v_i^T)

The inverse is assembled from inverses of blocks that double in size, by float32 products in three tf32 products each,
which nearly keep float32's precision.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from zoo.ops import ssd_triton as ssd
from zoo.ops.ssd import time_first
from zoo.ops.ssd_triton import between, dot_products, put, tile

STAGES = 2  # chunks that `_states` loads ahead


@triton.jit
@no_type_check
def _inverses(
    r_ptr, k_ptr, total_ptr, inverse_ptr, heads, share, seq_len, chunks, d_key, d_value,
    r_row, r_head, r_time, k_row, k_head, k_time,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    KIND: tl.constexpr = inverse_ptr.dtype.element_ty
    chunk = tl.program_id(0).to(tl.int64)
    sequence = chunk // chunks
    row, head = sequence // heads, sequence % heads
    at = tl.arange(0, SIZE)
    t = chunk % chunks * SIZE + at
    r_ptr += row * r_row + head * r_head
    k_ptr += row * k_row + head * k_head
    total = tl.load(total_ptr + chunk * SIZE + at)
    i, j = at[:, None], at[None, :]
    a = dot_products(r_ptr, k_ptr, t, r_time, k_time, seq_len, d_key, KIND, SIZE, KEYS)
    a *= between(total[:, None], total[None, :], i, j, True)
    inverse = tl.where(i == j, 1.0, tl.where(i // 2 == j // 2, -a, 0.0))  # exact for blocks of two
    width = 2
    while width < SIZE:
        beside = tl.where((i // width != j // width) & (i // (2 * width) == j // (2 * width)), a, 0.0)
        change = tl.dot(inverse, beside, input_precision="tf32x3")
        inverse -= tl.dot(change, inverse, input_precision="tf32x3")
        width *= 2
    tl.store(inverse_ptr + (chunk * SIZE + i) * SIZE + j, inverse.to(KIND))


@triton.jit
@no_type_check
def _states(
    r_ptr, k_ptr, v_ptr, total_ptr, inverse_ptr, state_ptr, kept_ptr, w_ptr, final_ptr,
    heads, share, seq_len, chunks, d_key, d_value,
    r_row, r_head, r_time, k_row, k_head, k_time, v_row, v_head, v_time, w_row, w_head, w_time,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Store the state before each chunk, and the value that each position writes."""
    KIND: tl.constexpr = kept_ptr.dtype.element_ty
    sequence = tl.program_id(0).to(tl.int64)
    row, head = sequence // heads, sequence % heads
    key = tl.arange(0, KEYS)
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    at = tl.arange(0, SIZE)
    r_ptr += row * r_row + head * r_head
    k_ptr += row * k_row + head * k_head
    v_ptr += row * v_row + head * v_head
    w_ptr += row * w_row + head * w_head
    kept_ptr += sequence * chunks * d_key * d_value
    total_ptr += sequence * chunks * SIZE
    inverse_ptr += sequence * chunks * SIZE * SIZE
    s = tile(state_ptr + sequence * d_key * d_value, key, value, d_value, 1, d_key, d_value)
    for step in range(chunks):
        chunk = tl.cast(step, tl.int64)
        t = chunk * SIZE + at
        total = tl.load(total_ptr + t)
        end = tl.load(total_ptr + chunk * SIZE + SIZE - 1)
        r = tile(r_ptr, t, key, r_time, 1, seq_len, d_key).to(KIND)
        k = tile(k_ptr, key, t, 1, k_time, d_key, seq_len).to(KIND)
        v = tile(v_ptr, t, value, v_time, 1, seq_len, d_value).to(tl.float32)
        inverse = tile(inverse_ptr + chunk * SIZE * SIZE, at, at, SIZE, 1, SIZE, SIZE)
        put(kept_ptr + chunk * d_key * d_value, key, value, d_value, 1, d_key, d_value, s)
        v -= tl.exp(total.to(tl.float32))[:, None] * tl.dot(r, s.to(KIND), input_precision="ieee")
        w = tl.dot(inverse, v.to(KIND), input_precision="ieee")
        put(w_ptr, t, value, w_time, 1, seq_len, d_value, w)
        w *= tl.exp((end - total).to(tl.float32))[:, None]
        s = tl.dot(k, w.to(KIND), tl.exp(end.to(tl.float32)) * s, input_precision="ieee")
    put(final_ptr + sequence * d_key * d_value, key, value, d_value, 1, d_key, d_value, s)


@triton.jit
@no_type_check
def _states_back(
    q_ptr, r_ptr, k_ptr, within_ptr, grad_ptr, total_ptr, inverse_ptr, final_ptr, arriving_ptr, erased_ptr, grad_v_ptr,
    state_ptr, heads, share, seq_len, chunks, d_key, d_value,
    q_row, q_head, q_time, r_row, r_head, r_time, k_row, k_head, k_time, within_row, within_head, within_time,
    grad_row, grad_head, grad_time, erased_row, erased_head, erased_time, grad_v_row, grad_v_head, grad_v_time,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the state after each chunk, of v, and of the erased part."""
    KIND: tl.constexpr = arriving_ptr.dtype.element_ty
    sequence = tl.program_id(0).to(tl.int64)
    row, head = sequence // heads, sequence % heads
    key = tl.arange(0, KEYS)
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    at = tl.arange(0, SIZE)
    q_ptr += row * q_row + head * q_head
    r_ptr += row * r_row + head * r_head
    k_ptr += row * k_row + head * k_head
    within_ptr += row * within_row + head * within_head
    grad_ptr += row * grad_row + head * grad_head
    erased_ptr += row * erased_row + head * erased_head
    grad_v_ptr += row * grad_v_row + head * grad_v_head
    arriving_ptr += sequence * chunks * d_key * d_value
    total_ptr += sequence * chunks * SIZE
    inverse_ptr += sequence * chunks * SIZE * SIZE
    s = tile(final_ptr + sequence * d_key * d_value, key, value, d_value, 1, d_key, d_value)
    for step in range(chunks):
        chunk = chunks - 1 - tl.cast(step, tl.int64)
        t = chunk * SIZE + at
        total = tl.load(total_ptr + t)
        end = tl.load(total_ptr + chunk * SIZE + SIZE - 1)
        since = tl.exp(total.to(tl.float32))[:, None]
        q = tile(q_ptr, key, t, 1, q_time, d_key, seq_len).to(KIND)
        r = tile(r_ptr, key, t, 1, r_time, d_key, seq_len).to(KIND)
        k = tile(k_ptr, t, key, k_time, 1, seq_len, d_key).to(KIND)
        within = tile(within_ptr, t, value, within_time, 1, seq_len, d_value).to(tl.float32)
        grad = tile(grad_ptr, t, value, grad_time, 1, seq_len, d_value).to(tl.float32)
        inverse = tile(inverse_ptr + chunk * SIZE * SIZE, at, at, 1, SIZE, SIZE, SIZE)  # transposed
        put(arriving_ptr + chunk * d_key * d_value, key, value, d_value, 1, d_key, d_value, s)
        of_state = tl.dot(k, s.to(KIND), input_precision="ieee")
        of_w = within + tl.exp((end - total).to(tl.float32))[:, None] * of_state
        grad_v = tl.dot(inverse, of_w.to(KIND), input_precision="ieee")
        put(grad_v_ptr, t, value, grad_v_time, 1, seq_len, d_value, grad_v)
        put(erased_ptr, t, value, erased_time, 1, seq_len, d_value, -grad_v)
        s = tl.dot(q, (since * grad).to(KIND), tl.exp(end.to(tl.float32)) * s, input_precision="ieee")
        s = tl.dot(r, (-since * grad_v).to(KIND), s, input_precision="ieee")
    put(state_ptr + sequence * d_key * d_value, key, value, d_value, 1, d_key, d_value, s)


def forward(
    q: Tensor, k: Tensor, v: Tensor, r: Tensor, total: Tensor, state: Tensor, kind: torch.dtype
) -> tuple[Tensor, ...]:
    """Return outputs and the final state, then, for `backward`, the states before chunks, w and inverses, in `kind`.

    q, k, r are (batch, heads, seq, d_key), v (batch, heads, seq, d_value), `total` (batch, heads, chunks, size) the
    sums of the log-decays in float64, and the state (batch, heads, d_key, d_value) in float32.
    """
    q, k, v, r, state = *(ssd.dense(t) for t in (q, k, v, r)), state.contiguous()
    inverse = state.new_empty(*total.shape, total.shape[3], dtype=kind)
    ssd.launch(_inverses, (total.shape[:3].numel(),), (r, k, total, inverse), (r, k), k, v, total)
    kept, final = state.new_empty(*total.shape[:3], *state.shape[2:], dtype=kind), torch.empty_like(state)
    w = time_first(v, v.shape[3], kind)
    given = r, k, v, total, inverse, state, kept, w, final
    ssd.launch(_states, _grid(v), given, (r, k, v, w), k, v, total, **_whole_keys(k))
    return ssd.outputs(q, k, w, total, kept, state.dtype), final, kept, w, inverse


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    total: Tensor,
    kept: Tensor,
    w: Tensor,
    inverse: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v and r, of `total` and of the state before the first chunk."""
    grad_y, q, k, r = (ssd.dense(t) for t in (grad_y, q, k, r))
    grad_final = grad_final.contiguous()
    within = ssd.of_values(q, k, total, grad_y, kept, kept.dtype, within=True)
    arriving, grad_state, erased = torch.empty_like(kept), torch.empty_like(grad_final), torch.empty_like(w)
    grad_v = time_first(v, v.shape[3], v.dtype)
    given = q, r, k, within, grad_y, total, inverse, grad_final, arriving, erased, grad_v, grad_state
    strided = q, r, k, within, grad_y, erased, grad_v
    ssd.launch(_states_back, _grid(v), given, strided, k, v, total, **_whole_keys(k))
    grad_q, reading = ssd.of_queries(q, k, w, total, kept, grad_y)
    grad_r, seeking = ssd.of_queries(r, k, w, total, kept, erased, strict=True)
    grad_k, writing, at_end = ssd.of_keys(q, k, w, total, kept, grad_y, arriving)
    _, erasing, _ = ssd.of_keys(r, k, w, total, kept, erased, arriving, added_to=grad_k)
    grad_total = reading.double() + seeking - writing - erasing
    grad_total[..., -1] += at_end
    return grad_q, grad_k, grad_v, grad_r, grad_total, grad_state


def _grid(v: Tensor) -> tuple[int, int]:
    return len(v.flatten(0, 1)), triton.cdiv(v.shape[3], ssd.BLOCK)


def _whole_keys(k: Tensor) -> dict[str, int]:
    """Return the tile sizes of the recurrence over chunks, whose programs hold all keys of a state."""
    return {"KEYS": max(ssd.BLOCK, triton.next_power_of_2(k.shape[3])), "num_stages": STAGES}
