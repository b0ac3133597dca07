"""The subject of a check: a module, or a way to make one, with its inputs; the same draws every time."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.check.adapters.adapter import Adapter
from zoo.check.adapters.known import find_adapter
from zoo.check.adopted import NUDGE, Factory, nudge, require_batch_first, settle, signature_of, with_width
from zoo.check.finding import NotApplicableError, describe_error
from zoo.validate import require_positive


class Subject:
    """A module under check. Every property gets a copy of its own, in eval mode, with the same parameters.

    Args:
        target: a module, which is copied and left as it is, or a function or class that makes one: called with d_model
            where it has a positional parameter, and with `options`.
        d_model: width of the input.
        seq_len: positions of the input; some properties use other lengths.
        options: keywords for a class or function.
        device, dtype: of module and input.
        adapter: the protocol; default: found by trying.
        source: Python lines that make `module`, for the findings; default: derived from `target`.
        options_of: class or function whose signature has the options, where `target` hides them.
        looks_ahead: whether later positions may change earlier outputs.

    Raises:
        ValueError: sizes that are not positive, a target that is no module and makes none, options for a module, or a
            module that does not map (batch, seq, d_model) to (batch, seq, d_out).
    """

    def __init__(
        self,
        target: nn.Module | Factory,
        *,
        d_model: int,
        seq_len: int = 40,
        options: Mapping[str, Any] | None = None,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        adapter: Adapter | None = None,
        source: Sequence[str] | None = None,
        options_of: Factory | None = None,
        looks_ahead: bool = False,
    ) -> None:
        require_positive(d_model=d_model, seq_len=seq_len)
        if seq_len < 8:
            raise ValueError(f"seq_len must be at least 8, got {seq_len}")
        if isinstance(target, nn.Module) and options:
            raise ValueError("options are for a class or a function that makes modules; this is a module")
        if not callable(target):
            raise ValueError(f"what is checked must be a module or make one, got {type(target).__name__}")
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
        self.target, self.d_model, self.seq_len = target, d_model, seq_len
        self.options, self._options_of = dict(options or {}), options_of
        self.looks_ahead = looks_ahead
        self.device, self.dtype = device, dtype
        makes = target if hasattr(target, "__name__") else options_of  # a partial function has no name of its own
        self.name = type(target).__name__ if isinstance(target, nn.Module) else getattr(makes, "__name__", "factory")
        self.source = tuple(_source(target, d_model, self.options) if source is None else source)
        self.original = self._built()
        self.adapter = self._adapter(adapter)

    @property
    def factory(self) -> Factory | None:
        """The function that makes the module, called with d_model and options; None if a module was given."""
        return None if isinstance(self.target, nn.Module) else self.target

    def make(self, options: Mapping[str, Any] | None = None, seed: int = 0) -> nn.Module:
        """Make a new module with parameters drawn from `seed`, or copy the module that was given."""
        if isinstance(self.target, nn.Module):
            return copy.deepcopy(self.target)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width, named = with_width(self.target, self.d_model, {**self.options, **(options or {})})
            made = self.target(*width, **named)
        if not isinstance(made, nn.Module):
            raise TypeError(f"{self.name} must make a torch.nn.Module, it makes {type(made).__name__}")
        return made

    def signature(self) -> inspect.Signature:
        """Return the parameters of the factory; empty if it does not say them."""
        told = self._options_of or self.factory
        return inspect.Signature() if told is None else signature_of(told)

    def hints(self) -> dict[str, Any]:
        """Return the types of the factory's parameters, as far as they can be resolved."""
        told = self._options_of or self.factory
        try:
            return get_type_hints(told.__init__ if isinstance(told, type) else told)
        except (NameError, TypeError, AttributeError):
            return {}

    def module(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a copy of the module, in eval mode, in the subject's dtype or another."""
        try:
            made = copy.deepcopy(self.original)
        except Exception:  # noqa: BLE001 - a module that cannot be copied is told so by the property of that name
            made = self._built()
        return made if dtype is None else made.to(dtype)

    def draw(
        self, batch_size: int = 2, seq_len: int | None = None, *, seed: int = 1, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "batch seq d_model"]:
        """Draw standard normal input; the same numbers for the same shape and seed, in any dtype."""
        shape = (batch_size, self.seq_len if seq_len is None else seq_len, self.d_model)
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return numbers.to(self.device, self.dtype if dtype is None else dtype)

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the outputs of `module` for whole sequences, after a check of their shape.

        Raises:
            ValueError: not (batch, seq, d_out).
        """
        y = self.adapter.whole(module, x)
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            raise ValueError(f"the module maps {tuple(x.shape)} to {tuple(y.shape)}, not to (batch, seq, d_out)")
        return y

    def chunks(self, module: nn.Module, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the outputs chunk by chunk."""
        outputs, state = [], None
        for part in x.split(list(sizes), dim=1):
            y, state = self.adapter.chunk(module, part, state)
            if y.ndim != 3 or y.shape[:2] != part.shape[:2]:
                raise ValueError(f"a chunk {tuple(part.shape)} gives {tuple(y.shape)}, not (batch, seq, d_out)")
            outputs.append(y)
        return torch.cat(outputs, dim=1)

    def require_stream(self) -> None:
        """Raise NotApplicableError where no protocol for states is known."""
        if not self.adapter.streams:
            raise NotApplicableError(
                "no way to continue from a state is known: no stream, no step, no (y, state) pair, no cache; "
                "an adapter of ten lines teaches it (zoo check --help)"
            )

    @functools.cached_property
    def causal(self) -> bool:
        """Whether later positions do not change earlier outputs."""
        from zoo.check.comparison import miss

        if self.looks_ahead:
            return False
        with torch.no_grad():
            module, x = self.module(), self.draw()
            half = self.seq_len // 2
            other = torch.cat((x[:, :half], self.draw(seed=2)[:, half:]), dim=1)
            return miss(self.whole(module, other)[:, :half], self.whole(module, x)[:, :half]) <= 1

    @functools.cached_property
    def plain(self) -> nn.Module:
        """Return the module as a map from one tensor to one tensor, for the measurements of `zoo.theory`."""
        return Plain(self.module(), self.adapter, self.d_model)

    def script(self, lines: Sequence[str]) -> str:
        """Return the text of a Python file that makes the module and the draws, then runs `lines`."""
        kind = str(self.dtype)
        begin = ["import torch", *self.source, f'module = module.to("{self.device}", {kind}).eval()']
        if self._nudged:
            begin += [
                "# parameters that start constant are moved: at zero or one an error would not show",
                "g = torch.Generator().manual_seed(2)",
                "for p in module.parameters():",
                "    if p.is_floating_point() and p.requires_grad and (p == p.flatten()[0]).all():",
                f"        p.data += {NUDGE} * torch.randn(p.shape, generator=g, dtype=torch.float64).to(p)",
            ]
        begin += [
            f"def draw(*shape, seed=1, dtype={kind}):",
            "    g = torch.Generator().manual_seed(seed)",
            f'    return torch.randn(shape, generator=g, dtype=torch.float64).to("{self.device}", dtype)',
            "",
        ]
        return "\n".join([*begin, *lines]) + "\n"

    def _built(self) -> nn.Module:
        try:
            module = self.make()
        except (Exception, SystemExit) as error:  # a stranger's constructor may raise anything
            raise ValueError(f"{self.name} cannot be built: {describe_error(error)}") from error
        module = module.to(self.device, self.dtype).eval()
        settle(module, self.draw())
        self._nudged = nudge(module)
        return module

    def _adapter(self, given: Adapter | None) -> Adapter:
        require_batch_first(self.original)
        x = self.draw()
        try:
            with undrawn():
                self.adapter = find_adapter(self.module(), x) if given is None else given
                with torch.no_grad():
                    self.whole(self.module(), x)
        except Exception as error:  # a stranger's module may raise anything
            raise ValueError(
                f"{self.name} does not take (batch, seq, d_model) {tuple(x.shape)}: {describe_error(error)}"
            ) from error
        return self.adapter


class Plain(nn.Module):
    """A module through its adapter: one tensor in, one out."""

    def __init__(self, module: nn.Module, adapter: Adapter, d_model: int) -> None:
        super().__init__()
        self.module, self.d_model = module, d_model
        self._adapter = adapter

    def forward(self, x: Tensor) -> Tensor:
        return self._adapter.whole(self.module, x)


def _source(target: nn.Module | Factory, d_model: int, options: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(target, nn.Module):
        yield f"module = ...  # the {type(target).__name__} that was given to zoo.check.check"
        return
    home, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    arguments = written_arguments(target, d_model, options)
    if home and name.isidentifier() and isinstance(target, type):
        yield f"from {home} import {name}"
        yield "torch.manual_seed(0)"
        yield f"module = {name}({arguments})"
    else:
        yield "torch.manual_seed(0)"
        yield f"module = factory({arguments})  # the function that was given to zoo.check.check"


def written_arguments(factory: Factory, d_model: int, options: Mapping[str, Any]) -> str:
    """Return the arguments that make a module of a factory, as Python writes them."""
    width, named = with_width(factory, d_model, options)
    return ", ".join([*map(repr, width), *(f"{key}={value!r}" for key, value in named.items())])


@contextmanager
def undrawn() -> Iterator[None]:
    """Run with torch's global generator at seed 0 and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
