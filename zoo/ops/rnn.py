"""The plain recurrence h_t = f(u_t + R h_{t-1}), with tanh or without."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from zoo.ops.activation import tanh
from zoo.ops.precision import full_precision
from zoo.ops.recurrent import fused_recurrence, fused_suffices

CHUNK = 32


def rnn(
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "d_inner d_model"],
    recurrent: Float[Tensor, "d_inner d_inner"],
    bias: Float[Tensor, " d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """`rnn_scan` of in_weight x + bias; torch's fused kernel where that is enough."""
    if fused_suffices("rnn_tanh", x, valid):
        y, h = fused_recurrence("rnn_tanh", x, in_weight, recurrent, bias, h)
        return y, h
    return rnn_scan(F.linear(x, in_weight) + bias, recurrent, h, valid)


def rnn_scan(
    u: Float[Tensor, "batch seq d_inner"],
    recurrent: Float[Tensor, "d_inner d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """h_t = tanh(u_t + R h_{t-1}) (Elman 1990); tanh(a)/a is a coefficient, a the value.

    Args:
        u: input part, bias included.
        recurrent: R.
        h: state before the first position.
        valid: positions at which the state moves; it stands still elsewhere.

    Returns:
        h at every position, and the last.
    """
    outputs = []
    for t, u_t in enumerate(u.unbind(1)):
        h_next = tanh(u_t + F.linear(h, recurrent))
        h = h_next if valid is None else torch.where(valid[:, t].unsqueeze(-1), h_next, h)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h


def linear_rnn(
    u: Float[Tensor, "batch seq d_inner"],
    recurrent: Float[Tensor, "d_inner d_inner"],
    h: Float[Tensor, "batch d_inner"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """h_t = u_t + R h_{t-1}: within a chunk by doubling, one carry between chunks.

    After step k of the doubling, position t holds the sum of R^s u_{t-s} over s < 2^k, so a chunk takes log2(CHUNK)
    products with the powers R^(2^k). The carry enters as part of the chunk's first input. All of it is computed in the
    type of the state, under autocast too: nothing bounds what the sum can lose.

    Args:
        u: input part, bias included.
        recurrent: R, dense.
        h: state before the first position.
        lengths: valid positions of each row.

    Returns:
        h at every position, and the one after `lengths` positions, by default the last.
    """
    with full_precision(u.device):
        u, recurrent = u.to(h.dtype), recurrent.to(h.dtype)
        powers, span = [recurrent], 2
        while span < min(CHUNK, u.shape[1]):
            powers.append(powers[-1] @ powers[-1])
            span *= 2
        before, states = h, []
        for chunk in u.split(CHUNK, dim=1):
            first = chunk[:, :1] + F.linear(before, recurrent).unsqueeze(1)
            held = torch.cat((first, chunk[:, 1:]), dim=1)
            for k, power in enumerate(powers):
                shifted = F.pad(held, (0, 0, 2**k, 0))[:, : held.shape[1]]
                held = held + F.linear(shifted, power)
            before = held[:, -1]
            states.append(held)
        states = torch.cat(states, dim=1)
    if lengths is None:
        return states, states[:, -1]
    reached = torch.cat((h.unsqueeze(1), states), dim=1)
    return states, reached[torch.arange(len(u), device=u.device), lengths]
