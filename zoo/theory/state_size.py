"""Effective state size: the rank of the map from past inputs to future outputs (Parnichkun et al. 2504.19561)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from zoo.theory.rank import check_operator, effective_rank, spectrum_rank


class StateSize(NamedTuple):
    """Effective state size before each position.

    Attributes:
        positions: positions i; the inputs before i are the past.
        rank: rank of the matrix from the inputs before i to the outputs from i on, the smallest state that can carry
            this layer's operator from i - 1 to i.
        entropy: exp of the entropy of its normalised singular values, a rank without a threshold.
    """

    positions: Int[Tensor, " positions"]
    rank: Int[Tensor, "*batch positions"]
    entropy: Float[Tensor, "*batch positions"]


def effective_state_size(
    operator: Float[Tensor, "*batch seq seq d_out d_in"],
    positions: Iterable[int] | None = None,
    rtol: float | None = None,
) -> StateSize:
    """Return rank and entropy of W_{i:, :i} for each position i.

    The rank of a recurrence is at most the size of its state; the rank of attention is up to min(i, seq - i) times its
    width.

    Args:
        operator: W as `interaction` returns it, with or without a batch.
        positions: the i, between 1 and seq - 1; default all of them.
        rtol: singular values below this fraction of the largest count as zero; see `spectrum_rank`.

    Raises:
        ValueError: an operator of another shape, not real or not finite; a position outside the range; rtol outside
            [0, 1); an operator of one position, which has no past.
    """
    check_operator(operator)
    seq_len = operator.shape[-4]
    chosen = list(range(1, seq_len)) if positions is None else list(positions)
    for i in chosen:
        if not 1 <= i < seq_len:
            raise ValueError(f"positions must lie between 1 and {seq_len - 1}, got {i}")
    if not chosen:
        raise ValueError(f"an operator of {seq_len} position has no past: give at least two")
    rows = operator.double().transpose(-3, -2)  # (..., i, d_out, j, d_in)
    spectra = [
        torch.linalg.svdvals(rows[..., i:, :, :i, :].flatten(-2).flatten(-3, -2)).to(operator.dtype) for i in chosen
    ]
    ranks = [torch.as_tensor(spectrum_rank(spectrum, rtol)) for spectrum in spectra]
    # `effective_rank` squares its input; here the entropy is of the values themselves.
    sizes = [torch.as_tensor(effective_rank(spectrum.sqrt()), dtype=operator.dtype) for spectrum in spectra]
    return StateSize(torch.tensor(chosen), torch.stack(ranks, dim=-1), torch.stack(sizes, dim=-1))
