"""Scores with a decay per channel as Triton kernels (`zoo.ops.dplr` on CUDA): one launch forward, one backward.

T is the sum of the log-decays from the start of a chunk, channel by channel. For one or two kinds of reads a and of
writes b, the kernels compute

    scores_ij = sum_d a_id exp(T_id - T_jd) b_jd for j <= i,    a_i exp(T_i),    b_j exp(T_end - T_j)

A program handles one chunk and loops over its positions j; the decays of a pair are computed once for all kinds. T is
float64, so that differences of two sums keep float32's digits; everything else is float32. Inputs may have any strides,
but the last must be 1. Under TRITON_INTERPRET=1 the same code runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from zoo.ops.ssd import time_first
from zoo.ops.ssd_triton import dense, put, tile

CHANNELS = 32  # channels of a tile


# `no_type_check` hides the kernels from the tests' shape checker: triton compiles their source, not the functions.


@triton.jit
@no_type_check
def _row(ptr, inside):
    return tl.load(ptr, mask=inside, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _forward(
    a_ptr, a2_ptr, b_ptr, b2_ptr, total_ptr, ab_ptr, ab2_ptr, a2b_ptr, a2b2_ptr, since_ptr, since2_ptr, until_ptr,
    until2_ptr, heads, seq_len, chunks, d,
    a_row, a_head, a_time, a2_row, a2_head, a2_time, b_row, b_head, b_time, b2_row, b2_head, b2_time,
    READS: tl.constexpr, WRITES: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)  # index over the chunks of all sequences
    row, head = chunk // chunks // heads, chunk // chunks % heads
    r = tl.arange(0, SIZE)
    i, j = r[:, None], r[None, :]
    start = chunk % chunks * SIZE
    a_ptr += row * a_row + head * a_head
    a2_ptr += row * a2_row + head * a2_head
    b_ptr += row * b_row + head * b_head
    b2_ptr += row * b2_row + head * b2_head
    total_ptr += chunk * SIZE * d
    ab = tl.zeros([SIZE, SIZE], tl.float32)
    ab2 = tl.zeros([SIZE, SIZE], tl.float32)
    a2b = tl.zeros([SIZE, SIZE], tl.float32)
    a2b2 = tl.zeros([SIZE, SIZE], tl.float32)
    for first in range(0, d, CHANNELS):
        c = first + tl.arange(0, CHANNELS)
        total = tile(total_ptr, r, c, d, 1, SIZE, d)
        end = tl.load(total_ptr + (SIZE - 1) * d + c, mask=c < d, other=0.0)[None, :]
        since, until = tl.exp(total.to(tl.float32)), tl.exp((end - total).to(tl.float32))
        a = tile(a_ptr, start + r, c, a_time, 1, seq_len, d).to(tl.float32)
        b = tile(b_ptr, start + r, c, b_time, 1, seq_len, d).to(tl.float32)
        put(since_ptr + chunk * SIZE * d, r, c, d, 1, SIZE, d, a * since)
        put(until_ptr + chunk * SIZE * d, r, c, d, 1, SIZE, d, b * until)
        if READS == 2:
            a2 = tile(a2_ptr, start + r, c, a2_time, 1, seq_len, d).to(tl.float32)
            put(since2_ptr + chunk * SIZE * d, r, c, d, 1, SIZE, d, a2 * since)
        if WRITES == 2:
            b2 = tile(b2_ptr, start + r, c, b2_time, 1, seq_len, d).to(tl.float32)
            put(until2_ptr + chunk * SIZE * d, r, c, d, 1, SIZE, d, b2 * until)
        for n in range(SIZE):
            inside = c < tl.where(start + n < seq_len, d, 0)
            at = tl.load(total_ptr + n * d + c, mask=c < d, other=0.0)[None, :]
            decay = tl.exp(tl.where(i >= n, (total - at).to(tl.float32), float("-inf")))
            written = decay * _row(b_ptr + (start + n) * b_time + c, inside)[None, :]
            ab += tl.where(j == n, tl.sum(a * written, axis=1)[:, None], 0.0)
            if READS == 2:
                a2b += tl.where(j == n, tl.sum(a2 * written, axis=1)[:, None], 0.0)
            if WRITES == 2:
                written = decay * _row(b2_ptr + (start + n) * b2_time + c, inside)[None, :]
                ab2 += tl.where(j == n, tl.sum(a * written, axis=1)[:, None], 0.0)
                if READS == 2:
                    a2b2 += tl.where(j == n, tl.sum(a2 * written, axis=1)[:, None], 0.0)
    to = (chunk * SIZE + i) * SIZE + j
    tl.store(ab_ptr + to, ab)
    if READS == 2:
        tl.store(a2b_ptr + to, a2b)
    if WRITES == 2:
        tl.store(ab2_ptr + to, ab2)
        if READS == 2:
            tl.store(a2b2_ptr + to, a2b2)


@triton.jit
@no_type_check
def _backward(
    a_ptr, a2_ptr, b_ptr, b2_ptr, total_ptr, ab_ptr, ab2_ptr, a2b_ptr, a2b2_ptr, since_ptr, since2_ptr, until_ptr,
    until2_ptr, grad_a_ptr, grad_a2_ptr, grad_b_ptr, grad_b2_ptr, grad_total_ptr, heads, seq_len, chunks, d,
    a_row, a_head, a_time, a2_row, a2_head, a2_time, b_row, b_head, b_time, b2_row, b2_head, b2_time,
    grad_a_row, grad_a_head, grad_a_time, grad_a2_row, grad_a2_head, grad_a2_time,
    grad_b_row, grad_b_head, grad_b_time, grad_b2_row, grad_b2_head, grad_b2_time,
    READS: tl.constexpr, WRITES: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of reads, writes and T from the gradients of scores (`ab`), `since` and `until`."""
    chunk = tl.program_id(0).to(tl.int64)
    row, head = chunk // chunks // heads, chunk // chunks % heads
    r = tl.arange(0, SIZE)
    i = r[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    start = chunk % chunks * SIZE
    a_ptr += row * a_row + head * a_head
    a2_ptr += row * a2_row + head * a2_head
    b_ptr += row * b_row + head * b_head
    b2_ptr += row * b2_row + head * b2_head
    grad_b_ptr += row * grad_b_row + head * grad_b_head
    grad_b2_ptr += row * grad_b2_row + head * grad_b2_head
    total_ptr += chunk * SIZE * d
    total = tile(total_ptr, r, c, d, 1, SIZE, d)
    end = tl.load(total_ptr + (SIZE - 1) * d + c, mask=c < d, other=0.0)
    since = tl.exp(total.to(tl.float32))
    a = tile(a_ptr, start + r, c, a_time, 1, seq_len, d).to(tl.float32)
    grad_a = since * tile(since_ptr + chunk * SIZE * d, r, c, d, 1, SIZE, d).to(tl.float32)
    grad_total = a * grad_a
    if READS == 2:
        a2 = tile(a2_ptr, start + r, c, a2_time, 1, seq_len, d).to(tl.float32)
        grad_a2 = since * tile(since2_ptr + chunk * SIZE * d, r, c, d, 1, SIZE, d).to(tl.float32)
        grad_total += a2 * grad_a2
    at_end = tl.zeros([CHANNELS], tl.float32)
    for n in range(SIZE):
        inside = c < tl.where(start + n < seq_len, d, 0)
        at = tl.load(total_ptr + n * d + c, mask=c < d, other=0.0)
        until = tl.exp((end - at).to(tl.float32))
        decay = tl.exp(tl.where(i >= n, (total - at[None, :]).to(tl.float32), float("-inf")))
        column = (chunk * SIZE + r) * SIZE + n
        b = _row(b_ptr + (start + n) * b_time + c, inside)
        of_ab = tl.load(ab_ptr + column)[:, None]
        of_a = of_ab * b[None, :]
        of_b = of_ab * a
        of_until = until * _row(until_ptr + (chunk * SIZE + n) * d + c, c < d)
        left = b * of_until
        if READS == 2:
            of_a2b = tl.load(a2b_ptr + column)[:, None]
            of_a2 = of_a2b * b[None, :]
            of_b += of_a2b * a2
        of_b = tl.sum(decay * of_b, axis=0) + of_until
        tl.store(grad_b_ptr + (start + n) * grad_b_time + c, of_b.to(grad_b_ptr.dtype.element_ty), mask=inside)
        if WRITES == 2:
            b2 = _row(b2_ptr + (start + n) * b2_time + c, inside)
            of_ab2 = tl.load(ab2_ptr + column)[:, None]
            of_a += of_ab2 * b2[None, :]
            of_b2 = of_ab2 * a
            of_until2 = until * _row(until2_ptr + (chunk * SIZE + n) * d + c, c < d)
            left += b2 * of_until2
            if READS == 2:
                of_a2b2 = tl.load(a2b2_ptr + column)[:, None]
                of_a2 += of_a2b2 * b2[None, :]
                of_b2 += of_a2b2 * a2
            of_b2 = tl.sum(decay * of_b2, axis=0) + of_until2
            tl.store(grad_b2_ptr + (start + n) * grad_b2_time + c, of_b2.to(grad_b2_ptr.dtype.element_ty), mask=inside)
        of_a *= decay
        grad_a += of_a
        of_decay = a * of_a
        if READS == 2:
            of_a2 *= decay
            grad_a2 += of_a2
            of_decay += a2 * of_a2
        of_decay = tl.where(i > n, of_decay, 0.0)
        at_end += left
        grad_total += of_decay - tl.where(i == n, (tl.sum(of_decay, axis=0) + left)[None, :], 0.0)
    grad_total += tl.where(i == SIZE - 1, at_end[None, :], 0.0)
    put(grad_total_ptr + chunk * SIZE * d, r, c, d, 1, SIZE, d, grad_total)
    grad_a_ptr += row * grad_a_row + head * grad_a_head
    put(grad_a_ptr, start + r, c, grad_a_time, 1, seq_len, d, grad_a)
    if READS == 2:
        grad_a2_ptr += row * grad_a2_row + head * grad_a2_head
        put(grad_a2_ptr, start + r, c, grad_a2_time, 1, seq_len, d, grad_a2)


def forward(total: Tensor, reads: Sequence[Tensor], writes: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    """Return the scores of each read with each write, then, in dtype `kind`, a_i exp(T_i) and b_j exp(T_end - T_j).

    reads and writes, one or two each, are (batch, heads, seq, d); `total` is T, (batch, heads, chunks, size, d) in
    float64.
    """
    scores = [total.new_empty(*total.shape[:4], total.shape[3], dtype=torch.float32) for _ in reads for _ in writes]
    decayed = [torch.empty_like(total, dtype=kind) for _ in (*reads, *writes)]
    _launch(_forward, 1, total, reads, writes, _pairs(scores, decayed, len(reads)), [])
    return [*scores, *decayed]


def backward(grads: Sequence[Tensor], total: Tensor, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of `total` (in float32), reads and writes, from the gradients of `forward`'s outputs."""
    grads, n_scores = [t.contiguous() for t in grads], len(reads) * len(writes)
    given = _pairs(grads[:n_scores], grads[n_scores:], len(reads))
    found = [time_first(t, t.shape[3], t.dtype) for t in (*reads, *writes)]
    strided = [*_two(found[: len(reads)]), *_two(found[len(reads) :])]
    grad_total = torch.empty_like(total, dtype=torch.float32)
    blocks = triton.cdiv(total.shape[4], CHANNELS)
    _launch(_backward, blocks, total, reads, writes, [*given, *strided, grad_total], strided)
    return [grad_total, *found]


def _two(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return tensors[0], tensors[-1]


def _pairs(scores: Sequence[Tensor], decayed: Sequence[Tensor], reads: int) -> list[Tensor]:
    """Return four scores and four decayed tensors, with repeats if there are fewer."""
    first, last = scores[: len(scores) // reads], scores[-(len(scores) // reads) :]
    return [*_two(first), *_two(last), *_two(decayed[:reads]), *_two(decayed[reads:])]


def _launch(
    kernel: Any,
    blocks: int,
    total: Tensor,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    others: Sequence[Tensor],
    strided: Sequence[Tensor],
) -> None:
    inputs = [dense(t) for t in (*_two(reads), *_two(writes))]
    chunks, size, d = total.shape[2:]
    sizes = total.shape[1], reads[0].shape[2], chunks, d
    strides = [stride for t in (*inputs, *strided) for stride in t.stride()[:3]]
    tiles = {"READS": len(reads), "WRITES": len(writes), "SIZE": size, "CHANNELS": CHANNELS}
    grid = total.shape[:3].numel(), blocks
    with torch.cuda.device_of(total):  # triton launches on the current device, not on the tensors'
        kernel[grid](*inputs, total, *others, *sizes, *strides, **tiles, enable_fp_fusion=True)
