"""Linear recurrences with positions spread over ranks: computing the state that enters a rank's positions.

Each rank computes the map of the state over its own positions, S -> over(S) + added. The maps of the earlier ranks give
the state that enters here, so no rank waits for another's outputs. `zoo.parallel` sends the maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

Act = Callable[[Tensor, Tensor], Tensor]
"""How a map acts on a state: `torch.mul` or `torch.matmul`."""
Entering = Callable[[Act, Tensor, Tensor], Tensor]
"""Returns the state that enters a rank's positions, given `act`, `over` and `added` of its map of the state."""

_entering: Entering | None = None  # a plain variable: torch.compile guards on it


def spread() -> Entering | None:
    """Return the function that gives the entering state if positions are spread over ranks, else None.

    A recurrence ignores its own initial state if positions are spread.
    """
    return _entering


@contextmanager
def spread_by(entering: Entering | None) -> Iterator[None]:
    """Spread the recurrences of this block over ranks; with None, none of them."""
    global _entering
    before, _entering = _entering, entering
    try:
        yield
    finally:
        _entering = before
