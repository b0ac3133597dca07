"""Read the scalar mixing weights w_ij of ops that compute y_i = sum_j w_ij v_j for each head.

The decorator `core` marks such an op and declares its value argument and axes. Inside `reading`, every call of the op
runs again with unit values: in each copy of the batch the values are one at one position and zero elsewhere, so that
the output is a column of weights. No op or mixer needs code of its own for this. A `Call` also keeps values and
outputs, to check the weights against them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from einops import rearrange, repeat
from torch import Tensor

Op = TypeVar("Op", bound=Callable[..., Any])
AXES = ("batch", "head", "seq", "part", "value")


class Call(NamedTuple):
    """One call of a core while weights were read."""

    name: str
    weights: Tensor  # (copies, batch, heads, parts_out, seq, parts_in): weights of each copy's source position
    values: Tensor  # (batch, heads, seq, parts_in, d_value)
    outputs: Tensor  # (batch, heads, parts_out, seq, d_value)


class Reading:
    """The core calls of one forward pass, on copies of a batch that are stacked along the batch axis.

    Args:
        sources: position of the unit value in each copy.

    Attributes:
        calls: the calls so far.
        backwards: whether the next op is called with its positions in reverse order.
    """

    def __init__(self, sources: Tensor) -> None:
        self.sources, self.backwards = sources, False
        self.calls: list[Call] = []

    def read(self, op: Callable[..., Any], given: inspect.BoundArguments, values: str, axes: str, out_axes: str) -> Any:
        answer = op(*given.args, **given.kwargs)
        y = _canonical(_first(answer), out_axes)
        v = _canonical(given.arguments[values], axes)
        n_copies, (n_slots, n_parts) = len(self.sources), v.shape[2:4]
        past = n_slots - y.shape[2]
        copy = torch.arange(n_copies, device=v.device)
        sources = y.shape[2] - 1 - self.sources if self.backwards else self.sources
        found = []
        for part in range(n_parts):
            units = torch.zeros_like(v).unflatten(0, (n_copies, -1))
            units[copy, :, :, past + sources, part] = 1.0
            given.arguments[values] = rearrange(units.flatten(0, 1), " -> ".join(reversed(_patterns(axes))))
            found.append(_canonical(_first(op(*given.args, **given.kwargs)), out_axes)[..., 0])
        weights = rearrange(
            torch.stack(found, -1), "(copy batch) h i out part -> copy batch h out i part", copy=n_copies
        )
        v = repeat(
            v[: len(v) // n_copies, :, past:], "b h i part p -> b (h shared) i part p", shared=y.shape[1] // v.shape[1]
        )
        y = rearrange(y[: len(v)], "b h i out p -> b h out i p")
        if self.backwards:
            weights, v, y = weights.flip(4), v.flip(2), y.flip(3)
        self.calls.append(Call(getattr(op, "__name__", "core"), weights, v, y))
        return answer


_reading: Reading | None = None


def core(values: str, axes: str, out_axes: str | None = None) -> Callable[[Op], Op]:
    """Declare that an op is linear in its argument `values`, with scalar weights for each head.

    Args:
        values: name of the value argument.
        axes: its axes, names from `AXES` including batch. Its "seq" may begin with positions that the output lacks
            (a cache). "part" indexes several values per position. "channel" means heads of width one.
        out_axes: axes of the output (of the first one if the op returns a tuple); default `axes`.
    """

    def declare(op: Op) -> Op:
        signature = inspect.signature(op)

        @functools.wraps(op)
        def call(*args: Any, **options: Any) -> Any:
            if _reading is None:
                return op(*args, **options)
            with _using(None) as reading:
                assert reading is not None
                return reading.read(op, signature.bind(*args, **options), values, axes, out_axes or axes)

        return call  # type: ignore[return-value]

    return declare


@contextmanager
def reading(sources: Tensor) -> Iterator[Reading]:
    """Read the weights of every core that is called inside the block.

    Raises:
        RuntimeError: inside another `reading`.
    """
    if _reading is not None:
        raise RuntimeError("readings do not nest")
    found = Reading(sources)
    with _using(found):
        yield found


@contextmanager
def _using(now: Reading | None) -> Iterator[Reading | None]:
    """Set the active reading and yield the previous one. With None, ops called by an op count as a part of it."""
    global _reading
    before, _reading = _reading, now
    try:
        yield before
    finally:
        _reading = before


def _first(answer: Any) -> Tensor:
    return answer if isinstance(answer, Tensor) else answer[0]


def _canonical(t: Tensor, axes: str) -> Tensor:
    """Return the tensor with all of `AXES`; missing axes get length one."""
    return rearrange(t, " -> ".join(_patterns(axes)))


def _patterns(axes: str) -> tuple[str, str]:
    """Return einops patterns of the given axes and of all `AXES`."""
    given = axes.replace("channel", "head").split()
    return " ".join(given), " ".join(name if name in given else "1" for name in AXES)
