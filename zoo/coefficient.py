"""Mark every input-dependent coefficient where it is computed; read the operator off the layer itself.

A mixer computes y_i = sum_j W_ij(X) x_j + c_i. Whatever in that sum depends on X but is not the value stream
(queries and keys, decays, gates, 1/rms, router weights) passes through `coefficient`, which has three modes:

    identity    returns its argument: always, outside the two contexts below
    record      returns its argument and keeps it
    replay      returns what was kept, whatever the argument is now

Recorded at X and replayed, a layer is an affine map of its input, and that map is the operator
(`zoo.theory.interaction`). The mode is a plain module variable, so torch.compile guards on it and stays fullgraph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class ReplayError(RuntimeError):
    """The layer computed other coefficients than it did when they were recorded."""


class Tape:
    """The coefficients of one forward pass, in the order in which the layer computed them."""

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
    """`t` itself; under `replaying`, the value that `t` had when it was recorded (detached)."""
    if _tape is None:
        return t
    return _tape.visit(t)


def active() -> bool:
    """Return whether coefficients are being recorded or replayed: a kernel that does not mark them must stand aside."""
    return _tape is not None


@contextmanager
def recording() -> Iterator[Tape]:
    """Keep every coefficient computed inside the block.

    Raises:
        RuntimeError: inside another `recording` or `replaying`.
    """
    with _using(Tape()) as tape:
        yield tape


@contextmanager
def replaying(tape: Tape) -> Iterator[None]:
    """Hold every coefficient computed inside the block at its recorded value.

    Raises:
        RuntimeError: nested in another mode.
        ReplayError: the layer computed other coefficients than it did when recorded.
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
