"""The protocol of this package: `stream(x, state) -> (y, state)`."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from zoo.protocols.adapter import Adapter


class Stream(Adapter):
    """`y, state = module.stream(x, state)`, any chunk."""

    name = "stream(x, state)"
    streams = True
    whole_line = "module(x)"
    chunk_lines = ("y, state = module.stream(x, state)",)

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module has a `stream` that takes a state."""
        stream = getattr(module, "stream", None)
        return cls() if callable(stream) and "state" in inspect.signature(stream).parameters else None

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module.stream(x, state)  # pyright: ignore[reportCallIssue]
