"""The long short-term memory recurrence, every gate a coefficient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.ops.activation import tanh
from zoo.ops.recurrent import fused_recurrence, fused_suffices


def lstm(
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "four_d_inner d_model"],
    recurrent: Float[Tensor, "four_d_inner d_inner"],
    bias: Float[Tensor, " four_d_inner"],
    h: Float[Tensor, "batch d_inner"],
    c: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"], Float[Tensor, "batch d_inner"]]:
    """`lstm_scan` of in_weight x + bias; torch's fused kernel where that is enough."""
    if fused_suffices("lstm", x, valid):
        y, h, c = fused_recurrence("lstm", x, in_weight, recurrent, bias, h, c)
        return y, h, c
    return lstm_scan(F.linear(x, in_weight) + bias, recurrent, h, c, valid)


def lstm_scan(
    u: Float[Tensor, "batch seq four_d_inner"],
    recurrent: Float[Tensor, "four_d_inner d_inner"],
    h: Float[Tensor, "batch d_inner"],
    c: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"], Float[Tensor, "batch d_inner"]]:
    """c_t = f c_{t-1} + i tanh(g), h_t = o tanh(c_t), gates [i f g o] = u_t + recurrent h_{t-1}.

    Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000. sigmoid(i), sigmoid(f), sigmoid(o) are
    coefficients, and so are tanh(g)/g and tanh(c)/c.

    Args:
        u: input part of the four gates, bias included.
        recurrent: matrix that maps h to the four gates.
        h, c: state before the first position.
        valid: positions at which the state moves; it stands still elsewhere.

    Returns:
        h at every position, and the last h and c.
    """
    outputs = []
    for t, u_t in enumerate(u.unbind(1)):
        i, f, g, o = (u_t + F.linear(h, recurrent)).chunk(4, dim=-1)
        i, f, o = coefficient(torch.sigmoid(torch.stack((i, f, o)))).unbind(0)
        c_next = f * c + i * tanh(g)
        h_next = o * tanh(c_next)
        if valid is not None:
            moves = valid[:, t].unsqueeze(-1)
            h_next, c_next = torch.where(moves, h_next, h), torch.where(moves, c_next, c)
        h, c = h_next, c_next
        outputs.append(h)
    return torch.stack(outputs, dim=1), h, c
