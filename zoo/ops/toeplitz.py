"""Products with Toeplitz matrices, whose entries depend only on the lag: mixing by lag, and long convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from zoo.cores import core
from zoo.ops.transforms import whole_in_export

BLOCK = 128  # outputs of a block of `long_conv`


def causal_toeplitz(
    kernel: Inexact[Tensor, "*batch size"], n_rows: int | None = None
) -> Inexact[Tensor, "*batch n_rows size"]:
    """kernel[i - j] at (i, j), zero above the diagonal: sliding windows over the zero-padded kernel, without an index.

    Returns the last `n_rows` rows, by default all.
    """
    size = kernel.shape[-1]
    n_rows = size if n_rows is None else n_rows
    return F.pad(kernel, (n_rows - 1, 0)).unfold(-1, size, 1).flip(-1)


@core("x", "batch seq value", "head batch seq value")
@whole_in_export(
    "(Tensor coefficients, Tensor x, SymInt seq_len) -> Tensor",
    lambda coefficients, x, seq_len: x.new_empty(len(coefficients), x.shape[0], seq_len, x.shape[2]),
)
def toeplitz_mix(
    coefficients: Float[Tensor, "n_heads max_seq_len"], x: Float[Tensor, "batch slots d_model"], seq_len: int
) -> Float[Tensor, "n_heads batch seq d_model"]:
    """z_h,i = sum_{j <= i} coefficients[h, i - j] x_j for the last `seq_len` slots, with lags counted in slots."""
    return causal_toeplitz(coefficients[:, : x.shape[1]], seq_len).unsqueeze(1) @ x


@core("x", "batch seq channel")
@whole_in_export(
    "(Tensor x, Tensor kernel, SymInt seq_len) -> Tensor",
    lambda x, kernel, seq_len: x.new_empty(x.shape[0], seq_len, x.shape[2]),
)
def long_conv(
    x: Float[Tensor, "batch slots channels"], kernel: Float[Tensor, "channels slots"], seq_len: int
) -> Float[Tensor, "batch seq channels"]:
    """y_i = sum_{j <= i} kernel[:, i - j] x_j for the last `seq_len` slots, for each channel separately.

    One Toeplitz product computes all blocks of outputs. A Fourier transform would be faster for long sequences, but
    would leak roundoff from future positions into past ones.

    Args:
        x: all inputs so far.
        kernel: value at each lag, from zero.
        seq_len: number of outputs, counted from the right.
    """
    slots = x.shape[1]
    size = min(BLOCK, seq_len)
    n_blocks = -(-seq_len // size)
    # Toeplitz rows of the last block: each is a window of the reversed kernel, one step left of the row before. They
    # are right for earlier blocks too, if zeros precede their inputs.
    rows = F.pad(kernel.flip(1), (0, size - 1)).unfold(1, slots, 1).flip(1)  # (channels, size, slots)
    inputs = F.pad(x, (0, 0, (n_blocks - 1) * size, 0)).unfold(1, slots, size)  # (batch, n_blocks, channels, slots)
    return torch.einsum("bncs,crs->bnrc", inputs, rows).flatten(1, 2)[:, -seq_len:]
