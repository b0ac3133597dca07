"""The recurrence of sLSTM: exponential gates with a normaliser, stabilised in log space."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.ops.activation import tanh

Cell = tuple[Tensor, Tensor, Tensor, Tensor]
"""h, c, n and m, (batch, heads, d_head) each."""


def slstm_scan(
    u: Float[Tensor, "batch seq four heads d_head"],
    recurrent: Float[Tensor, "four heads d_head d_head"],
    state: Cell,
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq heads d_head"], Cell]:
    """c_t = f c_{t-1} + i tanh(z), n_t = f n_{t-1} + i, h_t = sigmoid(o) c_t / n_t (Beck et al. 2405.04517, eq. 8-17).

    Gates [log i, f, z, o] = u_t + recurrent h_{t-1}, each head by itself; i is an exponential, f the sigmoid of its
    logit. c and n are kept divided by exp(m_t), m_t = max(log i, log f + m_{t-1}), so that nothing overflows; h does
    not depend on m. i, f, tanh(z) / z and sigmoid(o) / n are coefficients.

    Args:
        u: input part of the four gates, bias included.
        recurrent: for each gate and head the matrix that maps h to it.
        state: h, c, n and m before the first position; m is minus infinity where nothing has been written.
        valid: positions at which the state moves; it stands still elsewhere.

    Returns:
        h at every position, and the last state.
    """
    outputs = []
    for t, u_t in enumerate(u.unbind(1)):
        h, c, n, m = state
        log_i, f, z, o = (u_t + torch.einsum("bhi,ghoi->bgho", h, recurrent)).unbind(1)
        log_kept = F.logsigmoid(f) + m
        largest = torch.maximum(log_i, log_kept)
        i, f = coefficient(torch.exp(torch.stack((log_i, log_kept)) - largest)).unbind(0)
        c_next, n_next = f * c + i * tanh(z), f * n + i
        after = coefficient(torch.sigmoid(o) / n_next) * c_next, c_next, n_next, largest
        if valid is not None:
            moves = valid[:, t].view(-1, 1, 1)
            h, c, n, m = (torch.where(moves, new, old) for new, old in zip(after, state, strict=True))
            after = h, c, n, m
        state = after
        outputs.append(state[0])
    return torch.stack(outputs, dim=1), state
