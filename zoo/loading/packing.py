"""Run mixers on packed batches (sequences concatenated, `cu_seqlens`) and on left-padded batches.

This works for any map with the arguments `(x, lengths)`: a mixer, a stack, `zoo.Bidirectional`. We have no kernels for
packed input. Packed sequences are padded to the longest one, so time and memory grow as sequences * longest instead of
total, and the host waits for the device to read the boundaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from zoo.ops.time import Lengths, as_lengths, left_align, right_align, valid_positions


def run_packed(
    mixer: Callable[[Tensor, Tensor], Tensor],
    x: Float[Tensor, "total d_model"],
    boundaries: Int[Tensor, " sequences_plus_one"],
) -> Float[Tensor, "total d_out"]:
    """Mix concatenated sequences separately: unpack, pad, run, pack again.

    Args:
        mixer: maps (batch, seq, d_model) and lengths (batch,) to (batch, seq, d_out).
        x: the concatenated sequences.
        boundaries: cumulative lengths 0, ..., total (`cu_seqlens`). Sequences may be empty.

    Returns:
        The outputs in the same layout. Outputs and gradients are the same as for each sequence alone.

    Raises:
        ValueError: x is not a matrix; boundaries that are not integers, do not start at 0, decrease, do not end at
            total, or are on another device.
    """
    _check_packed(x, boundaries)
    boundaries = boundaries.long()
    lengths = boundaries.diff()
    longest = max(1, int(lengths.max())) if len(lengths) else 1  # mixers need at least one position
    valid = valid_positions(lengths, longest)
    source = boundaries[:-1].unsqueeze(1) + torch.arange(longest, device=x.device)
    # All padding is gathered from one row of zeros, appended to x.
    padded = F.pad(x, (0, 0, 0, 1))[source.where(valid, len(x))]
    return mixer(padded, valid.sum(1))[valid]


def run_left_padded(
    mixer: Callable[[Tensor, Tensor], Tensor], x: Float[Tensor, "batch seq d_model"], lengths: Lengths
) -> Float[Tensor, "batch seq d_out"]:
    """Mix rows with padding on the left: shift left, run, shift back.

    Args:
        mixer: see `run_packed`.
        x: input. Padding has no influence on outputs or gradients.
        lengths: number of valid positions of each row, at its end.

    Returns:
        The outputs at the positions of their inputs; zero in the padding.

    Raises:
        ValueError: lengths that are not integers in 0..seq, one per row, on the device of x.
    """
    if x.ndim != 3:
        raise ValueError(f"x must be (batch, seq, d_model), got {tuple(x.shape)}")
    lengths = cast(Tensor, as_lengths(lengths, x))
    _check_integers("lengths", lengths, x)
    if lengths.shape != x.shape[:1]:
        raise ValueError(f"lengths must be of shape ({x.shape[0]},), got {tuple(lengths.shape)}")
    if lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= x.shape[1]:
        raise ValueError(f"lengths must lie in 0..{x.shape[1]}, got {int(lengths.min())}..{int(lengths.max())}")
    lengths = lengths.long()
    return right_align(mixer(left_align(x, lengths), lengths), lengths)


def _check_packed(x: Tensor, boundaries: Tensor) -> None:
    if x.ndim != 2:
        raise ValueError(f"packed x must be (total, d_model), got {tuple(x.shape)}")
    _check_integers("boundaries", boundaries, x)
    if boundaries.ndim != 1 or not len(boundaries):
        raise ValueError(f"boundaries must be a vector that starts with 0, got shape {tuple(boundaries.shape)}")
    first, last = int(boundaries[0]), int(boundaries[-1])
    if first != 0 or last != len(x):
        raise ValueError(f"boundaries must run from 0 to total={len(x)}, got {first} to {last}")
    falls = (boundaries[1:] < boundaries[:-1]).nonzero()
    if len(falls):
        place = int(falls[0])
        raise ValueError(
            f"boundaries must not decrease, got {int(boundaries[place])} before {int(boundaries[place + 1])}"
        )


def _check_integers(name: str, given: Tensor, x: Tensor) -> None:
    if not isinstance(given, Tensor):
        raise ValueError(f"{name} must be a tensor of integers, got {given!r}")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, got {given.dtype}")
    if given.device != x.device:
        raise ValueError(f"{name} are on {given.device}, x on {x.device}")
