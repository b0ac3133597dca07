"""A linear recurrence whose positions are spread over ranks: what enters those of this rank.

Each rank finds the map of the state over its own positions, S -> over(S) + added. The maps of the ranks before give
the state that enters here, so that no rank waits for the outputs of another. `zoo.parallel` sends the maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

Act = Callable[[Tensor, Tensor], Tensor]
"""How a map acts on a state: `torch.mul` or `torch.matmul`."""
Entering = Callable[[Act, Tensor, Tensor], Tensor]
"""Gives the state that enters a rank's positions, from `act`, and `over` and `added` of its map of the state."""

_entering: Entering | None = None  # a plain variable: torch.compile guards on it


def spread() -> Entering | None:
    """Return how this rank learns what enters, if positions are spread: a recurrence ignores its own state then."""
    return _entering


@contextmanager
def spread_by(entering: Entering | None) -> Iterator[None]:
    """Spread the recurrences of this block; by None, none of them."""
    global _entering
    before, _entering = _entering, entering
    try:
        yield
    finally:
        _entering = before
