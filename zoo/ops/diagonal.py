"""Linear time-invariant recurrences with diagonal dynamics: discretisation and scan."""

from __future__ import annotations

import torch
from jaxtyping import Inexact
from torch import Tensor

CHUNK = 32


def zero_order_hold(
    A: Inexact[Tensor, "*channels d_state"], dt: Inexact[Tensor, "*channels #d_state"]
) -> tuple[Inexact[Tensor, "*channels d_state"], Inexact[Tensor, "*channels d_state"]]:
    """Discretise h' = A h + u: log-decay dt A and input gain (exp(dt A) - 1) / A (Gu et al. 2206.11893, eq. 3).

    The gain is dt (1 + z/2 + ...) with z = dt A, evaluated by expm1 so that small dt loses nothing.
    """
    z = dt * A
    return z, torch.expm1(z) / A


def ring_gain(log_decay: Inexact[Tensor, " d_state"]) -> Inexact[Tensor, " d_state"]:
    """sqrt(1 - |lambda|^2): white input keeps unit variance in every state (Orvieto et al. 2303.06349, eq. 7)."""
    return torch.sqrt(-torch.expm1(2 * log_decay.real))


def diagonal_scan(
    u: Inexact[Tensor, "batch seq d_state"],
    log_decay: Inexact[Tensor, " d_state"],
    state: Inexact[Tensor, "batch d_state"],
) -> Inexact[Tensor, "batch seq d_state"]:
    """h_t = exp(log_decay) h_{t-1} + u_t for all t: a Toeplitz product within chunks, one carry between them.

    Powers of the decay are exp(t log_decay): nothing is divided by a decay and nothing is accumulated.

    Args:
        u: what is added to each state, real or complex.
        log_decay: logarithm of the decay, of u's kind; real part at most zero for a stable recurrence.
        state: h before the first position.

    Returns:
        h at every position; the last is the state to carry on.
    """
    seq_len = u.shape[1]
    lag = torch.arange(min(CHUNK, seq_len), device=u.device)
    difference = lag.unsqueeze(1) - lag
    toeplitz = torch.exp(difference.clamp(min=0) * log_decay.view(-1, 1, 1)).tril()
    carry = torch.exp((lag + 1).unsqueeze(1) * log_decay)
    states = []
    for chunk in u.split(len(lag), dim=1):
        size = chunk.shape[1]
        within = (toeplitz[:, :size, :size] @ chunk.permute(2, 1, 0)).permute(2, 1, 0)
        h = within + carry[:size] * state.unsqueeze(1)
        state = h[:, -1]
        states.append(h)
    return torch.cat(states, dim=1)
