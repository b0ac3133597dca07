"""Checks of arguments; each raises a one-line ValueError with the argument's name."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, get_args

import torch
from torch import Tensor

from zoo.errors import unknown


def require_positive(**sizes: int | None) -> None:
    """Raise ValueError for the first size that is not a positive integer; None means not given."""
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def require_positive_number(**values: float) -> None:
    """Raise ValueError for the first value that is not a positive, finite number."""
    for name, value in values.items():
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive, finite number, got {value!r}")


def require_seed(seed: int) -> None:
    """Raise ValueError for a seed outside the range of torch's generators."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie in 0..{2**63 - 1}, got {seed}")


def require_device(name: str) -> None:
    """Raise ValueError for a device that cannot be used here, or whose tensors hold no data (meta)."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device {name!r} cannot be used: {reason}") from None


def require_choice(name: str, value: object, choices: Any) -> None:
    """Raise ValueError unless `value` is one of the strings of a Literal type."""
    valid = get_args(choices)
    if value not in valid:
        raise ValueError(unknown(name, value, valid))


def require_range(**bounds: float) -> None:
    """Raise ValueError unless the two keyword arguments satisfy 0 < first <= second < infinity."""
    (low_name, low), (high_name, high) = bounds.items()
    if not 0 < low <= high < math.inf:
        raise ValueError(f"need 0 < {low_name} <= {high_name} < inf, got {low_name}={low}, {high_name}={high}")


def require_distance(seq_len: int, distance: int) -> None:
    """Raise ValueError unless the sequence has a position `distance` before the last one, with distance >= 1."""
    require_positive(seq_len=seq_len)
    if not 1 <= distance < seq_len:
        raise ValueError(f"distance must lie in 1..{seq_len - 1} (seq_len={seq_len}), got {distance}")


def require_blocks(seq_len: int, block_size: int, top_k: int) -> None:
    """Raise ValueError if a sequence is shorter than a block, or has fewer than top_k blocks."""
    if block_size > seq_len:
        raise ValueError(f"block_size={block_size} is longer than a sequence of {seq_len} positions")
    if top_k > (n_blocks := -(-seq_len // block_size)):
        raise ValueError(
            f"top_k={top_k} is more than the {n_blocks} blocks of block_size={block_size} in {seq_len} positions"
        )


def head_width(d_model: int, n_heads: int, d_head: int | None) -> int:
    """Return d_head, by default d_model / n_heads.

    Raises:
        ValueError: d_head is None and n_heads does not divide d_model.
    """
    if d_head is None and d_model % n_heads:
        raise ValueError(f"d_model={d_model} is not divisible by n_heads={n_heads}; choose a divisor or give d_head")
    return d_head or d_model // n_heads


def shared_heads(n_heads: int, n_kv_heads: int | None, name: str = "n_kv_heads") -> int:
    """Return n_kv_heads, by default n_heads; each of them serves a group of n_heads / n_kv_heads heads.

    Raises:
        ValueError: n_kv_heads does not divide n_heads; the message calls it `name`.
    """
    if n_kv_heads is not None and n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} is not divisible by {name}={n_kv_heads}")
    return n_kv_heads or n_heads


def require_real(name: str, value: object, form: str, n_axes: Collection[int]) -> None:
    """Raise ValueError unless `value` is a finite, non-empty float32 or float64 tensor with a valid number of axes.

    Args:
        name: name of the argument, for the message.
        value: the argument.
        form: its shape in words, for the message.
        n_axes: valid numbers of axes.
    """
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor {form}, got {type(value).__name__}")
    if value.ndim not in n_axes or 0 in value.shape or value.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{name} must be {form}, float32 or float64, not empty; got {value.dtype} {tuple(value.shape)}"
        )
    if not value.isfinite().all():
        raise ValueError(f"{name} must be finite")
