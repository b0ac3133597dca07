"""The protocol of torch.nn.LSTM: `y, state = module(x, state)`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from zoo.protocols.adapter import REFUSALS, Adapter


class Pair(Adapter):
    """`module(x)` returns outputs and state, and takes the state as its second argument."""

    name = "(y, state) = module(x, state)"
    streams = True
    whole_line = "module(x)[0]"
    chunk_lines = ("y, state = module(x, state)",)

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module returns a pair and takes its second part back."""
        takes = [
            p
            for p in inspect.signature(module.forward).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if len(takes) < 2:
            return None
        with torch.no_grad():
            output = module(x)
            if not isinstance(output, tuple) or len(output) != 2 or output[1] is None:
                return None
            try:
                again = module(x[:, :1], output[1])
            except REFUSALS:
                return None
        return cls() if isinstance(again, tuple) and len(again) == 2 else None

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x) if state is None else module(x, state)
