"""States of foreign modules: find the tensors in a state of any type, and their shapes by running the module."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from zoo.adapters.protocols import Adapter
from zoo.ops.precision import complex_accumulator


def tensors_of(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state of any type, from sequences, mappings and attributes of objects."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from tensors_of(value)
    elif isinstance(state, (list, tuple, deque)):
        for value in state:
            yield from tensors_of(value)
    elif not isinstance(state, (nn.Module, type)):
        slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ()) if name[:2] != "__"]
        for name in (*slots, *getattr(state, "__dict__", ())):
            yield from tensors_of(getattr(state, name, None))


def with_tensors(state: Any, make: Callable[[int, Tensor], Tensor]) -> Any:
    """Copy a state of any type, with each tensor t replaced by `make(index of t in tensors_of(state), t)`."""
    return copy.deepcopy(state, {id(t): make(place, t) for place, t in enumerate(tensors_of(state))})


def run(adapter: Adapter, module: nn.Module, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """Stream x in the longest chunks that the protocol allows; `state` is None at the start."""
    outputs = []
    for part in x.split(adapter.longest or x.shape[1], dim=1):
        y, state = adapter.chunk(module, part, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


class Part(NamedTuple):
    """Shape and dtype of one tensor of a state.

    Attributes:
        rows: the batch axis; None if all rows share the tensor.
        shape: sizes of the other axes after one position.
        growth: growth of these sizes per further position.
        dtype: None if it is the dtype of the activations.
        complex: whether the tensor is complex.
    """

    rows: int | None
    shape: tuple[int, ...]
    growth: tuple[int, ...]
    dtype: torch.dtype | None
    complex: bool

    def empty(self, batch_size: int, dtype: torch.dtype | None, device: Any, after: int | None = None) -> Tensor:
        """Return zeros in the shape after `after` positions, by default before the first, with growing axes empty."""
        grown = zip(self.shape, self.growth, strict=True)
        sizes = [0 if after is None and slope else size + slope * ((after or 1) - 1) for size, slope in grown]
        follows = complex_accumulator(dtype) if self.complex else dtype
        return torch.zeros(batch_size, *sizes, dtype=self.dtype or follows, device=device)


def parts_of(adapter: Adapter, module: nn.Module, x: Tensor) -> tuple[Part, ...]:
    """Find the parts of a module's state by running it on parts of x, which has at least 3 rows and 5 positions.

    Raises:
        ValueError: a tensor without a batch axis, or tensors whose number or number of axes changes.
    """
    first, fewer, longer = (
        list(tensors_of(run(adapter, module, x[:rows, :n])[1])) for rows, n in ((3, 1), (2, 1), (3, 5))
    )
    found = []
    if not len(first) == len(fewer) == len(longer):
        raise ValueError("the number of tensors in its state changes")
    for a, b, c in zip(first, fewer, longer, strict=True):
        if not a.ndim == b.ndim == c.ndim:
            raise ValueError("the axes of its state change")
        differ = [axis for axis in range(a.ndim) if a.shape[axis] != b.shape[axis]]
        if len(differ) > 1 or any((a.shape[axis], b.shape[axis]) != (3, 2) for axis in differ):
            raise ValueError(f"its state has a tensor {tuple(a.shape)} without a batch axis")
        rows = differ[0] if differ else None
        others = [axis for axis in range(a.ndim) if axis != rows]
        growth = tuple((c.shape[axis] - a.shape[axis]) // 4 for axis in others)
        dtype = None if a.dtype == (complex_accumulator(x.dtype) if a.is_complex() else x.dtype) else a.dtype
        found.append(Part(rows, tuple(a.shape[axis] for axis in others), growth, dtype, a.is_complex()))
    return tuple(found)


class Carried(tuple[Tensor, ...]):
    """The state of a foreign module in the form of `zoo.state`, a tuple of tensors with the batch first.

    The first tensor is `past`, inputs that the module has not processed yet, (batch, seq, d_model). The others are the
    tensors of the module's own state. `outline` is that state with empty tensors; None if nothing was processed.
    """

    outline: Any = None

    @property
    def past(self) -> Tensor:
        return self[0]

    def _make(self, tensors: Iterable[Tensor]) -> Self:
        made = type(self)(tensors)
        made.outline = self.outline
        return made

    @classmethod
    def close(cls, state: Any, parts: tuple[Part, ...], x: Tensor) -> Self:
        """Convert a module's own state after x."""
        first = [
            t.unsqueeze(0).expand(len(x), *t.shape) if part.rows is None else t.movedim(part.rows, 0)
            for t, part in zip(tensors_of(state), parts, strict=True)
        ]
        made = cls((x[:, :0], *first))
        made.outline = with_tensors(state, lambda _, t: t.new_empty(0))
        return made

    def open(self, parts: tuple[Part, ...]) -> Any:
        """Return the module's own state, with copied tensors that the module may modify."""

        def restored(place: int, _: Tensor) -> Tensor:
            t, rows = self[1 + place], parts[place].rows
            return t[0].clone() if rows is None else t.movedim(0, rows).clone()

        return None if self.outline is None else with_tensors(self.outline, restored)
