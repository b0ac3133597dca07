"""Backend `torch` of `zoo.ops.scan`: bulk operations on a few steps at a time, on any device and in any precision.

Decays and inputs of several steps are computed in bulk, then one multiply-add per step runs the recurrence in place.
Inside, time comes first and channels last.

On the CPU, operations are kept too small for torch to distribute over threads. There are a dozen per few steps, each
taking microseconds. With a second thread, each would wait for a core that may be busy, which on a loaded machine takes
tens of times as long as the work. So rows and channels are processed in blocks, and steps in pieces of at most `_GRAIN`
elements. Weighted sums are a product and a sum, since `torch.bmm` uses threads at any size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = tuple[Tensor, ...]

_LOG2_E = math.log2(math.e)  # exp2 is markedly faster than exp on CPUs
_GRAIN = 32_767  # most elements that torch processes in one thread
_BLOCK = 4_096  # elements of a state that one pass over time carries: a piece then has seven steps or more
_CHUNK_NUMBERS = 65_536  # elements of the states between two kept ones: a quarter of a megabyte stays in cache


def _piece(batch: int, d_inner: int, d_state: int) -> tuple[int, int, int]:
    """Return rows and channels of a block, and steps of a piece."""
    channels = max(1, min(d_inner, _BLOCK // d_state))
    rows = max(1, min(batch, _BLOCK // (channels * d_state)))
    return rows, channels, max(1, min(64, _GRAIN // (rows * channels * d_state)))


def chunk_length(batch: int, d_inner: int, d_state: int, seq_len: int) -> int:
    """Return the steps of a chunk, a multiple of a piece; one state per chunk is kept for backward."""
    steps = max(16, min(128, _CHUNK_NUMBERS // max(1, batch * d_inner * d_state)))
    piece = _piece(batch, d_inner, d_state)[2]
    return min(seq_len, max(1, steps // piece) * piece)


def _blocks(x: Tensor, d_state: int) -> Iterator[tuple[slice, slice, int]]:
    """Yield slices of rows and channels that are computed together, and the steps of a piece.

    With one thread or off the CPU, a piece is a whole chunk, since there are no threads to avoid. Off the CPU, one
    block covers everything.
    """
    batch, seq_len, d_inner = x.shape
    rows, channels, piece = _piece(batch, d_inner, d_state)
    on_cpu = x.device.type == "cpu"
    if not on_cpu:
        rows, channels = max(1, batch), d_inner
    if not on_cpu or torch.get_num_threads() == 1:
        piece = chunk_length(batch, d_inner, d_state, seq_len)
    for row in range(0, batch, rows):
        for channel in range(0, d_inner, channels):
            yield slice(row, row + rows), slice(channel, channel + channels), min(piece, seq_len)


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the final state, and the state that enters each chunk (chunk, batch, d_state, d_inner)."""
    batch, seq_len, d_inner = x.shape
    size = chunk_length(batch, d_inner, A.shape[1], seq_len)
    y, final = torch.empty_like(x), torch.empty_like(state)
    entering = x.new_empty(-(-seq_len // size), batch, A.shape[1], d_inner)
    for i, d, piece in _blocks(x, A.shape[1]):
        given = (x[i, :, d], dt[i, :, d], A[d], B[i], C[i], state[i, d])
        _forward(given, (y[i, :, d], final[i, d], entering[:, i, :, d]), size, piece)
    return y, final, entering


def _forward(given: Tensors, found: Tensors, size: int, piece: int) -> None:
    """Write y, the final state and the states that enter the chunks, for one block."""
    (x, dt, A, B, C, state), (y, final, entering) = given, found
    x, dt, B, C = (_swap(t) for t in (x, dt, B, C))
    A2 = (A.t() * _LOG2_E).contiguous()
    out = torch.empty_like(x)
    h, decay, work = _buffers(x, A2, piece, piece, piece)
    after, states, decays = h[1:], h.unbind(0), decay.unbind(0)  # create views once: each takes as long as a step
    states[0].copy_(state.transpose(1, 2))
    inputs = (dt.unsqueeze(2), (dt * x).unsqueeze(2), B.unsqueeze(3), C.unsqueeze(3))
    parts = zip(*(t.split(piece) for t in (*inputs, out)), strict=True)
    for number, (dts, us, Bs, Cs, ys) in enumerate(parts):
        start, steps = number * piece, len(ys)
        if start % size == 0:
            entering[start // size].copy_(states[0])
        if steps < piece:  # the last one
            after, decay, work = after[:steps], decay[:steps], work[:steps]
        torch.mul(us, Bs, out=after)
        torch.mul(dts, A2, out=decay).exp2_()
        _run(states[: steps + 1], decays)
        torch.sum(torch.mul(after, Cs, out=work), 2, out=ys)
        states[0].copy_(states[steps])
    y.copy_(out.transpose(0, 1))
    final.copy_(states[0].transpose(1, 2))


def step(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return y and the state for a sequence of one position, outside autograd; decoding calls it for each token."""
    h = (dt.transpose(1, 2) * A).exp_().mul_(state).addcmul_((dt * x).transpose(1, 2), B)
    return torch.bmm(C, h.transpose(1, 2)), h


def scan_backward(
    grad_y: Tensor, grad_final: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, entering: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of x, dt, A, B, C and the initial state.

    With g_t the gradient that reaches h_t:  g_t = C_t grad_y_t + exp(dt_{t+1} A) g_{t+1}.
    """
    batch, seq_len, d_inner = x.shape
    size = chunk_length(batch, d_inner, A.shape[1], seq_len)
    grad_x, grad_dt, grad_state = torch.empty_like(x), torch.empty_like(dt), torch.empty_like(grad_final)
    grad_A, grad_B, grad_C = torch.zeros_like(A), torch.zeros_like(B), torch.zeros_like(C)
    for i, d, piece in _blocks(x, A.shape[1]):
        given = (grad_y[i, :, d], grad_final[i, d], x[i, :, d], dt[i, :, d], A[d], B[i], C[i], entering[:, i, :, d])
        found = (grad_x[i, :, d], grad_dt[i, :, d], grad_A[d], grad_B[i], grad_C[i], grad_state[i, d])
        _backward(given, found, size, piece)
    return grad_x, grad_dt, grad_A, grad_B, grad_C, grad_state


def _backward(given: Tensors, found: Tensors, size: int, piece: int) -> None:
    """Write a block's gradients of x, dt and the initial state; add its part to the gradients of A, B and C."""
    grad_y, grad_final, x, dt, A, B, C, entering = given
    grad_x, grad_dt, grad_A, grad_B, grad_C, grad_state = found
    x, dt, B, C, grad_y = (_swap(t) for t in (x, dt, B, C, grad_y))
    At = A.t().contiguous()
    A2 = At * _LOG2_E
    grad_u, grad_step, over_B, over_C = (torch.empty_like(t) for t in (x, x, B, C))
    h, decay, g = _buffers(x, A2, size, size, piece)
    work, over_A = torch.empty_like(g), torch.zeros_like(g)
    states, gradients, decays = h.unbind(0), g.unbind(0), decay.unbind(0)
    buffers = [*zip(h[:-1].split(piece), h[1:].split(piece), decay.split(piece), strict=True)]
    inputs = (dt.unsqueeze(2), (dt * x).unsqueeze(2), B.unsqueeze(3), C.unsqueeze(3), grad_y.unsqueeze(2))
    parts = [*zip(*(t.split(piece) for t in (*inputs, grad_u, grad_step, over_B, over_C)), strict=True)]
    per_chunk = -(-size // piece)
    # Gradient of a chunk's last state from later chunks; a copy, since it is modified.
    arriving = grad_final.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    for chunk in reversed(range(len(entering))):
        mine = parts[chunk * per_chunk : (chunk + 1) * per_chunk]
        states[0].copy_(entering[chunk])
        for number, (dts, us, Bs, *_) in enumerate(mine):
            start, end = number * piece, number * piece + len(dts)
            _, after, a = (t[: len(dts)] for t in buffers[number]) if len(dts) < piece else buffers[number]
            torch.mul(us, Bs, out=after)
            torch.mul(dts, A2, out=a).exp2_()
            _run(states[start : end + 1], decays[start:end])
        for number, (dts, us, Bs, Cs, grad_ys, grad_us, grad_steps, grad_Bs, grad_Cs) in reversed([*enumerate(mine)]):
            start, steps = number * piece, len(dts)
            end = start + steps
            gn, wn, total, before, after, a = _first(steps, (g, work, over_A, *buffers[number]))
            torch.mul(grad_ys, Cs, out=gn)
            gradients[steps - 1].add_(arriving)
            _run(gradients[:steps][::-1], decays[start + 1 : end][::-1])
            torch.sum(torch.mul(after, grad_ys, out=wn), 3, out=grad_Cs)
            torch.sum(torch.mul(gn, us, out=wn), 3, out=grad_Bs)
            torch.sum(torch.mul(gn, Bs, out=wn), 2, out=grad_us)
            gn.mul_(a)
            arriving.copy_(gradients[0])
            gn.mul_(before)  # g_t exp(dt_t A) h_{t-1}: the gradient of dt_t A
            torch.sum(torch.mul(gn, At, out=wn), 2, out=grad_steps)
            total.addcmul_(gn, dts)
    grad_dt.copy_(grad_step.addcmul_(grad_u, x).transpose(0, 1))
    grad_x.copy_(grad_u.mul_(dt).transpose(0, 1))
    grad_A.add_(over_A.sum((0, 1)).t())
    grad_B.add_(over_B.transpose(0, 1))
    grad_C.add_(over_C.transpose(0, 1))
    grad_state.copy_(arriving.transpose(1, 2))


def _buffers(x: Tensor, A2: Tensor, *steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate buffers (time, batch, d_state, d_inner) for states, with one step more than given, and two others."""
    more, *others = steps
    first, second, third = (x.new_empty(n, x.shape[1], *A2.shape) for n in (more + 1, *others))
    return first, second, third


def _swap(t: Tensor) -> Tensor:
    """Move time before batch."""
    return t.transpose(0, 1).contiguous()


def _first(steps: int, tensors: Tensors) -> Tensors:
    """Return the first `steps` entries of each tensor; the tensors themselves if they have no more."""
    return tensors if len(tensors[0]) == steps else tuple(t[:steps] for t in tensors)


def _run(h: Tensors, decays: Tensors) -> None:
    """h_{t+1} += decay_t h_t, one after the other, in place."""
    for now, decay, before in zip(h[1:], decays, h, strict=False):
        now.addcmul_(decay, before)
