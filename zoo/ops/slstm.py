"""The recurrence of sLSTM: exponential gates with a normaliser, stabilised in log space."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from zoo import coefficient as coefficients
from zoo.coefficient import coefficient
from zoo.ops.activation import tanh
from zoo.ops.time import without_rest
from zoo.ops.transforms import (
    compiling,
    differentiable_again,
    kernels_suffice,
    loops_suffice,
    one_operation,
    whole_in_export,
)

Cell = tuple[Tensor, Tensor, Tensor, Tensor]
"""h, c, n and m, (batch, heads, d_head) each."""
TANH = (-0.33333281942, 0.13331442189, -0.05373971431, 0.02063908465, -0.00570498400)
ARTANH = (0.33333206566, 0.20010849581, 0.13999569604, 0.14012234434)
"""Polynomials p of least relative error, below 5e-9, for the compiled loops: tanh(z) = z + z^3 p(z^2) for |z| <= 0.625;
artanh(w) = w + w^3 p(w^2) for |w| <= 1/3."""


def slstm_scan(
    u: Float[Tensor, "batch heads seq four d_head"],
    recurrent: Float[Tensor, "four heads d_head d_head"],
    state: Cell,
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch heads seq d_head"], Cell]:
    """c_t = f c_{t-1} + i tanh(z), n_t = f n_{t-1} + i, h_t = sigmoid(o) c_t / n_t (Beck et al. 2405.04517, eq. 8-17).

    The gates are [log i, f, z, o] = u_t + recurrent h_{t-1}, for each head separately; f is used after a sigmoid. c and
    n are stored divided by exp(m_t), with m_t = max(log i, log f + m_{t-1}), so that nothing overflows; h does not
    depend on m. i, f, tanh(z) / z and sigmoid(o) / n are coefficients.

    In float32, the loop over positions runs in numba on the CPU, if numba is installed and nothing observes the
    operations (`loops_suffice`), and in Triton on CUDA. The numba loop keeps one state per 32 positions, the Triton
    kernel keeps all. The backward pass recomputes the gates.

    Args:
        u: input part of the four gates, bias included.
        recurrent: the matrix from h to each gate, per head.
        state: h, c, n and m before the first position; m is minus infinity if nothing has been written.
        valid: positions that update the state; the others keep it.

    Returns:
        h at every position, and the last state.
    """
    y, *last = _cells(u, recurrent, *state, valid)
    h, c, n, m = (without_rest(t, y) for t in last)  # on CUDA, views of the states of all positions
    return y, (h, c, n, m)


_SCHEMA = (
    "(Tensor u, Tensor recurrent, Tensor h, Tensor c, Tensor n, Tensor m, Tensor? valid)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _like(u: Tensor, recurrent: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return u.new_empty(*u.shape[:3], u.shape[4]), *(t.new_empty(t.shape) for t in rest[:4])


@whole_in_export(_SCHEMA, _like)
def _cells(
    u: Tensor, recurrent: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, valid: Tensor | None
) -> tuple[Tensor, ...]:
    """`slstm_scan` with the four parts of the state as separate arguments."""
    given = u.contiguous(), recurrent, h, c, n, m, valid  # here, so that backward copies nothing
    if loops_suffice(u):
        return _Scan.apply(*given)
    if kernels_suffice(u) and not coefficients.active():
        return _Kernel.apply(*given)
    if compiling() and not coefficients.active():
        return _compiled_cells(*given)
    return _loop(u, recurrent, h, c, n, m, valid)


@one_operation(_SCHEMA, _like)
def _compiled_cells(*given: Any) -> tuple[Tensor, ...]:
    return _cells(*given)


def _loop(
    u: Tensor, recurrent: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, valid: Tensor | None
) -> tuple[Tensor, ...]:
    maps = rearrange(recurrent, "four heads out d_head -> heads d_head (four out)")
    outputs = []
    for t, u_t in enumerate(u.unbind(2)):
        from_h = rearrange(torch.einsum("bhi,hij->bhj", h, maps), "batch heads (four d) -> batch heads four d", four=4)
        log_i, f, z, o = (u_t + from_h).unbind(2)
        log_kept = F.logsigmoid(f) + m
        largest = torch.maximum(log_i, log_kept)
        i, f = coefficient(torch.exp(torch.stack((log_i, log_kept)) - largest)).unbind(0)
        c_next, n_next = f * c + i * tanh(z), f * n + i
        after = coefficient(torch.sigmoid(o) / n_next) * c_next, c_next, n_next, largest
        if valid is not None:
            moves = valid[:, t].view(-1, 1, 1)
            after = tuple(torch.where(moves, new, old) for new, old in zip(after, (h, c, n, m), strict=True))
        h, c, n, m = after
        outputs.append(h)
    return torch.stack(outputs, dim=2), h, c, n, m


class _Scan(torch.autograd.Function):
    """`_loop` as compiled by numba."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, recurrent: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        from zoo.ops import slstm_numba

        *state, valid = rest
        y, last, entering = slstm_numba.forward(u, recurrent, state, valid)
        ctx.valid = valid
        ctx.save_for_backward(u, recurrent, *state, y, entering)
        return y, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from zoo.ops import slstm_numba

        *given, y, entering = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_again(_loop, [*given, ctx.valid], ctx.needs_input_grad, grads)
        u, recurrent, h, *_ = given
        of_u, of_recurrent, of_state = slstm_numba.backward(grads, u, recurrent, h, ctx.valid, y, entering)
        return of_u, of_recurrent, *of_state, None


class _Kernel(torch.autograd.Function):
    """`_loop` as a Triton kernel."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, recurrent: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *state, ctx.valid = rest
        states = _states(u, recurrent, *rest)
        ctx.save_for_backward(u, recurrent, *state, states)
        return states[0, :, :, 1:], *states[:, :, :, -1].unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *given, states = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_again(_loop, [*given, ctx.valid], ctx.needs_input_grad, grads)
        of_u, of_recurrent, of_state = _states_backward(*grads, given[0], given[1], states, ctx.valid)
        return of_u, of_recurrent, *of_state.unbind(0), None


# The kernels are custom ops, so that a compiler sees one operation.


@torch.library.custom_op(
    "zoo::slstm",
    mutates_args=(),
    schema="(Tensor u, Tensor recurrent, Tensor h, Tensor c, Tensor n, Tensor m, Tensor? valid) -> Tensor",
)
def _states(u: Tensor, recurrent: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, valid: Tensor | None) -> Tensor:
    from zoo.ops import slstm_triton

    return slstm_triton.forward(u, recurrent, (h, c, n, m), valid)


@_states.register_fake
def _(u: Tensor, recurrent: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, valid: Tensor | None) -> Tensor:
    batch, heads, seq_len, _, d_head = u.shape
    return u.new_empty(4, batch, heads, seq_len + 1, d_head)


@torch.library.custom_op(
    "zoo::slstm_backward",
    mutates_args=(),
    schema="(Tensor y, Tensor h, Tensor c, Tensor n, Tensor m, Tensor u, Tensor recurrent, Tensor states,"
    " Tensor? valid) -> (Tensor, Tensor, Tensor)",
)
def _states_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    from zoo.ops import slstm_triton

    *grads, u, recurrent, states, valid = given
    return slstm_triton.backward(grads, u, recurrent, states, valid)


@_states_backward.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, h, *_, u, recurrent, states, _ = given
    return u.new_empty(u.shape), recurrent.new_empty(recurrent.shape), states.new_empty(4, *h.shape)
