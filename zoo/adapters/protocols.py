"""Adapters, one per protocol: call a foreign module on whole sequences, and stream it chunk by chunk."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.modules import listed
from zoo.targets import load

CACHES = ("past_key_values", "cache_params")
"""Names of the cache argument in transformers."""

STARTS = ("initial_state", "init_state", "empty_state", "get_initial_state")
"""Names of methods that return the initial state for a batch size."""


def first_tensor(output: Any) -> Tensor:
    """Return the output tensor: the output itself, its `last_hidden_state`, or the first entry of a tuple.

    Raises:
        TypeError: the output is none of these.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(named := getattr(output, "last_hidden_state", None), Tensor):
        return named
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    raise TypeError(f"the module returns {type(output).__name__}, not a tensor or a tuple that begins with one")


def arguments_of(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the module's `forward`; empty for torch.jit modules, which have no signature."""
    try:
        return inspect.signature(module.forward).parameters
    except ValueError:
        return {}


class Adapter:
    """Call a module on whole sequences and, if `streams`, in chunks. Write a subclass for your own protocol.

    Attributes:
        name: name of the protocol in the report.
        streams: whether `chunk` is defined.
        longest: maximum length of a chunk; None for no limit.
        in_place: whether later chunks modify the state, such as a cache.
        input_keyword: keyword argument for x; None if x is the first argument.
    """

    name: str = "your own adapter"
    streams: bool = False
    longest: int | None = None
    in_place: bool = False
    input_keyword: str | None = None

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return an adapter if the module follows the protocol, by its signature or a trial on x; otherwise None."""
        raise NotImplementedError

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the outputs for whole sequences, (batch, seq, d_out)."""
        return first_tensor(self.call(module, x))

    def call(self, module: nn.Module, x: Tensor, **arguments: Any) -> Any:
        """Call the module on x, passed as `input_keyword` if that is set."""
        return module(x, **arguments) if self.input_keyword is None else module(**{self.input_keyword: x}, **arguments)

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the outputs for the next chunk and the state after it; `state` is None before the first."""
        raise NotImplementedError(f"{type(self).__name__} sets streams=True but does not define chunk")

    def bypassed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that are unused if the input is vectors: the embedding table."""
        if self.input_keyword is None or not hasattr(module, "get_input_embeddings"):
            return []
        table = module.get_input_embeddings()  # pyright: ignore[reportCallIssue]
        return list(table.parameters()) if isinstance(table, nn.Module) else []


class Forward(Adapter):
    """A module that maps only whole sequences."""

    name = "forward alone"


class Stream(Adapter):
    """The protocol of this package: `y, state = module.stream(x, state)`, with chunks of any length."""

    name = "stream(x, state)"
    streams = True

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        stream = getattr(module, "stream", None)
        return cls() if callable(stream) and "state" in inspect.signature(stream).parameters else None

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module.stream(x, state)  # pyright: ignore[reportCallIssue]

    def bypassed(self, module: nn.Module) -> list[nn.Parameter]:
        return [module.get_parameter(name) for name in listed(module, "apart")]


class TransformersCache(Adapter):
    """`module(inputs_embeds=x, past_key_values=cache, use_cache=True)`, or `cache_params`; layers: `module(x, ...)`.

    Args:
        argument: name of the cache argument, one of `CACHES`.
        keyword: `inputs_embeds`; None if x is the first argument.
    """

    streams = True
    in_place = True

    def __init__(self, argument: str, keyword: str | None) -> None:
        self.argument, self.input_keyword = argument, keyword
        self.name = f"{argument} (transformers)"

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        takes = arguments_of(module)
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


class Embeddings(Adapter):
    """A transformers model without a cache: `module(inputs_embeds=x)`."""

    name = "inputs_embeds"
    input_keyword = "inputs_embeds"

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        return cls() if "inputs_embeds" in arguments_of(module) else None


class XTransformersCache(Adapter):
    """x-transformers' `y, cache = module(x, cache=cache, cache_age=len of x, return_hiddens=True)`."""

    name = "return_hiddens and cache (x-transformers)"
    streams = True

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        if not {"cache", "return_hiddens"} <= arguments_of(module).keys():
            return None
        found = cls()
        _, state = found.chunk(module, x[:, :2], None)
        found.chunk(module, x[:, 2:3], state)
        return found

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x, cache=state, cache_age=x.shape[1], input_not_include_cache=True, return_hiddens=True)


class Lengths(Adapter):
    """`module(x, lengths=lengths)`, for modules that require the length of each row."""

    name = "forward with lengths"

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        takes = arguments_of(module).get("lengths")
        return cls() if takes is not None and takes.default is takes.empty else None

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        return first_tensor(module(x, lengths=torch.full((len(x),), x.shape[1], device=x.device)))


class Step(Adapter):
    """`y, state = module.step(x_t, state)` with x_t of shape (batch, d_model) or (batch, 1, d_model).

    One of `STARTS` returns the initial state; without such a method, the first call has no state. If step returns
    several states, they are passed back as separate arguments; a mapping of states is passed as keywords.

    Args:
        flat: whether x_t is (batch, d_model).
        start: method that returns the initial state; None if the first call has no state.
    """

    name = "step(x_t, state)"
    streams = True
    longest = 1

    def __init__(self, flat: bool, start: str | None) -> None:
        self._flat, self._start = flat, start

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        if not callable(step := getattr(module, "step", None)) or not inspect.signature(step).parameters:
            return None
        starts = [name for name in STARTS if callable(getattr(module, name, None))]
        for flat in (True, False):
            for start in (*starts, None):
                found = cls(flat, start)
                with suppress(Exception):
                    _, state = found.chunk(module, x[:, :1], None)
                    y, _ = found.chunk(module, x[:, :1], state)
                    if y.ndim == 3 and y.shape[:2] == (len(x), 1):
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


class _Several(tuple):
    """States that step returned as separate values."""


class Pair(Adapter):
    """The protocol of torch.nn.LSTM: `y, state = module(x)`, then `y, state = module(x, state)`."""

    name = "(y, state) = module(x, state)"
    streams = True

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        takes = [p for p in arguments_of(module).values() if p.kind in positional]
        if len(takes) < 2 or "mask" in takes[1].name or takes[1].default not in (None, inspect.Parameter.empty):
            return None
        output = module(x)
        if not isinstance(output, tuple) or len(output) != 2 or output[1] is None:
            return None
        again = module(x[:, :1], output[1])
        return cls() if isinstance(again, tuple) and len(again) == 2 else None

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x) if state is None else module(x, state)


PROTOCOLS = (Stream, TransformersCache, Embeddings, XTransformersCache, Lengths, Step, Pair)
"""Adapters, in order of trial."""


def find_adapter(module: nn.Module, x: Tensor) -> Adapter:
    """Return the first adapter of `PROTOCOLS` whose `find` succeeds on x; otherwise `Forward`."""
    for protocol in PROTOCOLS:
        with torch.no_grad(), suppress(Exception):  # a module may raise anything for an unknown call
            if (found := protocol.find(module, x)) is not None:
                return found
    return Forward()


def load_adapter(name: str) -> Adapter:
    """Build an adapter of the class `package.module:Class` or `path/file.py:Class`.

    Raises:
        UsageError: no such class, or not a subclass of `Adapter`.
    """
    found = load(name)
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        raise UsageError(f"{name} is not a subclass of zoo.check.Adapter")
    return found()
