"""Elementwise linear recurrence with input-dependent decays: each channel separately."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.cores import core
from zoo.ops.activation import half_linear
from zoo.ops.carry import joined_in_pairs
from zoo.ops.chunked import halvable
from zoo.ops.precision import as_type, full_precision
from zoo.ops.ranks import spread, spread_by
from zoo.ops.time import without_rest
from zoo.ops.transforms import followed, loops_suffice, whole_in_export

CHUNK = 64  # a power of two


@core("written", "batch seq channel")
def linear_recurrence(
    decay: Float[Tensor, "batch seq channels"],
    written: Float[Tensor, "batch seq rows_of_channels"],
    state: Float[Tensor, "batch rows_of_channels"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq rows_of_channels"], Float[Tensor, "batch rows_of_channels"]]:
    """h_t = decay_t h_{t-1} + written_t.

    Positions are joined in pairs, recursively (Ladner and Fischer 1980); between chunks of 64 the state is carried.
    Factors are products of decays and nothing is divided by them, so decays may be zero. The adjoint is the same
    recurrence in reverse.

    Args:
        decay: factors of the state, of modulus at most one for a stable recurrence.
        written: input of each position. If it is n times as wide as `decay`, n rows of channels share the decays.
        state: h before the first position; the computation uses its dtype.
        valid: positions that update the state; the others keep it.

    Returns:
        h at every position, and the last one.
    """
    if valid is not None:
        moves = valid.unsqueeze(2)
        decay, written = decay.where(moves, 1.0), written.where(moves, 0.0)
    channels, n_rows = decay.shape[2], written.shape[2] // decay.shape[2]
    with full_precision(decay.device):
        decay, written = as_type(state.dtype, decay), as_type(state.dtype, written)
        if decay.shape[1] == 1:  # a decoding step
            h = torch.addcmul(written, decay if n_rows == 1 else decay.repeat(1, 1, n_rows), state.unsqueeze(1))
            return h, h[:, 0]
        decay, written, state = decay.unsqueeze(2), *(t.unflatten(-1, (n_rows, channels)) for t in (written, state))
        scan = _scan if followed() else _Scan.apply
        if entering := spread():
            with spread_by(None):
                alone = scan(decay, written, torch.zeros_like(state))
                state = entering(torch.mul, decay.prod(1), alone[:, -1])
                h = scan(decay, written, state)
        else:
            h = scan(decay, written, state)
    h = h.flatten(2)
    return h, without_rest(h[:, -1], h)


@core("target", "batch seq channel")
def gated_average(
    logit: Float[Tensor, "batch seq channels"],
    target: Float[Tensor, "batch seq channels"],
    state: Float[Tensor, "batch channels"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch channels"]]:
    """h_t = (1 - z_t) h_{t-1} + z_t target_t with z = sigmoid(logit): `linear_recurrence` with an update gate.

    1 - z is computed as sigmoid(-logit), which is accurate even for z close to one. Both are coefficients. A single
    position is one interpolation, without the factor 1 - z.

    Args:
        logit: logit of the share of the state that is replaced.
        target: its replacement.
        state: h before the first position; the computation uses its dtype.
        valid: positions that update the state; the others keep it.

    Returns:
        h at every position, and the last one.
    """
    gain = coefficient(torch.sigmoid(logit))
    if valid is None and logit.shape[1] == 1:
        h = torch.lerp(state.unsqueeze(1), target, gain)
        return h, h[:, 0]
    return linear_recurrence(coefficient(torch.sigmoid(-logit)), gain * target, state, valid)


def min_gru(
    logit: Float[Tensor, "batch seq channels"],
    u: Float[Tensor, "batch seq channels"],
    state: Float[Tensor, "batch channels"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch channels"]]:
    """`gated_average` with the target g(u) = u + 1/2 for u >= 0, sigmoid(u) below (Feng et al. 2410.01201).

    In float32 on the CPU, without gradients and with numba installed, a single position is one loop.
    """
    if logit.shape[1] == 1 and valid is None and not torch.is_grad_enabled() and loops_suffice(state):
        from zoo.ops import steps_numba

        h = steps_numba.min_gru(logit, u, state)
        return h.unsqueeze(1), h
    return gated_average(logit, half_linear(u), state, valid)


@whole_in_export("(Tensor decay, Tensor written, Tensor state) -> Tensor", lambda a, b, h: b.new_empty(b.shape))
def _scan(decay: Tensor, written: Tensor, state: Tensor) -> Tensor:
    seq_len, size = decay.shape[1], halvable(decay.shape[1], CHUNK)
    if missing := -seq_len % size:
        decay, written = (F.pad(t, (0, 0, 0, 0, 0, missing)) for t in (decay, written))
    state, decay, written = (t.unsqueeze(1) for t in (state, decay, written))  # one head
    entering, _ = joined_in_pairs(torch.mul, state, decay, written, size.bit_length() - 1)
    return torch.addcmul(written, decay, entering).squeeze(1)[:, :seq_len]


class _Scan(torch.autograd.Function):
    """`_scan` that keeps only its result for the backward pass: the adjoint is the same recurrence in reverse.

    Rows of `written` and `state` may share the decays: (batch, seq, rows, channels) with one row of decays.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, written: Tensor, state: Tensor) -> Tensor:
        h = _scan(decay, written, state)
        ctx.save_for_backward(decay, state, h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, state, h = ctx.saved_tensors
        # The gradient of h_t is g_t = dh_t + a_{t+1} g_{t+1}, starting at the end.
        following = F.pad(decay[:, 1:].flip(1), (0, 0, 0, 0, 1, 0))
        arriving = _Scan.apply(following, grads[0].flip(1), torch.zeros_like(state)).flip(1)
        del following
        before = torch.cat((state.unsqueeze(1), h[:, :-1]), dim=1)
        return (arriving * before).sum_to_size(decay.shape), arriving, decay[:, 0] * arriving[:, 0]
