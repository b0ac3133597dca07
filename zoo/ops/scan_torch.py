"""Backend `torch` of `zoo.ops.scan`: bulk operations on chunks, on any device and in any precision.

Per chunk the decays and inputs of all steps are made in bulk, then one multiply-add a step runs the recurrence in
place. Inside, time comes first and channels last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG2_E = math.log2(math.e)  # exp2 is markedly faster than exp on CPUs
_CHUNK_NUMBERS = 262_144  # work buffers of about a megabyte stay in cache


def chunk_length(batch: int, d_inner: int, d_state: int, seq_len: int) -> int:
    """Steps of a chunk: one state a chunk is kept for backward."""
    steps = _CHUNK_NUMBERS // max(1, batch * d_inner * d_state)
    return min(seq_len, max(16, min(128, steps)))


def _run_chunk(h: Tensor, decay: Tensor, dt: Tensor, u: Tensor, B: Tensor, A2: Tensor) -> None:
    """Fill h[1:] from h[0]; `decay` is overwritten with the decays of the chunk."""
    steps = len(dt)
    torch.mul(dt.unsqueeze(2), A2, out=decay).exp2_()
    torch.mul(u.unsqueeze(2), B.unsqueeze(3), out=h[1 : steps + 1])
    for now, before, a in zip(h[1:].unbind(0), h.unbind(0), decay.unbind(0), strict=False):
        now.addcmul_(a, before)


def _contract(a: Tensor, b: Tensor, work: Tensor, axis: int, out: Tensor) -> None:
    """out = (a b).sum(axis) through `work`; four times as fast here as the batched matrix-vector product."""
    torch.sum(torch.mul(a, b, out=work), axis, out=out)


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y, the final state, and the state that entered each chunk (chunk, batch, d_state, d_inner)."""
    batch, seq_len, d_inner = x.shape
    d_state = A.shape[1]
    A2 = (A.t() * _LOG2_E).contiguous()
    x, dt, B, C = (t.transpose(0, 1).contiguous() for t in (x, dt, B, C))
    u = x * dt
    y = torch.empty_like(x)
    size = chunk_length(batch, d_inner, d_state, seq_len)
    h = x.new_empty(size + 1, batch, d_state, d_inner)
    decay = x.new_empty(size, batch, d_state, d_inner)
    h[0].copy_(state.transpose(1, 2))
    entering = x.new_empty(-(-seq_len // size), batch, d_state, d_inner)
    for chunk, start in enumerate(range(0, seq_len, size)):
        now = slice(start, min(start + size, seq_len))
        steps = now.stop - start
        entering[chunk].copy_(h[0])
        _run_chunk(h[: steps + 1], decay[:steps], dt[now], u[now], B[now], A2)
        _contract(h[1 : steps + 1], C[now].unsqueeze(3), decay[:steps], 2, y[now])
        h[0].copy_(h[steps])
    return y.transpose(0, 1).contiguous(), h[0].transpose(1, 2).contiguous(), entering


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
    x, dt, B, C, grad_y = (t.transpose(0, 1).contiguous() for t in (x, dt, B, C, grad_y))
    u = x * dt
    grad_u, grad_dt, grad_B, grad_C = (torch.empty_like(t) for t in (u, dt, B, C))
    size = chunk_length(batch, d_inner, d_state, seq_len)
    h = x.new_empty(size + 1, batch, d_state, d_inner)
    decay, g, work = (x.new_empty(size, batch, d_state, d_inner) for _ in range(3))
    grad_A = x.new_zeros(size, batch, d_state, d_inner)
    arriving = grad_final.transpose(1, 2).contiguous()  # what reaches the chunk's last state from later chunks
    for chunk in reversed(range(len(entering))):
        now = slice(chunk * size, min((chunk + 1) * size, seq_len))
        steps = now.stop - now.start
        h[0].copy_(entering[chunk])
        _run_chunk(h[: steps + 1], decay[:steps], dt[now], u[now], B[now], A2)
        before, after, a, gn, wn = h[:steps], h[1 : steps + 1], decay[:steps], g[:steps], work[:steps]
        torch.mul(grad_y[now].unsqueeze(2), C[now].unsqueeze(3), out=gn)
        gs, decays = gn.unbind(0), a.unbind(0)
        gs[-1].add_(arriving)
        for t in range(steps - 2, -1, -1):
            gs[t].addcmul_(decays[t + 1], gs[t + 1])
        _contract(after, grad_y[now].unsqueeze(2), wn, 3, grad_C[now])
        _contract(gn, u[now].unsqueeze(2), wn, 3, grad_B[now])
        _contract(gn, B[now].unsqueeze(3), wn, 2, grad_u[now])
        gn.mul_(a)
        arriving.copy_(gn[0])
        gn.mul_(before)  # g_t exp(dt_t A) h_{t-1}: the gradient of dt_t A
        _contract(gn, At, wn, 2, grad_dt[now])
        grad_A[:steps].addcmul_(gn, dt[now].unsqueeze(2))
    grad_dt.addcmul_(grad_u, x)
    grads = (grad_u * dt, grad_dt, grad_A.sum((0, 1)).t(), grad_B, grad_C)
    grad_x, grad_dt, grad_A, grad_B, grad_C = grads
    inputs = (t.transpose(0, 1).contiguous() for t in (grad_x, grad_dt, grad_B, grad_C))
    grad_x, grad_dt, grad_B, grad_C = inputs
    return grad_x, grad_dt, grad_A.contiguous(), grad_B, grad_C, arriving.transpose(1, 2).contiguous()
