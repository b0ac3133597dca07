"""Linear attention with decay: fixed rates per head, a bonus for the current position, or decays bounded from below."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.dplr import dplr
from zoo.ops.ranks import spread
from zoo.ops.time import without_padding
from zoo.ops.transforms import whole_in_export


def retention_rates(
    n_heads: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Float[Tensor, " heads"]:
    """Return -log(1 - 2^(-5-h)) for each head h = 0, 1, ... (Sun et al. 2307.08621, eq. 8)."""
    h = torch.arange(n_heads, dtype=dtype, device=device)
    return -torch.log1p(-torch.exp2(-5 - h))


@core("v", "batch head seq value")
def retention(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    rates: Float[Tensor, " heads"],
    state: Float[Tensor, "batch heads d_key d_value"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = exp(-rate) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t (Sun et al. 2307.08621, eq. 6).

    Args:
        q, k, v: queries, keys and values.
        rates: negated log-decay of each head, at least zero.
        state: S before the first position; the computation uses its dtype.
        lengths: valid positions of each row; padding writes nothing and forgets nothing.

    Returns:
        Outputs, and S after the last position.
    """
    log_decay = -rates.to(state.dtype).view(1, -1, 1, 1).expand(*q.shape[:3], 1)
    k, log_decay = without_padding(lengths, k, log_decay)
    return dplr(q, k, v, log_decay, None, None, state)


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor r, Tensor k, Tensor v, Tensor log_decay, Tensor bonus, Tensor state) -> (Tensor, Tensor)",
    lambda r, k, v, log_decay, bonus, state: (state.new_empty(v.shape), state.new_empty(state.shape)),
)
def retention_with_bonus(
    r: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    log_decay: Float[Tensor, "batch heads seq d_key"],
    bonus: Float[Tensor, "batch heads seq 1"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = diag(exp(log_decay_t)) S_{t-1} + k_t v_t^T, y_t = S_{t-1}^T r_t + bonus_t v_t (Peng et al. 2404.05892).

    `dplr` reads S_{t-1} with the next position's query, so that no decay has to be undone.

    Args:
        r, k, v: queries, keys and values.
        log_decay: logarithms of the decays, at most zero.
        bonus: weight of each position's own value.
        state: S before the first position; the computation uses its dtype.

    Returns:
        Outputs, and S after the last position.
    """
    r = r.to(state.dtype)
    if spread():  # S_0 is not known here: prepend a position that changes nothing
        k, v_, log_decay = (F.pad(t, (0, 0, 1, 0)) for t in (k, v, log_decay))
        y, final = dplr(F.pad(r, (0, 0, 0, 1)), k, v_, log_decay, None, None, state)
        return y[:, :, :-1] + bonus * v, final
    first = r[:, :, :1] @ state
    later, final = dplr(F.pad(r[:, :, 1:], (0, 0, 0, 1)), k, v, log_decay, None, None, state)
    return torch.cat((first, later[:, :, :-1]), dim=2) + bonus * v, final


def bounded_decay(
    logit: Float[Tensor, "*shape"], bound: float
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Return log(a) and 1 - a for a = bound + (1 - bound) sigmoid(logit) (Qin et al. 2404.07904, eq. 7), accurately."""
    log_decay = F.logsigmoid(logit)
    if bound:
        log_decay = torch.logaddexp(torch.full_like(logit, math.log(bound)), math.log1p(-bound) + log_decay)
    return log_decay, (1 - bound) * torch.sigmoid(-logit)
