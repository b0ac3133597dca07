"""Shared parts of chunked recurrences: the sequence in chunks, and decays between positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from zoo.ops.precision import widest

# Below the logarithm of the smallest number of any type: the exponential is exactly zero.
_CLEARED = -1e3


def halvable(seq_len: int, most: int) -> int:
    """Return the size of a chunk that is halved repeatedly: the power of two that holds `seq_len`, up to `most`."""
    size = 1
    while size < min(most, seq_len):
        size *= 2
    return size


def into_chunks(
    t: Inexact[Tensor, "batch heads seq width"], size: int
) -> Inexact[Tensor, "batch heads chunks size width"]:
    """Return the sequence cut into chunks of `size`, the last one filled up with zeros."""
    missing = -t.shape[2] % size
    t = F.pad(t, (0, 0, 0, missing)) if missing else t  # padding by nothing would copy
    return t.unflatten(2, (t.shape[2] // size, size))


def chunk_decays(
    step: Float[Tensor, "*batch size"],
) -> tuple[Float[Tensor, "*batch size size"], Float[Tensor, "*batch size"], Float[Tensor, "*batch size"]]:
    """exp of the log-decays added up: after j up to i at (i, j), from the chunk's start up to i, after j to its end.

    Every sum consists of its own steps, so that none loses digits to others. Entries above the diagonal are zero.
    """
    if widest(step.device) == step.dtype:
        until_end = F.pad(step[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
        return segment_sums(step).exp(), step.cumsum(-1).exp(), until_end.exp()
    total = running_sum(step)
    until_end = (total[..., -1:] - total).to(step.dtype)
    return _differences(total, step.dtype).exp(), total.to(step.dtype).exp(), until_end.exp()


def segment_sums(t: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size size"]:
    """Entry (i, j) is t_{j+1} + ... + t_i for j <= i and minus infinity above the diagonal.

    As a difference of two cumulative sums in float32 it would lose its digits where much has gone before. In float64
    the difference keeps more of them than float32 has, as long as no term is so negative that its exponential is zero
    anyway. Without a wider type (float64 itself, Apple's GPUs) each sum is added up by itself.
    """
    if widest(t.device) != t.dtype:
        return _differences(running_sum(t), t.dtype)
    size = t.shape[-1]
    strictly_upper = torch.ones(size, size, dtype=torch.bool, device=t.device).triu(1)
    sums = t.unsqueeze(-1).expand(*t.shape, size).masked_fill(~strictly_upper.mT, 0.0).cumsum(-2)
    return sums.masked_fill(strictly_upper, float("-inf"))


def running_sum(t: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
    """Return the sum up to each entry in the widest type, in which differences of two sums keep float32's digits."""
    return t.clamp(min=_CLEARED).to(widest(t.device)).cumsum(-1)


def _differences(total: Float[Tensor, "*batch size"], dtype: torch.dtype) -> Float[Tensor, "*batch size size"]:
    size = total.shape[-1]
    sums = (total.unsqueeze(-1) - total.unsqueeze(-2)).to(dtype)
    return sums.masked_fill(torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1), float("-inf"))
