"""The elementwise linear recurrence whose decays depend on the input: each channel by itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.cores import core
from zoo.ops.activation import half_linear
from zoo.ops.carry import decayed_states
from zoo.ops.chunked import halvable
from zoo.ops.precision import as_type, full_precision
from zoo.ops.ranks import spread, spread_by
from zoo.ops.transforms import followed, loops_suffice, whole_in_export

CHUNK = 32  # a power of two


@core("written", "batch seq channel")
def linear_recurrence(
    decay: Float[Tensor, "batch seq channels"],
    written: Float[Tensor, "batch seq channels"],
    state: Float[Tensor, "batch channels"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch channels"]]:
    """h_t = decay_t h_{t-1} + written_t.

    Within a chunk of positions by doubling (Hillis and Steele 1986): after step m each position has collected the 2^m
    positions up to itself, all chunks at once. Between chunks the state is carried. Every factor is a product of decays
    and none is divided by, so that decays may be zero. The adjoint is the same recurrence the other way round.

    Args:
        decay: factors of the state, of modulus at most one for a stable recurrence.
        written: input of each position.
        state: h before the first position; its dtype is the one computed in.
        valid: positions at which the state moves; elsewhere it is kept.

    Returns:
        h at every position, and the last one.
    """
    if valid is not None:
        moves = valid.unsqueeze(2)
        decay, written = decay.where(moves, 1.0), written.where(moves, 0.0)
    with full_precision(decay.device):
        given = as_type(state.dtype, decay), as_type(state.dtype, written), state
        if decay.shape[1] == 1:  # a decoder asks for no more
            h = torch.addcmul(given[1], given[0], state.unsqueeze(1))
            return h, h[:, 0]
        scan = _scan if followed() else _Scan.apply
        if entering := spread():
            with spread_by(None):
                alone = scan(*given[:2], torch.zeros_like(state))
                h = scan(*given[:2], entering(torch.mul, given[0].prod(1), alone[:, -1]))
        else:
            h = scan(*given)
    return h, h[:, -1]


@core("target", "batch seq channel")
def gated_average(
    logit: Float[Tensor, "batch seq channels"],
    target: Float[Tensor, "batch seq channels"],
    state: Float[Tensor, "batch channels"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch channels"]]:
    """h_t = (1 - z_t) h_{t-1} + z_t target_t with z = sigmoid(logit): `linear_recurrence` of an update gate.

    1 - z is computed as sigmoid(-logit), which is exact even where z is close to one. Both are coefficients. One
    position is one interpolation, in which the factor 1 - z is never made.

    Args:
        logit: logit of the share of the state that is replaced.
        target: its replacement.
        state: h before the first position; its dtype is the one computed in.
        valid: positions at which the state moves; elsewhere it is kept.

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
    """`gated_average` with the target g(u), u + 1/2 from zero on and sigmoid(u) below (Feng et al. 2410.01201).

    In float32 on the CPU, without gradients and with numba installed, one position is one loop.
    """
    if logit.shape[1] == 1 and valid is None and not torch.is_grad_enabled() and loops_suffice(state):
        from zoo.ops import steps_numba

        h = steps_numba.min_gru(logit, u, state)
        return h.unsqueeze(1), h
    return gated_average(logit, half_linear(u), state, valid)


@whole_in_export("(Tensor decay, Tensor written, Tensor state) -> Tensor", lambda a, b, h: b.new_empty(b.shape))
def _scan(decay: Tensor, written: Tensor, state: Tensor) -> Tensor:
    seq_len = decay.shape[1]
    size = halvable(seq_len, CHUNK)
    a, b = (F.pad(t, (0, 0, 0, -seq_len % size)).unflatten(1, (-1, size)) for t in (decay, written))
    step = 1
    while step < size:
        b = torch.cat((b[:, :, :step], torch.addcmul(b[:, :, step:], a[:, :, step:], b[:, :, :-step])), dim=2)
        a = torch.cat((a[:, :, :step], a[:, :, step:] * a[:, :, :-step]), dim=2)
        step *= 2
    if a.shape[1] == 1:
        return torch.addcmul(b[:, 0], a[:, 0], state.unsqueeze(1))[:, :seq_len]
    over, adds = (t[:, :, -1, None].unsqueeze(1) for t in (a, b))
    entering, _ = decayed_states(state[:, None, None], over, adds)  # one head, one key
    return torch.addcmul(b, a, entering.squeeze(1)).flatten(1, 2)[:, :seq_len]


class _Scan(torch.autograd.Function):
    """`_scan`, which keeps its results instead of every doubling."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, written: Tensor, state: Tensor) -> Tensor:
        h = _scan(decay, written, state)
        ctx.save_for_backward(decay, state, h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, state, h = ctx.saved_tensors
        # The gradient of h_t is g_t = dh_t + a_{t+1} g_{t+1}: the same recurrence from the end.
        following = F.pad(decay[:, 1:], (0, 0, 0, 1))
        arriving = _Scan.apply(following.flip(1), grads[0].flip(1), torch.zeros_like(state)).flip(1)
        before = torch.cat((state.unsqueeze(1), h[:, :-1]), dim=1)
        return arriving * before, arriving, decay[:, 0] * arriving[:, 0]
