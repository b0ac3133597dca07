"""Matrices whose entries are coefficients of the lag."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from zoo.cores import core
from zoo.ops.attention import lag_matrix


def causal_toeplitz(kernel: Inexact[Tensor, "*batch size"]) -> Inexact[Tensor, "*batch size size"]:
    """kernel[i - j] at (i, j), zero above the diagonal: windows over the kernel with zeros in front, no index."""
    size = kernel.shape[-1]
    return F.pad(kernel, (size - 1, 0)).unfold(-1, size, 1).flip(-1)


@core("x", "batch seq value", "head batch seq value")
def toeplitz_mix(
    coefficients: Float[Tensor, "n_heads max_seq_len"], x: Float[Tensor, "batch slots d_model"], seq_len: int
) -> Float[Tensor, "n_heads batch seq d_model"]:
    """z_h,i = sum_{j <= i} coefficients[h, i - j] x_j for the last `seq_len` slots, lags counted in slots."""
    lag = lag_matrix(seq_len, x.shape[1], x.device)
    matrix = coefficients[:, lag.clamp(min=0)].masked_fill(lag < 0, 0.0)
    return matrix.unsqueeze(1) @ x
