"""Backend `torch` of `zoo.ops.scan`: bulk operations on chunks, on any device and in any precision.

Per chunk the decays and inputs of all steps are made in bulk, then one multiply-add a step runs the recurrence in
place. Inside, time comes first and channels last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = tuple[Tensor, ...]

_LOG2_E = math.log2(math.e)  # exp2 is markedly faster than exp on CPUs
_CHUNK_NUMBERS = 262_144  # work buffers of about a megabyte stay in cache
_WORTH_THREADS = 4 * _CHUNK_NUMBERS


def chunk_length(batch: int, d_inner: int, d_state: int, seq_len: int) -> int:
    """Steps of a chunk: one state a chunk is kept for backward."""
    steps = _CHUNK_NUMBERS // max(1, batch * d_inner * d_state)
    return min(seq_len, max(16, min(128, steps)))


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state, and the state that enters each chunk (chunk, batch, d_state, d_inner)."""
    batch, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    A2 = (A.t() * _LOG2_E).contiguous()
    x, dt, B, C = (_swap(t) for t in (x, dt, B, C))
    y = torch.empty_like(x)
    size = chunk_length(batch, d_inner, d_state, seq_len)
    h = x.new_empty(size + 1, batch, d_state, d_inner)
    decay = x.new_empty(size, batch, d_state, d_inner)
    states, decays = h.unbind(0), decay.unbind(0)  # once: making so many views takes as long as a chunk's decays
    states[0].copy_(state.transpose(1, 2))
    entering = x.new_empty(-(-seq_len // size), batch, d_state, d_inner)
    with _threads_that_pay(decay):
        for chunk, start in enumerate(range(0, seq_len, size)):
            now = slice(start, min(start + size, seq_len))
            steps = now.stop - start
            entering[chunk].copy_(states[0])
            _decays(dt[now], A2, decay[:steps])
            torch.mul((dt[now] * x[now]).unsqueeze(2), B[now].unsqueeze(3), out=h[1 : steps + 1])
            _run(states[: steps + 1], decays[:steps])
            _over_states(C[now], h[1 : steps + 1], y[now])
            states[0].copy_(states[steps])
    return _swap(y), states[0].transpose(1, 2).contiguous(), entering


def step(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """y and the state of a sequence of one position, outside autograd: what a decoder calls for each token."""
    h = (dt.transpose(1, 2) * A).exp_().mul_(state).addcmul_((dt * x).transpose(1, 2), B)
    return torch.bmm(C, h.transpose(1, 2)), h


def scan_backward(
    grad_y: Tensor, grad_final: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, entering: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, dt, A, B, C and the initial state.

    With g_t the gradient that reaches h_t:  g_t = C_t grad_y_t + exp(dt_{t+1} A) g_{t+1}.
    """
    batch, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    At = A.t().contiguous()
    A2 = At * _LOG2_E
    x, dt, B, C, grad_y = (_swap(t) for t in (x, dt, B, C, grad_y))
    grad_x, grad_dt, grad_B, grad_C = (torch.empty_like(t) for t in (x, dt, B, C))
    size = chunk_length(batch, d_inner, d_state, seq_len)
    h = x.new_empty(size + 1, batch, d_state, d_inner)
    decay, g, work = (x.new_empty(size, batch, d_state, d_inner) for _ in range(3))
    states, gradients, decays = h.unbind(0), g.unbind(0), decay.unbind(0)
    grad_A = x.new_zeros(size, batch, d_state, d_inner)
    # What reaches a chunk's last state from later chunks; a copy, since it is written to.
    arriving = grad_final.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    with _threads_that_pay(decay):
        for chunk in reversed(range(len(entering))):
            now = slice(chunk * size, min((chunk + 1) * size, seq_len))
            steps = now.stop - now.start
            before, after, a, gn, wn = h[:steps], h[1 : steps + 1], decay[:steps], g[:steps], work[:steps]
            u = dt[now] * x[now]
            states[0].copy_(entering[chunk])
            _decays(dt[now], A2, a)
            torch.mul(u.unsqueeze(2), B[now].unsqueeze(3), out=after)
            _run(states[: steps + 1], decays[:steps])
            torch.mul(grad_y[now].unsqueeze(2), C[now].unsqueeze(3), out=gn)
            gradients[steps - 1].add_(arriving)
            _run(gradients[:steps][::-1], decays[1:steps][::-1])
            _over_channels(after, grad_y[now], wn, grad_C[now])
            _over_channels(gn, u, wn, grad_B[now])
            _over_states(B[now], gn, u)  # from here on the gradient of u
            gn.mul_(a)
            arriving.copy_(gradients[0])
            gn.mul_(before)  # g_t exp(dt_t A) h_{t-1}: the gradient of dt_t A
            torch.sum(torch.mul(gn, At, out=wn), 2, out=grad_dt[now]).addcmul_(u, x[now])
            torch.mul(u, dt[now], out=grad_x[now])
            grad_A[:steps].addcmul_(gn, dt[now].unsqueeze(2))
    grad_x, grad_dt, grad_B, grad_C = (_swap(t) for t in (grad_x, grad_dt, grad_B, grad_C))
    return grad_x, grad_dt, grad_A.sum((0, 1)).t(), grad_B, grad_C, arriving.transpose(1, 2).contiguous()


def _swap(t: Tensor) -> Tensor:
    """Batch first to time first, or back."""
    return t.transpose(0, 1).contiguous()


def _decays(dt: Tensor, A2: Tensor, out: Tensor) -> None:
    torch.mul(dt.unsqueeze(2), A2, out=out).exp2_()


def _run(h: Tensors, decays: Tensors) -> None:
    """h_{t+1} += decay_t h_t, one after the other, in place."""
    if decays and h[0].device.type == "cpu" and _grouped_in_order(h[0].dtype):
        _grouped_multiply_add(h[1:], decays, h[:-1])
        return
    for now, decay, before in zip(h[1:], decays, h, strict=False):
        now.addcmul_(decay, before)


_grouped_multiply_add = torch._foreach_addcmul_  # pyright: ignore[reportPrivateImportUsage]


@cache
def _grouped_in_order(dtype: torch.dtype) -> bool:
    """Whether torch takes the entries of a group one after the other, so that a chain of them is a recurrence.

    It does on the CPU, and takes two thirds of the loop's time; but nobody promises it, so it is tried first.
    """
    h = torch.ones(6, 3, dtype=dtype).unbind(0)
    _grouped_multiply_add(h[1:], torch.full((5, 3), 0.5, dtype=dtype).unbind(0), h[:-1])
    return [float(t[0]) for t in h] == [1.0, 1.5, 1.75, 1.875, 1.9375, 1.96875]


def _over_states(weights: Tensor, h: Tensor, out: Tensor) -> None:
    """out (time, batch, d_inner) = sum over n of weights_n h_n."""
    torch.bmm(weights.flatten(0, 1).unsqueeze(1), h.flatten(0, 1), out=out.flatten(0, 1).unsqueeze(1))


def _over_channels(h: Tensor, weights: Tensor, work: Tensor, out: Tensor) -> None:
    """out (time, batch, d_state) = sum over d of h_d weights_d; a product of matrices takes six times as long here."""
    torch.sum(torch.mul(h, weights.unsqueeze(2), out=work), 3, out=out)


@contextmanager
def _threads_that_pay(buffer: Tensor) -> Iterator[None]:
    """One thread, unless the bulk operations on a `buffer` are large enough to share out.

    A chunk is a dozen of them, microseconds each. With a second thread each would wait for a core that may be busy:
    on a loaded machine that has been seen to take ten times as long as one thread does.
    """
    threads = torch.get_num_threads()
    if buffer.device.type != "cpu" or threads == 1 or buffer.numel() >= _WORTH_THREADS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
