"""The state of a mixer, nested tuples of tensors with the batch first, and functions on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

S = TypeVar("S")


State: TypeAlias = Tensor | tuple[Any, ...]
"""The state of a mixer between chunks: a tensor with the batch first, or (named) tuples of states.

The attribute `carried` of a named tuple lists the fields that linear recurrences carry; see `zoo.parallel`.
"""


def map_state(fn: Callable[..., Tensor], state: Any, *others: Any) -> Any:
    """Apply `fn` to every tensor of `state`, together with the corresponding tensors of `others`.

    Raises:
        TypeError, ValueError: the structure of `others` differs from the structure of `state`.
    """
    kind = Tensor if isinstance(state, Tensor) else type(state)
    for other in others:
        if not isinstance(other, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(other).__name__}")
    if isinstance(state, Tensor):
        return fn(state, *others)
    parts = [map_state(fn, *part) for part in zip(state, *others, strict=True)]
    return state._make(parts) if hasattr(state, "_make") else tuple(parts)


def state_tensors(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state, in order."""
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state:
            yield from state_tensors(part)


def detach_state(state: S) -> S:
    """Return the state detached from the autograd graph, for truncated back-propagation."""
    return map_state(lambda t: t.detach(), state)


def move_state(state: S, device: torch.device | str) -> S:
    """Return the state on another device."""
    return map_state(lambda t: t.to(device), state)


def reorder_state(state: S, index: Int[Tensor, " new_batch"]) -> S:
    """Return the rows `index` of the state; rows may repeat, as in beam search."""
    return map_state(lambda t: t.index_select(0, index), state)


def state_nbytes(state: State) -> int:
    """Count the bytes that the tensors of a state hold."""
    return sum(t.numel() * t.element_size() for t in state_tensors(state))


def check_state(expected: Any, given: Any) -> None:
    """Raise TypeError or ValueError unless `given` fits `expected`, an empty state; axes of length zero may grow."""
    map_state(_check_tensor, expected, given)
    _check_growth(expected, given)


def _check_tensor(expected: Tensor, given: Tensor) -> Tensor:
    # An axis that has length zero before the first position grows with the sequence.
    fits = given.ndim == expected.ndim and all(e in (g, 0) for e, g in zip(expected.shape, given.shape, strict=True))
    if not fits:
        raise ValueError(f"expected shape {tuple(expected.shape)} (0 grows), got {tuple(given.shape)}")
    if given.dtype != expected.dtype and not torch.is_autocast_enabled(given.device.type):
        raise ValueError(f"expected {expected.dtype}, got {given.dtype}")
    return given


def _check_growth(expected: Any, given: Any) -> None:
    """Raise ValueError if tensors of one named tuple have grown to different lengths along the same axis."""
    if isinstance(expected, Tensor):
        return
    grown: dict[int, tuple[str, int]] = {}
    for name, before, now in zip(getattr(expected, "_fields", ()), expected, given, strict=False):
        if not isinstance(before, Tensor):
            continue
        for axis in range(1, before.ndim):  # skip the batch, which may be empty but does not grow
            if before.shape[axis] == 0:
                first, size = grown.setdefault(axis, (name, now.shape[axis]))
                if now.shape[axis] != size:
                    raise ValueError(f"{name} has {now.shape[axis]} slots, {first} has {size}")
    for before, now in zip(expected, given, strict=True):
        _check_growth(before, now)
