"""The protocol of x-transformers: `return_hiddens` gives intermediates, `cache` takes them back."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from zoo.protocols.adapter import REFUSALS, Adapter


class XTransformersCache(Adapter):
    """`y, cache = module(x, cache=cache, cache_age=len of x, return_hiddens=True)`."""

    name = "return_hiddens and cache (x-transformers)"
    streams = True
    whole_line = "module(x)"
    chunk_lines = (
        "y, state = module(x, cache=state, cache_age=x.shape[1], input_not_include_cache=True, return_hiddens=True)",
    )

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module takes a cache of that kind."""
        takes = inspect.signature(module.forward).parameters
        if "cache" not in takes or "return_hiddens" not in takes:
            return None
        found = cls()
        try:
            with torch.no_grad():
                _, state = found.chunk(module, x[:, :2], None)
                found.chunk(module, x[:, 2:3], state)
        except REFUSALS:
            return None
        return found

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x, cache=state, cache_age=x.shape[1], input_not_include_cache=True, return_hiddens=True)
