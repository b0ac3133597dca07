"""Mixing by free coefficients of the lag."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from zoo.ops.attention import lag_matrix


def toeplitz_mix(
    coefficients: Float[Tensor, "n_heads max_seq_len"], x: Float[Tensor, "batch slots d_model"], seq_len: int
) -> Float[Tensor, "n_heads batch seq d_model"]:
    """z_h,i = sum_{j <= i} coefficients[h, i - j] x_j for the last `seq_len` slots, lags counted in slots."""
    lag = lag_matrix(seq_len, x.shape[1], x.device)
    matrix = coefficients[:, lag.clamp(min=0)].masked_fill(lag < 0, 0.0)
    return matrix.unsqueeze(1) @ x
