"""Record and replay the input-dependent coefficients of a layer, which makes it an affine map of its input.

A mixer computes y_i = sum_j W_ij(X) x_j + c_i. Everything in that sum that depends on X, except the values x_j
(queries and keys, decays, gates, 1/rms, router weights), passes through `coefficient`, which has three modes:

    identity    return the argument (the default)
    record      return the argument and store it (in `recording`)
    replay      return the stored value, whatever the argument is now (in `replaying`)

A layer that replays the coefficients of X is an affine map. This map is the layer's operator at X
(`zoo.theory.interaction`). The mode is a plain module variable, so torch.compile guards on it and stays fullgraph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class ReplayError(RuntimeError):
    """Replay met other coefficients than were recorded: another number of them, or another shape."""


class Tape:
    """The coefficients of one forward pass, in the order of their computation."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []
        self.replaying = False
        self._next = 0

    def visit(self, t: Tensor) -> Tensor:
        if not self.replaying:
            self.kept.append(t.detach())
            return t
        if self._next == len(self.kept):
            raise ReplayError(f"replay met more coefficients than the {len(self.kept)} that were recorded")
        kept = self.kept[self._next]
        self._next += 1
        if kept.shape != t.shape:
            raise ReplayError(f"replay met a coefficient of shape {tuple(t.shape)}, recorded {tuple(kept.shape)}")
        return kept


_tape: Tape | None = None


def coefficient(t: Tensor) -> Tensor:
    """Mark `t` as a coefficient: return it, or its recorded value (detached) under `replaying`."""
    if _tape is None:
        return t
    return _tape.visit(t)


def active() -> bool:
    """Return whether coefficients are recorded or replayed; kernels that do not mark them must not run then."""
    return _tape is not None


@contextmanager
def recording() -> Iterator[Tape]:
    """Record every coefficient computed inside the block.

    Raises:
        RuntimeError: inside another `recording` or `replaying`.
    """
    with _using(Tape()) as tape:
        yield tape


@contextmanager
def replaying(tape: Tape) -> Iterator[None]:
    """Replace every coefficient computed inside the block by its recorded value.

    Raises:
        RuntimeError: inside another `recording` or `replaying`.
        ReplayError: number or shapes of the coefficients differ from the recording.
    """
    tape.replaying, tape._next = True, 0
    try:
        with _using(tape):
            yield
    finally:
        tape.replaying = False
    if tape._next != len(tape.kept):
        raise ReplayError(f"replay met {tape._next} coefficients, {len(tape.kept)} were recorded")


@contextmanager
def _using(tape: Tape) -> Iterator[Tape]:
    global _tape
    if _tape is not None:
        raise RuntimeError("coefficient modes do not nest")
    _tape = tape
    try:
        yield tape
    finally:
        _tape = None
