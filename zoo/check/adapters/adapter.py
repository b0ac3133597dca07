"""The base class of adapters: the few calls by which the checks use a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    IndexError,
    KeyError,
    AssertionError,
    NotImplementedError,
)
"""What a module may raise when it is called in a way that it does not know."""


def first_tensor(output: Any) -> Tensor:
    """Return the tensor of an output: itself, the first of a tuple, or `last_hidden_state`.

    Raises:
        TypeError: none of these.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(named := getattr(output, "last_hidden_state", None), Tensor):
        return named
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    raise TypeError(f"the module returns {type(output).__name__}, not a tensor or a tuple that begins with one")


class Adapter:
    """Call a module on whole sequences and, if `streams`, in chunks. Write a subclass for a protocol of your own.

    Attributes:
        name: what the report calls the protocol.
        streams: whether `chunk` is defined.
        longest: most positions that a chunk may have; None for any number.
        in_place: whether the state is an object that later chunks write into, as a cache does.
        input_keyword: the keyword that takes x; None where it is the first argument.
        whole_line: the expression that `whole` evaluates, in Python, of `module` and `x`.
        chunk_lines: what `chunk` does, in Python, of `module`, `x` and `state`, to `y` and `state`.
    """

    name: str = "an adapter of your own"
    streams: bool = False
    longest: int | None = None
    in_place: bool = False
    input_keyword: str | None = None
    whole_line: str = "adapter.whole(module, x)"
    chunk_lines: Sequence[str] = ("y, state = adapter.chunk(module, x, state)",)

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the outputs for whole sequences, (batch, seq, d_out)."""
        return first_tensor(self.call(module, x))

    def call(self, module: nn.Module, x: Tensor, **arguments: Any) -> Any:
        """Call the module on x, by `input_keyword` where there is one."""
        return module(x, **arguments) if self.input_keyword is None else module(**{self.input_keyword: x}, **arguments)

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the outputs for the next chunk and the state after it; `state` is None before the first."""
        raise NotImplementedError(f"{type(self).__name__} says that it streams and has no chunk")

    def bypassed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that vectors as input do not use: the table of tokens."""
        return []


class Forward(Adapter):
    """A module without states: only whole sequences."""

    name = "forward alone"
    whole_line = "module(x)"
