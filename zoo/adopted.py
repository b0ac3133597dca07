"""Plain modules as mixers: any torch.nn.Module that maps (batch, seq, d_model) to the same."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, get_overloads

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.naming import UsageError
from zoo.targets import short

Factory = Callable[..., Any]
TRIAL = 64
"""Positions of the sequence that a new module is tried on."""


class Adopted(SequenceMixer):
    """A module of another contract. It maps whole sequences; it does not stream, and no law says its rank.

    Rows of several lengths are padded with zeros to the right, and what it gives there is dropped: it must be causal. A
    module whose `forward` takes `lengths` gets them.

    `adopt` makes a subclass for each class, whose signature and docstring are those of that class.

    Args:
        d_model: goes to the parameter of that name, or to the first positional one.
        **options: for the class.

    Raises:
        ValueError: a module that cannot be built, or does not map (batch, seq, d_model) to the same.
    """

    whole_only = True
    made: ClassVar[type[nn.Module]]
    name: ClassVar[str]

    def __init__(self, d_model: int, **options: Any) -> None:
        super().__init__(d_model)
        arguments, options = with_width(self.made, d_model, options)
        with _in_one_line(f"{short(self.name)} cannot be built"):
            self.module = self._build(arguments, options)
            require_batch_first(self.module)
        self._takes_lengths = "lengths" in inspect.signature(self.module.forward).parameters
        if torch.get_default_device().type != "meta":
            self._try()

    def __reduce__(self) -> Any:
        # The class is made at run time: pickle finds it by what it was made of.
        return _blank, (self.name, self.made), self.__dict__

    def rank_law(self, seq_len: int) -> int | None:
        return None

    def reset_parameters(self) -> None:
        for module in self.module.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def empty_state(
        self, batch_size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Nothing but the number of positions that were read, as a shape."""
        return torch.empty(batch_size, 0, 0, dtype=dtype, device=device)

    def mix(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if state.shape[1]:
            raise ValueError(
                f"{short(self.name)} reads whole sequences only and cannot go on from a state: to stream, write it as "
                "a zoo.SequenceMixer"
            )
        y = first_tensor(self.module(x, lengths=lengths) if self._takes_lengths else self.module(x))
        if y.shape != x.shape:
            raise ValueError(f"{short(self.name)} maps {tuple(x.shape)} to {tuple(y.shape)}, not to the same shape")
        return y, x.new_empty(x.shape[0], x.shape[1], 0)

    def _build(self, arguments: tuple[int, ...], options: Mapping[str, Any]) -> nn.Module:
        try:
            return self.made(*arguments, **options)
        except (RuntimeError, NotImplementedError):
            if torch.get_default_device().type != "meta":
                raise
        with torch.device("cpu"):  # a constructor that reads numbers, which tensors without storage have not
            return self.made(*arguments, **options)

    def _try(self) -> None:
        training = self.training
        like = next(self.parameters(), torch.empty(0))
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _in_one_line(f"{short(self.name)} cannot be run"):
            self.eval()(torch.zeros(1, TRIAL, self.d_model, dtype=like.dtype, device=like.device))
        self.train(training)


@functools.cache
def adopt(name: str, found: Any) -> type[SequenceMixer]:
    """Return the class as a mixer: itself where it is one.

    Args:
        name: the target that names it.
        found: a class.

    Raises:
        UsageError: anything but a class of torch.nn.Module.
    """
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise UsageError(f"{name} is {kind}: a mixer is a class of torch.nn.Module, (batch, seq, d_model) to the same")
    if issubclass(found, SequenceMixer):
        return found

    def build(self: Adopted, d_model: int, **options: Any) -> None:
        Adopted.__init__(self, d_model, **options)

    build.__doc__ = found.__init__.__doc__
    signature = _signature(found)
    content = {"__init__": build, "__doc__": found.__doc__, "__signature__": signature, "made": found, "name": name}
    return type(found.__name__, (Adopted,), content)


def _signature(found: type[nn.Module]) -> inspect.Signature:
    """d_model, then the class's named options."""
    given = signature_of(found)
    arguments, named = with_width(found, 1, {})
    skipped = set(named) | set(list(given.parameters)[: len(arguments)])
    width = inspect.Parameter("d_model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=int)
    options = [
        each.replace(kind=each.KEYWORD_ONLY, annotation=Any if each.annotation is each.empty else each.annotation)
        for each in given.parameters.values()
        if each.name not in skipped and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return inspect.Signature([width, *options])


def signature_of(factory: Factory) -> inspect.Signature:
    """Return the parameters of a class or function; of `*args, **kwargs` those of its first overload, if it has any."""
    for strings in (True, False):
        try:
            found = inspect.signature(factory, eval_str=strings)
        except (TypeError, ValueError):
            return inspect.Signature()
        except Exception:  # noqa: BLE001 - annotations of names that are only imported for type checkers
            continue
        kinds = {each.kind for each in found.parameters.values()}
        overloads = get_overloads(factory.__init__) if isinstance(factory, type) else ()
        if overloads and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            found = inspect.signature(overloads[0], eval_str=strings)
            return found.replace(parameters=list(found.parameters.values())[1:])
        return found
    return inspect.Signature()


def with_width(factory: Factory, d_model: int, options: Mapping[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return arguments and keywords that make a module: d_model goes to the parameter of that name, or the first one.

    An option of the parameter's name wins.
    """
    parameters = signature_of(factory).parameters
    first = next(iter(parameters.values()), None)
    named = parameters.get("d_model")
    if (
        named is not None
        and named.kind is not named.POSITIONAL_ONLY
        and (named is not first or named.kind is named.KEYWORD_ONLY)
    ):
        return (), {"d_model": d_model, **options}
    takes = (
        first is not None and first.name not in options and first.kind not in (first.KEYWORD_ONLY, first.VAR_KEYWORD)
    )
    return (d_model,) if takes else (), dict(options)


def require_batch_first(module: nn.Module) -> None:
    """Raise ValueError for a module that reads (seq, batch, d_model), as torch.nn.LSTM does by default."""
    if getattr(module, "batch_first", True) is False:
        raise ValueError(
            f"{type(module).__name__} reads (seq, batch, d_model): build it with batch_first=True (--mixer.batch_first "
            "true, for zoo check --option batch_first=true)"
        )


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


def _blank(name: str, made: type[nn.Module]) -> SequenceMixer:
    cls = adopt(name, made)
    return cls.__new__(cls)


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    """Turn whatever a stranger's module raises into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(
            f"{what}: {said if isinstance(error, ValueError) else f'{type(error).__name__}: {said}'}"
        ) from error
