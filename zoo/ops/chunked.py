"""What every chunked recurrence needs: the sequence in chunks, decays between positions, the state between chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor


def into_chunks(
    t: Inexact[Tensor, "batch heads seq width"], size: int
) -> Inexact[Tensor, "batch heads chunks size width"]:
    """The sequence cut into chunks of `size`, the last one filled up with zeros."""
    return F.pad(t, (0, 0, 0, -t.shape[2] % size)).unflatten(2, (-1, size))


def segment_sums(t: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size size"]:
    """Entry (i, j) is t_{j+1} + ... + t_i for j <= i and minus infinity above the diagonal.

    Each sum is added up by itself. As a difference of two cumulative sums it would lose its digits where much has
    gone before, and the exponential of the masked half could overflow.
    """
    size = t.shape[-1]
    ones = torch.ones(size, size, dtype=torch.bool, device=t.device)
    sums = t.unsqueeze(-1).expand(*t.shape, size).masked_fill(ones.triu(), 0.0).cumsum(-2)
    return sums.masked_fill(ones.triu(1), float("-inf"))


def decayed_states(
    state: Inexact[Tensor, "batch heads d_key d_value"],
    decay: Inexact[Tensor, "#batch #heads chunks #d_key 1"],
    written: Inexact[Tensor, "batch heads chunks d_key d_value"],
) -> tuple[Inexact[Tensor, "batch heads chunks d_key d_value"], Inexact[Tensor, "batch heads d_key d_value"]]:
    """S_c = decay_c S_{c-1} + written_c, chunk after chunk.

    Returns:
        The state that enters each chunk, and the one after the last.
    """
    entering = []
    for a, w in zip(decay.unbind(2), written.unbind(2), strict=True):
        entering.append(state)
        state = torch.addcmul(w, a, state)
    return torch.stack(entering, dim=2), state
