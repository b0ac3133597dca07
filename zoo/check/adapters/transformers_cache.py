"""The protocol of transformers: a cache as argument and result, `past_key_values` or `cache_params`."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from zoo.check.adapters.adapter import Adapter, first_tensor

CACHES = ("past_key_values", "cache_params")


class TransformersCache(Adapter):
    """`module(inputs_embeds=x, past_key_values=cache, use_cache=True)`, or `cache_params`; layers take x first.

    Args:
        argument: which of `CACHES` the module takes.
        keyword: `inputs_embeds`; None where x is the first argument.
    """

    streams = True
    in_place = True

    def __init__(self, argument: str, keyword: str | None) -> None:
        self.argument, self.input_keyword = argument, keyword
        given = "x" if keyword is None else f"{keyword}=x"
        self.name = f"{argument} (transformers)"
        self.whole_line = f"module({given}, use_cache=False)[0]"
        self.chunk_lines = (
            f"out = module({given}, {argument}=state, use_cache=True)",
            f"y, state = out[0], out.{argument}" if keyword is not None else "y, state = out[0], out[-1]",
        )

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module takes such a cache and returns one."""
        takes = inspect.signature(module.forward).parameters
        argument = next((name for name in CACHES if name in takes), None)
        if argument is None or ("use_cache" not in takes and "kwargs" not in takes):
            return None
        found = cls(argument, "inputs_embeds" if "inputs_embeds" in takes else None)
        _, state = found.chunk(module, x[:, :2], None)
        return None if state is None else found

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        return first_tensor(self.call(module, x, use_cache=False))

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        output = self.call(module, x, use_cache=True, **{self.argument: state})
        if (cache := getattr(output, self.argument, None)) is None and isinstance(output, tuple):
            cache = output[-1]
        return first_tensor(output), cache

    def bypassed(self, module: nn.Module) -> list[nn.Parameter]:
        return [] if self.input_keyword is None else _embeddings(module)


class Embeddings(Adapter):
    """A model of transformers that returns no cache: `module(inputs_embeds=x)`."""

    name = "inputs_embeds"
    input_keyword = "inputs_embeds"
    whole_line = "module(inputs_embeds=x)[0]"

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module takes embeddings by that name."""
        return cls() if "inputs_embeds" in inspect.signature(module.forward).parameters else None

    def bypassed(self, module: nn.Module) -> list[nn.Parameter]:
        return _embeddings(module)


def _embeddings(module: Any) -> list[nn.Parameter]:
    """Return the table of tokens, which embeddings given as input pass by."""
    table = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
    return list(table.parameters()) if isinstance(table, nn.Module) else []
