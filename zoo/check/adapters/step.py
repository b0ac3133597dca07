"""Modules that decode one position at a time: `step`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zoo.check.adapters.adapter import REFUSALS, Adapter

STARTS = ("initial_state", "init_state", "empty_state", "get_initial_state")
"""Methods that give the first state for a batch size."""


class Step(Adapter):
    """`y, state = module.step(x_t, state)`, x_t (batch, d_model) or (batch, 1, d_model).

    The first state is what one of `STARTS` returns, or is left out of the first call. A step that returns several
    states takes them back as so many arguments, a mapping of states by their names.

    Args:
        flat: whether x_t has no axis of positions.
        start: which method gives the first state; None where the first call has none.
    """

    name = "step(x_t, state)"
    streams = True
    longest = 1
    whole_line = "module(x)"

    def __init__(self, flat: bool, start: str | None) -> None:
        self._flat, self._start = flat, start
        self._say("state")

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module has a `step` that accepts one of these calls."""
        if not callable(step := getattr(module, "step", None)) or not inspect.signature(step).parameters:
            return None
        starts = [name for name in STARTS if callable(getattr(module, name, None))]
        for flat in (True, False):
            for start in (*starts, None):
                found = cls(flat, start)
                try:
                    _, state = found.chunk(module, x[:, :1], None)
                    y, state = found.chunk(module, x[:, :1], state)
                except REFUSALS:
                    continue
                if y.ndim == 3 and y.shape[:2] == (len(x), 1):
                    several = isinstance(state, _Several)
                    found._say("**state" if isinstance(state, Mapping) else "*state" if several else "state")
                    return found
        return None

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is None and self._start is not None:
            state = getattr(module, self._start)(len(x))
        step: Any = module.step
        given = x[:, 0] if self._flat else x
        if state is None:
            output = step(given)
        elif isinstance(state, Mapping):
            output = step(given, **state)
        elif isinstance(state, _Several):
            output = step(given, *state)
        else:
            output = step(given, state)
        if not isinstance(output, tuple) or len(output) < 2 or not isinstance(output[0], Tensor):
            raise TypeError(f"step returns {type(output).__name__}, not outputs and a state")
        y, state = output[0], output[1] if len(output) == 2 else _Several(output[1:])
        return (y.unsqueeze(1) if self._flat else y), state

    def _say(self, back: str) -> None:
        given = "x[:, 0]" if self._flat else "x"
        first = f"module.step({given})"
        if self._start is not None:
            first = f"module.step({given}, module.{self._start}(len(x)))"
        returned = "y, *state" if back == "*state" else "y, state"
        self.chunk_lines = (
            f"{returned} = {first} if state is None else module.step({given}, {back})",
            *(("y = y.unsqueeze(1)",) if self._flat else ()),
        )


class _Several(tuple):
    """Several states that a step returned as separate values."""
