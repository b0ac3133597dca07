"""Choose the adapter of a module: the first of these that finds what it needs."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from zoo.check.adapters.adapter import REFUSALS, Adapter, Forward, first_tensor
from zoo.check.adapters.step import Step
from zoo.check.adapters.transformers_cache import Embeddings, TransformersCache


class Stream(Adapter):
    """The protocol of this package: `y, state = module.stream(x, state)`, any chunk."""

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


class XTransformersCache(Adapter):
    """x-transformers' `y, cache = module(x, cache=cache, cache_age=len of x, return_hiddens=True)`."""

    name = "return_hiddens and cache (x-transformers)"
    streams = True
    whole_line = "module(x)"
    chunk_lines = (
        "y, state = module(x, cache=state, cache_age=x.shape[1], input_not_include_cache=True, return_hiddens=True)",
    )

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module takes a cache of that kind."""
        if not {"cache", "return_hiddens"} <= inspect.signature(module.forward).parameters.keys():
            return None
        found = cls()
        _, state = found.chunk(module, x[:, :2], None)
        found.chunk(module, x[:, 2:3], state)
        return found

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x, cache=state, cache_age=x.shape[1], input_not_include_cache=True, return_hiddens=True)


class Lengths(Adapter):
    """`module(x, lengths=lengths)`, for modules that must be told how long each row is."""

    name = "forward with lengths"
    whole_line = "module(x, lengths=torch.full((len(x),), x.shape[1]))"

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module has a parameter `lengths` without a default."""
        takes = inspect.signature(module.forward).parameters.get("lengths")
        return cls() if takes is not None and takes.default is takes.empty else None

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        return first_tensor(module(x, lengths=torch.full((len(x),), x.shape[1], device=x.device)))


class Pair(Adapter):
    """The protocol of torch.nn.LSTM: `module(x)` returns outputs and state, and takes the state as second argument."""

    name = "(y, state) = module(x, state)"
    streams = True
    whole_line = "module(x)[0]"
    chunk_lines = ("y, state = module(x, state)",)

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module returns a pair and takes its second part back."""
        takes = inspect.signature(module.forward).parameters.values()
        if sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in takes) < 2:
            return None
        output = module(x)
        if not isinstance(output, tuple) or len(output) != 2 or output[1] is None:
            return None
        again = module(x[:, :1], output[1])
        return cls() if isinstance(again, tuple) and len(again) == 2 else None

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x) if state is None else module(x, state)


PROTOCOLS = (Stream, TransformersCache, Embeddings, XTransformersCache, Lengths, Step, Pair)


def find_adapter(module: nn.Module, x: Tensor) -> Adapter:
    """Find the adapter for `module` by trying it on x; return one without chunks where no protocol is known."""
    for protocol in PROTOCOLS:
        with torch.no_grad(), suppress(*REFUSALS):
            if (found := protocol.find(module, x)) is not None:
                return found
    return Forward()
