"""The time axis of ragged batches: masks of valid positions, and alignment of rows of unequal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from zoo.ops.transforms import followed

Lengths: TypeAlias = Int[Tensor, " batch"] | Sequence[int]
"""Valid positions of each row, counted from the left: a tensor on x's device, or a list or tuple of integers."""


def as_lengths(lengths: Lengths | None, x: Tensor) -> Tensor | None:
    """Return `lengths` as a tensor on x's device.

    Raises:
        ValueError: a list or tuple of anything but integers, or of integers outside 0..seq.
    """
    if lengths is None or isinstance(lengths, Tensor):
        return lengths
    if not isinstance(lengths, (list, tuple)) or not all(type(n) is int for n in lengths):
        raise ValueError(f"lengths must be a tensor, list or tuple of {x.shape[0]} integers, got {lengths!r}")
    if lengths:
        require_within(min(lengths), max(lengths), x.shape[1])
    return torch.tensor(lengths, dtype=torch.int64, device=x.device)


def require_within(low: int, high: int, seq_len: int) -> None:
    """Raise ValueError unless the smallest and largest length of a batch are in 0..seq_len."""
    if low < 0 or high > seq_len:
        raise ValueError(f"lengths must lie in 0..{seq_len}, the chunk's length, got {low}..{high}")


def valid_positions(lengths: Int[Tensor, " batch"], seq_len: int) -> Bool[Tensor, "batch seq"]:
    """Mark the positions inside each row's length."""
    return torch.arange(seq_len, device=lengths.device) < lengths.unsqueeze(1)


def without_padding(
    lengths: Int[Tensor, " batch"] | None, *tensors: Float[Tensor, "batch ..."], axis: int = 2
) -> tuple[Float[Tensor, "batch ..."], ...]:
    """Zero tensors beyond each row's length along `axis`: zero keys write nothing, zero log-decays forget nothing."""
    if lengths is None:
        return tensors
    seq_len = tensors[0].shape[axis]
    valid, before = valid_positions(lengths, seq_len), (1,) * (axis - 1)
    return tuple(t * valid.view(-1, *before, seq_len, *(1,) * (t.ndim - axis - 1)) for t in tensors)


def state_after(
    first: Shaped[Tensor, "batch ..."],
    states: Shaped[Tensor, "batch seq *rest"],
    lengths: Int[Tensor, " batch"] | None,
) -> Shaped[Tensor, "batch ..."]:
    """Return the state after the last position of each row; for an empty row, the state before the first.

    Args:
        first: the state before the first position.
        states: the states after each position.
        lengths: valid positions of each row; default all.
    """
    if lengths is None:
        return without_rest(states[:, -1], states)
    reached = torch.cat((first.unsqueeze(1), states), dim=1)
    return reached[torch.arange(states.shape[0], device=states.device), lengths]


def without_rest(part: Shaped[Tensor, "*part"], whole: Shaped[Tensor, "*whole"]) -> Shaped[Tensor, "*part"]:
    """Return `part`, a view of `whole`, or a copy, so that a state does not keep the memory of a whole chunk.

    With gradients, the graph keeps that memory anyway, and no copy is made; nor in compiled programs.
    """
    if followed() or torch.is_grad_enabled() or 2 * part.numel() >= whole.numel():  # no guard on sizes if compiled
        return part
    return part.clone()


def right_align(
    x: Shaped[Tensor, "batch seq *rest"], lengths: Int[Tensor, " batch"]
) -> Shaped[Tensor, "batch seq *rest"]:
    """Shift each row right so that its first `lengths` items are at the end; zeros fill the front.

    Right-aligned caches give every row of a ragged batch the same lag between two slots.
    """
    seq_len = x.shape[1]
    source = torch.arange(seq_len, device=x.device) - (seq_len - lengths).unsqueeze(1)
    rest = (1,) * (x.ndim - 2)
    index = source.clamp(min=0).view(*source.shape, *rest).expand_as(x)
    return x.gather(1, index).masked_fill((source < 0).view(*source.shape, *rest), 0)


def left_align(
    x: Shaped[Tensor, "batch seq *rest"], lengths: Int[Tensor, " batch"]
) -> Shaped[Tensor, "batch seq *rest"]:
    """Shift each row left so that its last `lengths` items are at the start; zeros fill the end."""
    return reverse(right_align(reverse(x), lengths))


def reverse(
    x: Shaped[Tensor, "batch seq *rest"], lengths: Int[Tensor, " batch"] | None = None
) -> Shaped[Tensor, "batch seq *rest"]:
    """Reverse each row: its first `lengths` items followed by zeros, or by default the whole row."""
    backwards = x.flip(1)
    return backwards if lengths is None else left_align(backwards, lengths)
