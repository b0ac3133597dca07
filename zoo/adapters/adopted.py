"""`adopt`: use any torch.nn.Module that maps (batch, seq, d_model) to the same shape as a mixer."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.adapters.factories import (
    WIDTHS,
    built_with,
    nudge,
    require_batch_first,
    settle,
    signature_of,
    widths_of,
    with_width,
)
from zoo.adapters.protocols import Adapter, Forward, arguments_of, find_adapter, first_tensor
from zoo.adapters.states import Carried, Part, parts_of, run
from zoo.contract import SequenceMixer
from zoo.errors import UsageError, raised_at
from zoo.ops.precision import Device, DType
from zoo.targets import short

TRIALS = 64, 32, 8
"""Lengths of the trial sequence; the first one that the module accepts is used."""
CLOSE = 1e-6, 1e-4
"""Allowed error of chunked outputs, relative to the largest output: in float64, and for modules without float64."""


class Adopted(SequenceMixer):
    """A foreign module as a mixer, without a known interaction rank.

    It streams if `zoo.adapters.protocols` knows its protocol and chunks give the outputs of the whole sequence.
    Otherwise it maps whole sequences only. After a first chunk we do not compute the module's state, which `forward`
    does not need. The state then holds the chunk itself, which is processed again if a second chunk follows.

    Rows of different lengths are padded with zeros on the right, so the module must be causal. If its `forward` has the
    argument `lengths`, it receives them. Such rows cannot be continued.

    `adopt` makes a subclass for each class, with the signature and the docstring of that class.

    Args:
        d_model: passed to the width parameter of the class (see `with_width`), or to its first positional one.
        **options: options of the class.

    Raises:
        ValueError: a module that cannot be built, or does not map (batch, seq, d_model) to the same shape.
    """

    made: ClassVar[type[nn.Module]]
    name: ClassVar[str]

    def __init__(self, d_model: int, **options: Any) -> None:
        super().__init__(d_model)
        options = {name: value for name, value in options.items() if value is not None or name not in WIDTHS}
        with _in_one_line(f"{short(self.name)} cannot be built", built_with(self.made, options)):
            arguments, options = with_width(self.made, d_model, options)
            self.module = self._build(arguments, options)
            require_batch_first(self.module)
        self._takes_lengths = "lengths" in arguments_of(self.module)
        self._try(arguments, options)

    def __reduce__(self) -> Any:
        # This class was made at run time, so pickle must make it again from the foreign class.
        return _blank, (self.name, self.made), self.__dict__

    def reset_parameters(self) -> None:
        # Parents last, because they may reset their children in another way.
        for module in reversed([*self.module.modules()]):
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Carried:
        past = torch.empty(batch_size, 0, 0, dtype=dtype, device=device)
        return Carried((past, *(part.empty(batch_size, dtype, device) for part in self._parts)))

    def mix(self, x: Tensor, state: Carried, lengths: Tensor | None) -> tuple[Tensor, Carried]:
        past = state.past
        if past.shape[1] and not past.shape[2]:
            why = self._why_whole or "these had rows of different lengths"
            raise ValueError(
                f"{short(self.name)} maps whole sequences only ({why}) and cannot continue from a state: to stream, "
                "write it as a zoo.SequenceMixer"
            )
        if past.shape[1] or state.outline is not None:
            theirs = state.open(self._parts)
            if past.shape[1]:  # the gradient of a detached state ends here
                with torch.set_grad_enabled(torch.is_grad_enabled() and past.requires_grad):
                    _, theirs = run(self._adapter, self.module, past)
            y, theirs = run(self._adapter, self.module, x, theirs)
            return self._checked(y, x), self._carried(theirs, x, lengths)
        if x.is_meta:  # the shape is known, and many modules cannot run on meta tensors
            y = torch.empty_like(x)
        elif self._takes_lengths and lengths is not None:
            y = first_tensor(self.module(x, lengths=lengths))
        else:
            y = self._adapter.whole(self.module, x)
        return self._checked(y, x), self._carried(None, x, lengths)

    def _carried(self, theirs: Any, x: Tensor, lengths: Tensor | None) -> Carried:
        """Return the state after x: a marker if it cannot be continued, the module's state, or x to process again."""
        if self.whole_only or lengths is not None:
            past = x.new_empty(x.shape[0], x.shape[1], 0)
        elif theirs is not None:
            return Carried.close(theirs, self._parts, x)
        elif x.is_meta:
            past = x[:, :0]
        else:  # a copy, since the caller may reuse the chunk's memory
            past = x.clone()
            if torch.is_grad_enabled() and not x.requires_grad:
                past.requires_grad_()
        # Meta tensors hold no data; return states of the right shape.
        after = x.shape[1] if x.is_meta else None
        return Carried((past, *(part.empty(len(x), x.dtype, x.device, after) for part in self._parts)))

    def _checked(self, y: Tensor, x: Tensor) -> Tensor:
        if y.shape != x.shape:
            raise ValueError(f"{short(self.name)} maps {tuple(x.shape)} to {tuple(y.shape)}, not to the same shape")
        return y

    def _build(self, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> nn.Module:
        try:
            return self.made(*arguments, **options)
        except (RuntimeError, NotImplementedError):
            if torch.get_default_device().type != "meta":
                raise
        with torch.device("cpu"):  # the constructor reads values, which meta tensors lack
            return self.made(*arguments, **options)

    def _try(self, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Find the module's adapter and whether it streams, by trial runs."""
        self._adapter: Adapter = Forward()
        self._parts: tuple[Part, ...] = ()
        on_meta = torch.get_default_device().type == "meta"  # then the trials need a second module with real weights
        device = torch.device("cpu") if on_meta else torch.get_default_device()
        odd = [name for name in widths_of(self.made) if options.get(name, self.d_model) != self.d_model]
        hint = f"; {odd[0]}={options[odd[0]]}, but d_model={self.d_model} is the width of its input" if odd else ""
        with (
            device,
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            _in_one_line(f"{short(self.name)} cannot be run", hint),
        ):
            module = self.made(*arguments, **options) if on_meta else self.module
            training = module.training
            numbers = torch.randn(3, TRIALS[0], self.d_model, generator=torch.Generator().manual_seed(0), device="cpu")
            x = numbers.to(next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0)))
            module.eval()
            if on_meta:
                settle(self.module, x.to("meta"))
            x, whole = self._run_whole(module, x)
            self._why_whole = self._try_streaming(module, x, whole)
            self.whole_only = bool(self._why_whole)
            module.train(training)

    def _run_whole(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Find the adapter; return x cut to the first length of `TRIALS` that the module accepts, and the outputs."""
        first: Exception | None = None
        for n in TRIALS:
            part = x[:, :n]
            self._adapter = find_adapter(module, part)
            try:
                return part, self._checked(self._adapter.whole(module, part), part)
            except Exception as error:  # noqa: BLE001 - a foreign module may raise anything
                first = first or error
        assert first is not None
        raise first

    def _try_streaming(self, module: nn.Module, x: Tensor, whole: Tensor) -> str:
        """Stream x and record the parts of the state; return why the module cannot stream, or an empty string."""
        if not self._adapter.streams:
            return "it has no known stream, step, state or cache"
        cut, close, reason = x.shape[1] // 2, CLOSE[1], ""
        with suppress(Exception):  # float64 reveals a lost state even if its contribution is small
            other = copy.deepcopy(module).double()
            nudge(other)
            whole, close = self._adapter.whole(other, x.double()), CLOSE[0]
            module, x = other, x.double()
        for longest in dict.fromkeys((self._adapter.longest, 1)):  # some caches can only be continued by one position
            self._adapter.longest = longest
            try:
                parts = parts_of(self._adapter, module, x)
                y, state = run(self._adapter, module, x[:, :cut])
                rest, _ = run(self._adapter, module, x[:, cut:], Carried.close(state, parts, x).open(parts))
                off = float((torch.cat((y, rest), 1) - whole).abs().max() / whole.abs().max())
            except Exception as error:  # noqa: BLE001 - a foreign module may raise anything
                reason = " ".join(str(error).split())
                continue
            if off <= close:
                self._parts = parts
                return ""
            reason = f"chunks differ from the whole sequence by {off:.2g} of the largest output"
        return reason


@functools.cache
def adopt(name: str, found: Any) -> type[SequenceMixer]:
    """Return the class as a mixer class; a `SequenceMixer` is returned unchanged.

    Args:
        name: target of the class.
        found: the class.

    Raises:
        UsageError: `found` is not a subclass of torch.nn.Module.
    """
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise UsageError(
            f"{name} is {kind}: a mixer must be a subclass of torch.nn.Module that maps (batch, seq, d_model) to the "
            "same shape"
        )
    if issubclass(found, SequenceMixer):
        return found

    def build(self: Adopted, d_model: int, **options: Any) -> None:
        Adopted.__init__(self, d_model, **options)

    build.__doc__ = found.__init__.__doc__
    signature = _signature(found)
    content = {"__init__": build, "__doc__": found.__doc__, "__signature__": signature, "made": found, "name": name}
    return type(found.__name__, (Adopted,), content)


def _signature(found: type[nn.Module]) -> inspect.Signature:
    """Return the signature of the mixer class: d_model, then the named options of the class."""
    given, widths = signature_of(found), widths_of(found)
    first = list(given.parameters)[:1]
    skipped = {"d_model"} if widths else set(first)
    width = inspect.Parameter("d_model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=int)
    options = [
        each.replace(kind=each.KEYWORD_ONLY, annotation=int | None, default=None)
        if each.name in widths
        else each.replace(kind=each.KEYWORD_ONLY, annotation=Any if each.annotation is each.empty else each.annotation)
        for each in given.parameters.values()
        if each.name not in skipped and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return inspect.Signature([width, *options])


def _blank(name: str, made: type[nn.Module]) -> SequenceMixer:
    cls = adopt(name, made)
    return cls.__new__(cls)


@contextmanager
def _in_one_line(what: str, hint: str = "") -> Iterator[None]:
    """Turn any exception of a foreign module into a one-line ValueError."""
    try:
        yield
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{what}: {kind}{' '.join(str(error).split())}{raised_at(error)}{hint}") from error
