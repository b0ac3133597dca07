"""Backend `triton` of `zoo.ops.scan`: the selective scan on CUDA devices; it needs no CUDA compiler.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t        h (d_inner, d_state)
    y_t = h_t C_t

A program handles one row of the batch, a block of channels and a segment of time. It keeps their states in registers
and walks along the segment. It stores its state once per chunk. Backward recomputes the states of a chunk from there,
last chunk first, and keeps them in registers too, so nothing is ever divided by a decay. Channels are contiguous in
memory and across threads; a thread has four consecutive states of a channel, whose B and C it loads at once. All loads
of a chunk are issued before its first store: stores may alias, so no load can be moved across them.

If batch and channels alone do not fill the device, time is split into segments. A first kernel computes each segment's
final state from an empty one; every program then starts from the combined result of the segments before it.

Sums over channels (the gradients of B and C) are written per block of channels, in the dtype of B and C, and summed
afterwards in a fixed order: results are reproducible. States, sums and decays are float32 for inputs of any dtype.

Under TRITON_INTERPRET=1, set before triton is imported, the same code runs on the CPU: slowly, for tests.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


class Tile(NamedTuple):
    """The block of one program; `states` is d_state rounded up to a power of two."""

    states: int
    channels: int
    warps: int


CHUNK = 32  # steps between two kept states
STEPS = 8  # steps that forward unrolls
STEPS_BACKWARD = 8  # steps whose states backward holds in registers; it recomputes up to the start of each such part

# With fewer than FEW_WARPS warps, time is split into segments, up to MANY_WARPS warps in total.
FEW_WARPS, MANY_WARPS = 1024, 8192
SEGMENT = 256  # least positions of a segment, several chunks


def _tile(d_state: int, channels: int, per_thread: int) -> Tile:
    states = triton.next_power_of_2(d_state)
    return Tile(states, channels, min(16, max(1, states * channels // (32 * per_thread))))


def forward_tile(d_state: int) -> Tile:
    """Return a tile with four elements per thread, and one warp at 16 states: wide models have programs enough."""
    return _tile(d_state, max(8, 128 // triton.next_power_of_2(d_state)), 4)


def backward_tile(d_state: int) -> Tile:
    """Return a tile with eight elements per thread; up to 16 states, one warp: sums over channels need no barrier."""
    states = triton.next_power_of_2(d_state)
    return _tile(d_state, 256 // states if states <= 16 else 32, 8)


def segment_length(batch: int, seq_len: int, d_inner: int, tile: Tile) -> int:
    """Return the positions of a segment: whole chunks; the whole sequence if it need not be split."""
    warps = batch * triton.cdiv(d_inner, tile.channels) * tile.warps
    segments = max(1, min(MANY_WARPS // warps, seq_len // SEGMENT)) if 0 < warps < FEW_WARPS else 1
    return CHUNK * triton.cdiv(triton.cdiv(seq_len, segments), CHUNK)


def chunk_length(batch: int, d_inner: int, d_state: int, seq_len: int) -> int:
    """Return the steps between two kept states."""
    return CHUNK


# `no_type_check` hides the kernels from the tests' shape checker: triton compiles their source, not the functions.


@triton.jit
@no_type_check
def _load(pointers, mask, FULL: tl.constexpr):
    """Load as float32; if no element is missing, without a mask, which saves the comparisons."""
    if FULL:
        values = tl.load(pointers)
    else:
        values = tl.load(pointers, mask=mask, other=0.0)
    return values.to(tl.float32)


@triton.jit
@no_type_check
def _stack(rows, LENGTH: tl.constexpr):
    """Return the tile (channels, LENGTH) whose columns are the tensors of a tuple, LENGTH a power of two."""
    if LENGTH == 1:
        tile = rows[0]
    else:
        pairs = ()
        for i in tl.static_range(LENGTH // 2):
            pairs = pairs + (tl.join(rows[i], rows[i + LENGTH // 2]),)
        tile = _stack(pairs, LENGTH // 2)
    return tile


@triton.jit
@no_type_check
def _steps(ptr, at, real, left, width: tl.constexpr, STEPS: tl.constexpr, FULL: tl.constexpr):
    """Load `at` from STEPS rows, of which `left` exist; the others are zero and change no state."""
    rows = ()
    for step in tl.static_range(STEPS):
        rows = rows + (_load(ptr + step * width + at, real & (step < left), FULL),)
    return rows


@triton.jit
@no_type_check
def _advance(h, xs, dts, Bs, A2):
    """Return the states before, between and after the steps of `xs` and `dts`: one more than the number of steps."""
    hs = (h,)
    for step in tl.static_range(len(xs)):
        h = tl.exp2(dts[step][None, :] * A2) * h + (dts[step] * xs[step])[None, :] * Bs[step]
        hs = hs + (h,)
    return hs


@triton.jit
@no_type_check
def _entering_state(
    first_ptr, finals_ptr, dt_sums_ptr, row, segment, segments, batch, d, n, real, states, A2,
    d_inner: tl.constexpr, d_state: tl.constexpr, BACKWARDS: tl.constexpr,
):  # fmt: skip
    """Return the state h (g if BACKWARDS) that enters a segment: `first`, decayed, plus the parts of other segments."""
    state = tl.load(first_ptr + row * d_inner * d_state + d[None, :] * d_state + n[:, None], mask=states, other=0.0)
    before = segments - 1 - segment if BACKWARDS else segment
    for step in range(before):
        at = tl.cast(segments - 1 - step if BACKWARDS else step, tl.int64) * batch + row
        dt_sum = tl.load(dt_sums_ptr + at * d_inner + d, mask=real, other=0.0)
        finals = tl.load(
            finals_ptr + at * d_inner * d_state + n[:, None] * d_inner + d[None, :], mask=states, other=0.0
        )
        state = tl.exp2(dt_sum[None, :] * A2) * state + finals
    return state


@triton.jit
@no_type_check
def _segment_finals(
    x_ptr, dt_ptr, A_ptr, B_ptr, finals_ptr, dt_sums_ptr,
    batch, seq_len, segment_len, d_inner: tl.constexpr, d_state: tl.constexpr, BACKWARDS: tl.constexpr,
    STEPS: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Store a segment's final state from an empty one, and the sum of its dt; if BACKWARDS, of g, from grad_y and C."""
    blocks: tl.constexpr = tl.cdiv(d_inner, CHANNELS)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    segment = tl.program_id(1)
    d = (tl.program_id(0) % blocks) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    real = d < d_inner
    states = (n[:, None] < d_state) & real[None, :]
    per_step = tl.broadcast_to(n[:, None], [STATES, CHANNELS])
    A2 = tl.load(A_ptr + d[None, :] * d_state + n[:, None], mask=states, other=0.0) * _LOG2_E
    begin = segment * segment_len
    end = tl.minimum(begin + segment_len, seq_len)
    parts = tl.cdiv(end - begin, STEPS)
    h = tl.zeros([STATES, CHANNELS], tl.float32)
    dt_sum = tl.zeros([CHANNELS], tl.float32)
    for index in range(parts):
        here = begin + (parts - 1 - index if BACKWARDS else index) * STEPS
        left = tl.full([1], end - here, tl.int32)
        at = row * seq_len + here
        xs = _steps(x_ptr + at * d_inner, d, real, left, d_inner, STEPS, FULL)
        dts = _steps(dt_ptr + at * d_inner, d, real, left, d_inner, STEPS, FULL)
        Bs = _steps(B_ptr + at * d_state, per_step, states, left, d_state, STEPS, FULL)
        if BACKWARDS:
            for step in tl.static_range(STEPS - 1, -1, -1):
                h = tl.exp2(dts[step][None, :] * A2) * (h + xs[step][None, :] * Bs[step])
        else:
            h = _advance(h, xs, dts, Bs, A2)[STEPS]
        for step in tl.static_range(STEPS):
            dt_sum += dts[step]
    at = tl.cast(segment, tl.int64) * batch + row
    tl.store(finals_ptr + at * d_inner * d_state + n[:, None] * d_inner + d[None, :], h, mask=states)
    tl.store(dt_sums_ptr + at * d_inner + d, dt_sum, mask=real)


@triton.jit
@no_type_check
def _forward(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, state_ptr, finals_ptr, dt_sums_ptr, y_ptr, final_ptr, entering_ptr,
    batch, seq_len, segment_len, d_inner: tl.constexpr, d_state: tl.constexpr,
    CHUNK: tl.constexpr, STEPS: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = tl.cdiv(d_inner, CHANNELS)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    d = (tl.program_id(0) % blocks) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    real = d < d_inner
    states = (n[:, None] < d_state) & real[None, :]
    of_channel = d[None, :] * d_state + n[:, None]
    of_state = n[:, None] * d_inner + d[None, :]
    per_step = tl.broadcast_to(n[:, None], [STATES, CHANNELS])
    t = tl.arange(0, STEPS)
    A2 = tl.load(A_ptr + of_channel, mask=states, other=0.0) * _LOG2_E  # exp(dt A) = 2^(dt A2): one instruction
    segment, segments = tl.program_id(1), tl.num_programs(1)
    h = _entering_state(
        state_ptr, finals_ptr, dt_sums_ptr, row, segment, segments, batch, d, n, real, states, A2, d_inner, d_state,
        False,
    )  # fmt: skip
    begin = segment * segment_len
    end = tl.minimum(begin + segment_len, seq_len)
    for here in range(begin, end, STEPS):
        left = tl.full([1], end - here, tl.int32)  # a block, since the interpreter widens a scalar comparison
        at = row * seq_len + here
        xs = _steps(x_ptr + at * d_inner, d, real, left, d_inner, STEPS, FULL)
        dts = _steps(dt_ptr + at * d_inner, d, real, left, d_inner, STEPS, FULL)
        Bs = _steps(B_ptr + at * d_state, per_step, states, left, d_state, STEPS, FULL)
        Cs = _steps(C_ptr + at * d_state, per_step, states, left, d_state, STEPS, FULL)
        if here % CHUNK == 0:  # backward recomputes the chunk's states from here
            chunk = tl.cast(here // CHUNK, tl.int64) * batch + row
            tl.store(entering_ptr + chunk * d_state * d_inner + of_state, h, mask=states)
        hs = _advance(h, xs, dts, Bs, A2)
        ys = ()
        for step in tl.static_range(STEPS):
            ys = ys + (tl.sum(hs[step + 1] * Cs[step], axis=0),)
        h = hs[STEPS]
        y = tl.reshape(_stack(ys, STEPS), [CHANNELS, STEPS])
        inside = real[:, None] & (t[None, :] < left)
        tl.store(y_ptr + (at + t[None, :]) * d_inner + d[:, None], y.to(y_ptr.dtype.element_ty), mask=inside)
    if segment == segments - 1:
        tl.store(final_ptr + row * d_inner * d_state + of_channel, h, mask=states)


@triton.jit
@no_type_check
def _backward(
    grad_y_ptr, grad_final_ptr, x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, entering_ptr, finals_ptr, dt_sums_ptr,
    grad_x_ptr, grad_dt_ptr, grad_A_ptr, grad_B_ptr, grad_C_ptr, grad_state_ptr,
    batch, seq_len, segment_len, d_inner: tl.constexpr, d_state: tl.constexpr,
    PARTS: tl.constexpr, STEPS: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Compute gradients, with g_t the gradient that reaches h_t:  g_t = C_t grad_y_t + exp(dt_{t+1} A) g_{t+1}.

    grad_A is per segment and row, (segments, batch, d_state, d_inner); grad_B and grad_C are per block, (blocks, batch,
    seq, d_state).
    """
    blocks: tl.constexpr = tl.cdiv(d_inner, CHANNELS)
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64)
    d = block * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    real = d < d_inner
    states = (n[:, None] < d_state) & real[None, :]
    of_channel = d[None, :] * d_state + n[:, None]
    of_state = n[:, None] * d_inner + d[None, :]
    per_step = tl.broadcast_to(n[:, None], [STATES, CHANNELS])
    t = tl.arange(0, STEPS)
    A2 = tl.load(A_ptr + of_channel, mask=states, other=0.0) * _LOG2_E
    segment, segments = tl.program_id(1), tl.num_programs(1)
    g = _entering_state(
        grad_final_ptr, finals_ptr, dt_sums_ptr, row, segment, segments, batch, d, n, real, states, A2, d_inner,
        d_state, True,
    )  # fmt: skip
    grad_A = tl.zeros([STATES, CHANNELS], tl.float32)
    x_ptr += row * seq_len * d_inner
    dt_ptr += row * seq_len * d_inner
    grad_y_ptr += row * seq_len * d_inner
    grad_x_ptr += row * seq_len * d_inner
    grad_dt_ptr += row * seq_len * d_inner
    B_ptr += row * seq_len * d_state
    C_ptr += row * seq_len * d_state
    grad_B_ptr += (tl.cast(block, tl.int64) * batch + row) * seq_len * d_state
    grad_C_ptr += (tl.cast(block, tl.int64) * batch + row) * seq_len * d_state
    entering_ptr += row * d_state * d_inner
    whole = tl.full([1], STEPS, tl.int32)
    first = segment * segment_len // STEPS
    for part in range(tl.cdiv(tl.minimum((segment + 1) * segment_len, seq_len), STEPS) - 1, first - 1, -1):
        chunk = tl.cast(part // PARTS, tl.int64)
        h = tl.load(entering_ptr + chunk * batch * d_state * d_inner + of_state, mask=states, other=0.0)
        # Forward kept only one state per chunk: run from there to the start of this part.
        for earlier in range(part // PARTS * PARTS, part):
            start = tl.cast(earlier, tl.int64) * STEPS
            xs = _steps(x_ptr + start * d_inner, d, real, whole, d_inner, STEPS, FULL)
            dts = _steps(dt_ptr + start * d_inner, d, real, whole, d_inner, STEPS, FULL)
            Bs = _steps(B_ptr + start * d_state, per_step, states, whole, d_state, STEPS, FULL)
            h = _advance(h, xs, dts, Bs, A2)[STEPS]
        start = tl.cast(part, tl.int64) * STEPS
        left = tl.full([1], seq_len - part * STEPS, tl.int32)
        xs = _steps(x_ptr + start * d_inner, d, real, left, d_inner, STEPS, FULL)
        dts = _steps(dt_ptr + start * d_inner, d, real, left, d_inner, STEPS, FULL)
        grad_ys = _steps(grad_y_ptr + start * d_inner, d, real, left, d_inner, STEPS, FULL)
        Bs = _steps(B_ptr + start * d_state, per_step, states, left, d_state, STEPS, FULL)
        Cs = _steps(C_ptr + start * d_state, per_step, states, left, d_state, STEPS, FULL)
        hs = _advance(h, xs, dts, Bs, A2)
        grad_xs, grad_dts = (), ()
        for step in tl.static_range(STEPS - 1, -1, -1):
            dt, grad_y = dts[step][None, :], grad_ys[step][None, :]
            inside = (n < d_state) & (step < left)
            tl.store(grad_C_ptr + (start + step) * d_state + n, tl.sum(grad_y * hs[step + 1], axis=1), mask=inside)
            g += grad_y * Cs[step]
            tl.store(
                grad_B_ptr + (start + step) * d_state + n, tl.sum(g * (dt * xs[step][None, :]), axis=1), mask=inside
            )
            grad_u = tl.sum(g * Bs[step], axis=0)  # gradient of u = dt x
            g *= tl.exp2(dt * A2)
            grad_decay = g * hs[step]  # the gradient of dt_t A
            grad_A += grad_decay * dt
            grad_xs = (grad_u * dts[step],) + grad_xs
            # A = A2 ln 2
            grad_dts = (grad_u * xs[step] + tl.sum(grad_decay * A2, axis=0) * _LN_2,) + grad_dts
        inside = real[:, None] & (t[None, :] < left)
        at = start * d_inner + t[None, :] * d_inner + d[:, None]
        grad_x = tl.reshape(_stack(grad_xs, STEPS), [CHANNELS, STEPS])
        grad_dt = tl.reshape(_stack(grad_dts, STEPS), [CHANNELS, STEPS])
        tl.store(grad_x_ptr + at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        tl.store(grad_dt_ptr + at, grad_dt.to(grad_dt_ptr.dtype.element_ty), mask=inside)
    tl.store(grad_A_ptr + (segment * batch + row) * d_inner * d_state + of_state, grad_A, mask=states)
    if segment == 0:
        tl.store(grad_state_ptr + row * d_inner * d_state + of_channel, g, mask=states)


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return y in x's dtype, the final state, and the state that enters each chunk (chunk, batch, d_state, d_inner).

    x, dt (batch, seq, d_inner) and B, C (batch, seq, d_state) are float32 or bfloat16; A (d_inner, d_state) and the
    states (batch, d_inner, d_state) are float32.
    """
    batch, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    tile = forward_tile(d_state)
    x, dt, A, B, C, state = (t.contiguous() for t in (x, dt, A, B.float(), C.float(), state))
    y, final = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, state))
    entering = state.new_empty(triton.cdiv(seq_len, CHUNK), batch, d_state, d_inner)
    segments = _segments(x, dt, A, B, tile, STEPS, backwards=False)
    given = x, dt, A, B, C, state, *segments, y, final, entering
    _launch(_forward, tile, x.shape, d_state, *given, STEPS=STEPS, CHUNK=CHUNK)
    return y, final, entering


def scan_backward(
    grad_y: Tensor, grad_final: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, entering: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of x, dt, A, B, C and the state before the first position, each in its tensor's dtype."""
    batch, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    tile = backward_tile(d_state)
    blocks = triton.cdiv(d_inner, tile.channels)
    grad_y, grad_final, x, dt, A, entering = (t.contiguous() for t in (grad_y, grad_final, x, dt, A, entering))
    wide_B, wide_C = B.float().contiguous(), C.float().contiguous()
    finals, dt_sum = _segments(grad_y, dt, A, wide_C, tile, STEPS_BACKWARD, backwards=True)
    inputs = grad_y, grad_final, x, dt, A, wide_B, wide_C, entering, finals, dt_sum
    grad_x, grad_dt = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, dt))
    # Parts that are summed afterwards: atomic additions would have a different order each time.
    of_A = A.new_empty(len(finals), batch, d_state, d_inner)
    of_B, of_C = (t.new_empty(blocks, batch, seq_len, d_state) for t in (B, C))
    grad_state = A.new_empty(batch, d_inner, d_state)
    outputs = grad_x, grad_dt, of_A, of_B, of_C, grad_state
    sizes = {"STEPS": STEPS_BACKWARD, "PARTS": CHUNK // STEPS_BACKWARD}
    _launch(_backward, tile, x.shape, d_state, *inputs, *outputs, **sizes)
    return grad_x, grad_dt, of_A.sum((0, 1)).t().contiguous(), of_B.sum(0), of_C.sum(0), grad_state


def _segments(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, tile: Tile, steps: int, *, backwards: bool
) -> tuple[Tensor, Tensor]:
    """Return each segment's final state from an empty one, (segments, batch, d_state, d_inner), and the sums of its dt.

    With a single segment, nothing is computed and the results are never read.
    """
    batch, seq_len, d_inner = x.shape
    segments = triton.cdiv(seq_len, segment_length(batch, seq_len, d_inner, tile))
    finals = A.new_empty(segments, batch, A.shape[1], d_inner)
    dt_sum = A.new_empty(segments, batch, d_inner)
    if segments > 1:
        _launch(
            _segment_finals, tile, x.shape, A.shape[1], x, dt, A, B, finals, dt_sum, STEPS=steps, BACKWARDS=backwards
        )
    return finals, dt_sum


def _launch(kernel: Any, tile: Tile, shape: torch.Size, d_state: int, *tensors: Tensor, **more: int) -> None:
    batch, seq_len, d_inner = shape
    segment_len = segment_length(batch, seq_len, d_inner, tile)
    sizes = {"d_inner": d_inner, "d_state": d_state, "STATES": tile.states, "CHANNELS": tile.channels}
    # Skip the comparisons with the tensors' edges if no program reaches beyond them.
    full = d_inner % tile.channels == 0 and d_state == tile.states and seq_len % more["STEPS"] == 0
    grid = (batch * triton.cdiv(d_inner, tile.channels), triton.cdiv(seq_len, segment_len))
    with torch.cuda.device_of(tensors[0]):  # triton launches on the current device, not on the tensors'
        kernel[grid](
            *tensors, batch, seq_len, segment_len, **sizes, **more, FULL=full, num_warps=tile.warps,
            enable_fp_fusion=True,
        )  # fmt: skip
