"""Shared parts of chunked recurrences: cutting a sequence into chunks, and decays between positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from zoo.ops.precision import widest

SMALL_STATE, CHUNK_OF_SMALL_STATES = 32 * 32, 16  # elements, positions
_CLEARED = -1e3  # a log-decay whose exponential is exactly zero in every dtype


def longest(state: Inexact[Tensor, "*batch d_key d_value"], most: int) -> int:
    """Return the largest chunk size: `most`, but on the CPU less for small states, which cost less than scores."""
    small = state.device.type == "cpu" and state.shape[-2] * state.shape[-1] <= SMALL_STATE
    return min(CHUNK_OF_SMALL_STATES, most) if small else most


def halvable(seq_len: int, most: int) -> int:
    """Return the chunk size for repeated halving: the smallest power of two that holds `seq_len`, up to `most`.

    If padding would add more than a quarter of the sequence, chunks are shorter, but not below 16 positions. Compiled
    programs, which serve sequences of many lengths, have whole chunks.
    """
    size = 1
    while size < min(most, seq_len):
        size *= 2
    if not torch.compiler.is_compiling():
        while size > CHUNK_OF_SMALL_STATES and -seq_len % size > seq_len // 4:
            size //= 2
    return size


def even(seq_len: int, most: int) -> int:
    """Return the size of equal chunks, as few as chunks of `most` would be: the sequence, or quarters of `most`.

    So a sequence a little longer than a chunk is not padded to two whole ones, except in compiled programs.
    """
    if torch.compiler.is_compiling():
        return min(seq_len, most)
    n_chunks = -(-seq_len // most)
    size = next(size for quarters in (1, 2, 3, 4) if (size := most * quarters // 4) * n_chunks >= seq_len)
    return min(size, seq_len)


def into_chunks(
    t: Inexact[Tensor, "batch heads seq width"], size: int
) -> Inexact[Tensor, "batch heads chunks size width"]:
    """Return the sequence cut into chunks of `size`, the last one padded with zeros."""
    missing = -t.shape[2] % size
    t = F.pad(t, (0, 0, 0, missing)) if missing else t  # a pad of zero width would copy
    return t.unflatten(2, (t.shape[2] // size, size))


def chunk_decays(
    step: Float[Tensor, "*batch size"],
) -> tuple[Float[Tensor, "*batch size size"], Float[Tensor, "*batch size"], Float[Tensor, "*batch size"]]:
    """Return the exponentials of summed log-decays: over j+1..i at (i, j), from the start to i, and after j to the end.

    Each sum is accurate by itself: it loses no digits to steps outside it. Entries above the diagonal are zero.
    """
    if widest(step.device) == step.dtype:
        until_end = F.pad(step[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
        return segment_sums(step).exp(), step.cumsum(-1).exp(), until_end.exp()
    total = running_sum(step)
    until_end = (total[..., -1:] - total).to(step.dtype)
    return _differences(total, step.dtype).exp(), total.to(step.dtype).exp(), until_end.exp()


def segment_sums(t: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size size"]:
    """Entry (i, j) is t_{j+1} + ... + t_i for j <= i and minus infinity above the diagonal.

    In float32, a difference of two cumulative sums would lose its digits after a long prefix. In float64 the difference
    keeps more digits than float32 has, unless a term is so negative that its exponential is zero anyway. Without a
    wider dtype (float64 itself, Apple's GPUs) each sum is computed separately.
    """
    if widest(t.device) != t.dtype:
        return _differences(running_sum(t), t.dtype)
    size = t.shape[-1]
    strictly_upper = torch.ones(size, size, dtype=torch.bool, device=t.device).triu(1)
    sums = t.unsqueeze(-1).expand(*t.shape, size).masked_fill(~strictly_upper.mT, 0.0).cumsum(-2)
    return sums.masked_fill(strictly_upper, float("-inf"))


def running_sum(t: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
    """Return cumulative sums in the widest dtype, so that differences between them keep float32's digits."""
    return t.clamp(min=_CLEARED).to(widest(t.device)).cumsum(-1)


def _differences(total: Float[Tensor, "*batch size"], dtype: torch.dtype) -> Float[Tensor, "*batch size size"]:
    size = total.shape[-1]
    sums = (total.unsqueeze(-1) - total.unsqueeze(-2)).to(dtype)
    return sums.masked_fill(torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1), float("-inf"))
