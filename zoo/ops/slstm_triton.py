"""The loop of sLSTM as Triton kernels, for CUDA devices; they need no CUDA compiler.

A program handles a head of some rows of the batch and walks along time. It reads at one position what it wrote at the
position before, so states and recurrent matrices stay in the caches of its multiprocessor. Forward keeps h, c, n and m
of every position. Backward then computes the gates of all positions in one matrix product, and walks back with the
gradients alone.

Under TRITON_INTERPRET=1, set before triton is imported, the same code runs on the CPU: slowly, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from einops import rearrange
from torch import Tensor

from zoo.ops.slstm import ARTANH, TANH

ROWS, WARPS = 16, 8
"""Rows of the batch per program, the fewest that a matrix product allows; four warps would spill at 64 channels."""
BLOCK = 64
"""Most channels of a head that are computed at once."""

_TANH: tl.constexpr = tl.constexpr(TANH)
_ARTANH: tl.constexpr = tl.constexpr(ARTANH)

# `no_type_check` hides the kernels from the tests' shape checker: triton compiles their source, not the functions.


@triton.jit
@no_type_check
def _sigmoid(z):
    small = tl.exp(-tl.abs(z))
    return tl.where(z > 0, 1.0, small) / (1.0 + small)


@triton.jit
@no_type_check
def _log_sigmoid(z):
    """min(z, 0) - log(1 + s), accurate for small s: the logarithm is twice artanh(s / (2 + s))."""
    s = tl.exp(-tl.abs(z))
    w = s / (2.0 + s)
    q = w * w
    p = ((_ARTANH[3] * q + _ARTANH[2]) * q + _ARTANH[1]) * q + _ARTANH[0]
    return tl.where(z > 0, 0.0, z) - 2.0 * (w + w * q * p)


@triton.jit
@no_type_check
def _tanh(z):
    q = z * z
    p = (((_TANH[4] * q + _TANH[3]) * q + _TANH[2]) * q + _TANH[1]) * q + _TANH[0]
    s = tl.exp(-2.0 * tl.abs(z))
    away = (1.0 - s) / (1.0 + s)
    return tl.where(tl.abs(z) < 0.625, z + z * q * p, tl.where(z > 0, away, -away))


@triton.jit
@no_type_check
def _step(log_i, f, m):
    """Return i and f divided by exp(m), then log f + the previous m, and m, the larger of that and log i."""
    log_kept = _log_sigmoid(f) + m
    largest = tl.maximum(log_i, log_kept, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp(log_i - largest), tl.exp(log_kept - largest), log_kept, largest


@triton.jit
@no_type_check
def _forward(
    u_ptr, maps_ptr, moves_ptr, h_ptr, c_ptr, n_ptr, m_ptr,
    batch, heads, seq_len, d_head: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill states (batch, head, seq + 1, d) after the first, from u (batch, head, seq, 4, d), maps (head, d, 4, d)."""
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < batch
    sequence = row.to(tl.int64) * heads + head
    u_ptr += sequence[:, None] * seq_len * 4 * d_head
    before = sequence[:, None] * (seq_len + 1) * d_head
    maps_ptr += head.to(tl.int64) * d_head * 4 * d_head
    part = tl.arange(0, BLOCK)
    for t in range(seq_len):
        for first in range(0, d_head, BLOCK):
            d = first + part
            real = here[:, None] & (d[None, :] < d_head)
            log_i = tl.load(u_ptr + d[None, :], mask=real, other=0.0)
            f = tl.load(u_ptr + d_head + d[None, :], mask=real, other=0.0)
            z = tl.load(u_ptr + 2 * d_head + d[None, :], mask=real, other=0.0)
            o = tl.load(u_ptr + 3 * d_head + d[None, :], mask=real, other=0.0)
            for start in range(0, d_head, BLOCK):
                k = start + part
                h = tl.load(h_ptr + before + k[None, :], mask=here[:, None] & (k[None, :] < d_head), other=0.0)
                inner = (k[:, None] < d_head) & (d[None, :] < d_head)
                at = maps_ptr + k[:, None] * 4 * d_head + d[None, :]
                log_i = tl.dot(h, tl.load(at, mask=inner, other=0.0), log_i, input_precision=PRECISION)
                f = tl.dot(h, tl.load(at + d_head, mask=inner, other=0.0), f, input_precision=PRECISION)
                z = tl.dot(h, tl.load(at + 2 * d_head, mask=inner, other=0.0), z, input_precision=PRECISION)
                o = tl.dot(h, tl.load(at + 3 * d_head, mask=inner, other=0.0), o, input_precision=PRECISION)
            at = before + d[None, :]
            c, n = tl.load(c_ptr + at, mask=real, other=0.0), tl.load(n_ptr + at, mask=real, other=0.0)
            m = tl.load(m_ptr + at, mask=real, other=0.0)
            write, keep, _, largest = _step(log_i, f, m)
            c_next, n_next = keep * c + write * _tanh(z), keep * n + write
            h_next = _sigmoid(o) * c_next / n_next
            if RAGGED:
                moves = tl.load(moves_ptr + row * seq_len + t, mask=here, other=0)[:, None] != 0
                h = tl.load(h_ptr + at, mask=real, other=0.0)
                h_next, c_next = tl.where(moves, h_next, h), tl.where(moves, c_next, c)
                n_next, largest = tl.where(moves, n_next, n), tl.where(moves, largest, m)
            tl.store(h_ptr + at + d_head, h_next, mask=real)
            tl.store(c_ptr + at + d_head, c_next, mask=real)
            tl.store(n_ptr + at + d_head, n_next, mask=real)
            tl.store(m_ptr + at + d_head, largest, mask=real)
        tl.debug_barrier()  # the next step reads elements of h that other threads have written
        u_ptr += 4 * d_head
        before += d_head


@triton.jit
@no_type_check
def _backward(
    grad_y_ptr, gates_ptr, maps_ptr, moves_ptr, c_ptr, n_ptr, m_ptr, grad_u_ptr, gh_ptr, gc_ptr, gn_ptr, gm_ptr,
    batch, heads, seq_len, d_head: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute gradients; arguments as in `_forward`, but maps are (head, 4, d, d).

    gh, gc, gn and gm (batch, head, d) hold the gradients of the last state on entry, and of the first state at the end.
    """
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < batch
    sequence = row.to(tl.int64) * heads + head
    last = seq_len - 1
    of_gates = (sequence[:, None] * seq_len + last) * 4 * d_head
    of_y = (sequence[:, None] * seq_len + last) * d_head
    before = (sequence[:, None] * (seq_len + 1) + last) * d_head
    of_state = sequence[:, None] * d_head
    maps_ptr += head.to(tl.int64) * 4 * d_head * d_head
    part = tl.arange(0, BLOCK)
    for back in range(seq_len):
        for first in range(0, d_head, BLOCK):
            d = first + part
            real = here[:, None] & (d[None, :] < d_head)
            at = gates_ptr + of_gates + d[None, :]
            log_i, f = tl.load(at, mask=real, other=0.0), tl.load(at + d_head, mask=real, other=0.0)
            z, o = tl.load(at + 2 * d_head, mask=real, other=0.0), tl.load(at + 3 * d_head, mask=real, other=0.0)
            at = before + d[None, :]
            c_before, n_before = tl.load(c_ptr + at, mask=real, other=0.0), tl.load(n_ptr + at, mask=real, other=0.0)
            m_before = tl.load(m_ptr + at, mask=real, other=0.0)
            write, keep, log_kept, _ = _step(log_i, f, m_before)
            tanh_z = _tanh(z)
            c, n = keep * c_before + write * tanh_z, keep * n_before + write
            at = of_state + d[None, :]
            gh, gc = tl.load(gh_ptr + at, mask=real, other=0.0), tl.load(gc_ptr + at, mask=real, other=0.0)
            gn, gm = tl.load(gn_ptr + at, mask=real, other=0.0), tl.load(gm_ptr + at, mask=real, other=0.0)
            gh += tl.load(grad_y_ptr + of_y + d[None, :], mask=real, other=0.0)
            out = _sigmoid(o)
            through_c = gc + gh * out / n
            through_n = gn - gh * out * c / (n * n)
            of_write = (through_c * tanh_z + through_n) * write
            of_keep = (through_c * c_before + through_n * n_before) * keep
            of_largest = gm - of_write - of_keep
            share = tl.where(log_i > log_kept, 1.0, tl.where(log_i < log_kept, 0.0, 0.5))
            of_log_i, of_log_kept = of_write + share * of_largest, of_keep + (1.0 - share) * of_largest
            of_f = of_log_kept * _sigmoid(-f)
            of_z = through_c * write * (1.0 - tanh_z * tanh_z)
            of_o = gh * (c / n) * out * (1.0 - out)
            kept, of_c, of_n, of_m = tl.zeros_like(gh), through_c * keep, through_n * keep, of_log_kept
            if RAGGED:
                moves = tl.load(moves_ptr + row * seq_len + last - back, mask=here, other=0)[:, None] != 0
                of_log_i, of_f = tl.where(moves, of_log_i, 0.0), tl.where(moves, of_f, 0.0)
                of_z, of_o = tl.where(moves, of_z, 0.0), tl.where(moves, of_o, 0.0)
                kept, of_c = tl.where(moves, 0.0, gh), tl.where(moves, of_c, gc)
                of_n, of_m = tl.where(moves, of_n, gn), tl.where(moves, of_m, gm)
            tl.store(gh_ptr + at, kept, mask=real)
            tl.store(gc_ptr + at, of_c, mask=real)
            tl.store(gn_ptr + at, of_n, mask=real)
            tl.store(gm_ptr + at, of_m, mask=real)
            at = grad_u_ptr + of_gates + d[None, :]
            tl.store(at, of_log_i, mask=real)
            tl.store(at + d_head, of_f, mask=real)
            tl.store(at + 2 * d_head, of_z, mask=real)
            tl.store(at + 3 * d_head, of_o, mask=real)
        tl.debug_barrier()
        for first in range(0, d_head, BLOCK):
            d = first + part
            real = here[:, None] & (d[None, :] < d_head)
            gh = tl.load(gh_ptr + of_state + d[None, :], mask=real, other=0.0)
            for start in range(0, 4 * d_head, BLOCK):
                k = start + part
                inside = here[:, None] & (k[None, :] < 4 * d_head)
                of_u = tl.load(grad_u_ptr + of_gates + k[None, :], mask=inside, other=0.0)
                inner = (k[:, None] < 4 * d_head) & (d[None, :] < d_head)
                maps = tl.load(maps_ptr + k[:, None] * d_head + d[None, :], mask=inner, other=0.0)
                gh = tl.dot(of_u, maps, gh, input_precision=PRECISION)
            tl.store(gh_ptr + of_state + d[None, :], gh, mask=real)
        tl.debug_barrier()
        of_gates -= 4 * d_head
        of_y -= d_head
        before -= d_head


def forward(u: Tensor, recurrent: Tensor, state: Sequence[Tensor], valid: Tensor | None) -> Tensor:
    """Return h, c, n and m (4, batch, heads, seq + 1, d_head) before each position and after the last.

    Arguments are as in `zoo.ops.slstm.slstm_scan`, all float32.
    """
    batch, heads, seq_len, _, d_head = u.shape
    states = u.new_empty(4, batch, heads, seq_len + 1, d_head)
    states[:, :, :, 0] = torch.stack(tuple(state))
    maps = rearrange(recurrent, "four heads out d_head -> heads d_head four out").contiguous()
    _launch(_forward, u, valid, u.contiguous(), maps, _moving(u, valid), *states)
    return states


def backward(
    grads: Sequence[Tensor], u: Tensor, recurrent: Tensor, states: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of u, of the recurrent matrices and of the first state (4, batch, heads, d_head).

    Args:
        grads: gradients of h at every position, and of the last h, c, n and m.
        u, recurrent, valid: as in `forward`.
        states: result of `forward`.
    """
    before = states[0, :, :, :-1]
    maps = rearrange(recurrent, "four heads out d_head -> heads (four out) d_head").contiguous()
    gates = torch.baddbmm(u.flatten(3).flatten(0, 1), before.flatten(0, 1), maps.mT.repeat(len(u), 1, 1))
    grad_u = torch.empty_like(u, memory_format=torch.contiguous_format)
    first = torch.stack(tuple(grads[1:]))
    given = grads[0].contiguous(), gates, maps, _moving(u, valid), *states[1:]
    _launch(_backward, u, valid, *given, grad_u, *first)
    outer = torch.einsum("bhti,bhtj->hij", grad_u.flatten(3), before)
    return grad_u, rearrange(outer, "heads (four out) d_head -> four heads out d_head", four=4).contiguous(), first


def _moving(u: Tensor, valid: Tensor | None) -> Tensor:
    # A kernel argument cannot be None: without `valid`, RAGGED is false and this is never read.
    return u if valid is None else valid.contiguous().view(torch.uint8)


def _launch(kernel: Any, u: Tensor, valid: Tensor | None, *tensors: Tensor) -> None:
    batch, heads, seq_len, _, d_head = u.shape
    block = min(BLOCK, max(16, triton.next_power_of_2(d_head)))
    sizes = {"ROWS": ROWS, "BLOCK": block, "RAGGED": valid is not None}
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    grid = (triton.cdiv(batch, ROWS), heads)
    with torch.cuda.device_of(u):  # triton launches on the current device, not on the tensors'
        kernel[grid](*tensors, batch, heads, seq_len, d_head=d_head, PRECISION=precision, **sizes, num_warps=WARPS)
