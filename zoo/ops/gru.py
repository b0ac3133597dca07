"""The gated recurrent unit, every gate a coefficient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.ops.activation import tanh
from zoo.ops.recurrent import fused_recurrence, fused_suffices


def gru(
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "three_d_inner d_model"],
    recurrent: Float[Tensor, "three_d_inner d_inner"],
    bias: Float[Tensor, " three_d_inner"],
    recurrent_bias: Float[Tensor, " d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """`gru_scan` of in_weight x + bias; torch's fused kernel where that is enough."""
    if fused_suffices("gru", x, valid):
        padded = F.pad(recurrent_bias, (2 * len(recurrent_bias), 0))
        y, h = fused_recurrence("gru", x, in_weight, recurrent, bias, h, recurrent_bias=padded)
        return y, h
    return gru_scan(F.linear(x, in_weight) + bias, recurrent, recurrent_bias, h, valid)


def gru_scan(
    u: Float[Tensor, "batch seq three_d_inner"],
    recurrent: Float[Tensor, "three_d_inner d_inner"],
    recurrent_bias: Float[Tensor, " d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """h_t = z h_{t-1} + (1 - z) tanh(u_n + r (R_n h_{t-1} + b)), gates r, z = sigmoid(u_{r,z} + R_{r,z} h_{t-1}).

    Cho et al. 1406.1078 with the reset after the matrix product, as cuDNN and torch have it. r, z and tanh(n)/n are
    coefficients.

    Args:
        u: input part of [r z n], bias included.
        recurrent: matrix that maps h to [r z n].
        recurrent_bias: b, which the reset gate reaches.
        h: state before the first position.
        valid: positions at which the state moves; it stands still elsewhere.

    Returns:
        h at every position, and the last.
    """
    outputs = []
    d_inner = h.shape[1]
    for t, u_t in enumerate(u.unbind(1)):
        gates, candidate = F.linear(h, recurrent).split((2 * d_inner, d_inner), dim=-1)
        u_gates, u_candidate = u_t.split((2 * d_inner, d_inner), dim=-1)
        r, z = coefficient(torch.sigmoid(u_gates + gates)).chunk(2, dim=-1)
        h_next = z * h + (1 - z) * tanh(u_candidate + r * (candidate + recurrent_bias))
        h = h_next if valid is None else torch.where(valid[:, t].unsqueeze(-1), h_next, h)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h
