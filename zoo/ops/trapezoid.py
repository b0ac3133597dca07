"""The recurrence of Mamba-3: trapezoidal steps, a rotating state, several inputs and outputs per step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from zoo.cores import core
from zoo.ops.precision import chunk_product, full_precision, widest
from zoo.ops.ssd import ssd

_SHORT_TURN = 6.28125  # nearly 2 pi, with so few digits that its small multiples are exact in float32


def advance_angles(
    increments: Float[Tensor, "batch heads seq angles"], start: Float[Tensor, "batch heads angles"]
) -> Float[Tensor, "batch heads seq angles"]:
    """Return angles in [0, 2 pi) after each position.

    They are summed in the widest dtype and without whole turns: in float32, a sum of many turns would leave few digits
    for the angle.
    """
    turn, wide = 2 * math.pi, widest(increments.device)
    increments = increments.to(wide)
    turns = (increments.detach() / turn).round()
    increments = increments.sub(turns, alpha=_SHORT_TURN).sub(turns, alpha=turn - _SHORT_TURN)
    turned = start.to(wide).unsqueeze(2) + increments.cumsum(2)
    return torch.remainder(turned, turn).to(start.dtype)


def rotate_pairs(
    t: Float[Tensor, "*any batch heads seq rank d_state"], angles: Float[Tensor, "batch heads seq angles"]
) -> Float[Tensor, "*any batch heads seq rank d_state"]:
    """Rotate the pairs (m, m + n) of the first 2 n channels, with n the number of angles; leave the other channels."""
    n = angles.shape[3]
    a, b, rest = t.split((n, n, t.shape[-1] - 2 * n), dim=-1)
    cos, sin = angles.cos().unsqueeze(3), angles.sin().unsqueeze(3)
    return torch.cat((torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(a * sin, b, cos), rest), dim=-1)


@core("v", "batch head seq part value")
def trapezoidal_ssd(
    q: Float[Tensor, "batch heads seq rank d_key"],
    k: Float[Tensor, "batch heads seq_and_one rank d_key"],
    v: Float[Tensor, "batch heads seq_and_one rank d_value"],
    log_decay: Float[Tensor, "batch heads seq"],
    before: Float[Tensor, "batch heads seq"],
    now: Float[Tensor, "batch heads seq"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq rank d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = a_t S_{t-1} + a_t before_t k_{t-1} v_{t-1}^T + now_t k_t v_t^T, y_t = S_t^T q_t (Lahoti et al. 2603.15569).

    a = exp(log_decay). With several rows per step, k v^T is summed over them and each query is answered.

    R_t = a_t (S_{t-1} + before_t k_{t-1} v_{t-1}^T), the state without the current position, is a recurrence with one
    term: R_t = a_t R_{t-1} + a_t (now_{t-1} + before_t) k_{t-1} v_{t-1}^T.

    Args:
        q: queries.
        k, v: keys and values, with one more position in front: the last one before the chunk.
        log_decay: logarithm of the decay.
        before, now: weights of the previous and of the current position. If these and log_decay are zero, the state
            does not change.
        state: S before the first position; the computation uses its dtype.

    Returns:
        Outputs, and S after the last position.
    """
    (seq_len, rank), product = q.shape[2:4], chunk_product(state)
    # The entering state already includes the input of its last position, so that position's `now` is zero here.
    earlier_now = F.pad(now, (1, 0))[:, :, :-1]
    weight = (log_decay.exp() * (earlier_now + before)).view(*before.shape, 1, 1)
    queries, earlier_k, earlier_v = (
        rearrange(t, "batch head seq rank d -> batch head (seq rank) d")
        for t in (q, k[:, :, :-1], weight * v[:, :, :-1])
    )
    past, remembered = ssd(queries, earlier_k, earlier_v, log_decay, state)
    with full_precision(q.device):
        k, v, now = k[:, :, 1:], v[:, :, 1:], now.view(*now.shape, 1, 1)
        y = torch.addcmul(past.unflatten(2, (seq_len, rank)), now, product(product(q, k.transpose(3, 4)), v))
        written = now[:, :, -1] * (k[:, :, -1].transpose(2, 3) @ v[:, :, -1])
    return y, remembered + written
