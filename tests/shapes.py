"""The checker behind zoo's shape and type annotations while the tests run: jaxtyping and beartype, with a memory.

Whether a call fits a signature follows from the types of its arguments and of its result, from the shapes and dtypes of
their arrays and from numbers, not from what the arrays hold. Calls of one outline are checked once. Where a signature
gives sizes by name only, as most do, it matters which numbers are equal, not which they are: of such calls one is
checked for each pattern.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Hashable
from typing import Any, Self

import jaxtyping
import numpy as np
import torch
from beartype import beartype

_decorate = jaxtyping.jaxtyped
_KINDS: dict[type, str] = {}
"""How values of a type are outlined, as it is first met: this is asked a million times in a run."""


def install() -> None:
    """Have every function and class of `zoo` checked that is imported from now on."""
    jaxtyping.install_import_hook("zoo", f"{__name__}.checked")
    jaxtyping.jaxtyped = jaxtyped  # the name that the hook writes above each of them


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, except that `Self` passes: it is refused outside a decorated class, and functions come here singly."""
    hints = function.__annotations__
    function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints.items()}
    return beartype(function)


def jaxtyped(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """jaxtyping's decorator, which a function remembers calls by; made at its first call, because most have none."""

    def decorate(decorated: Any) -> Any:
        if not inspect.isfunction(decorated):
            return _decorate(decorated, typechecker=typechecker)
        passed: dict[Hashable, set[Hashable]] = {}
        patterns: set[Hashable] = set()
        whole = functools.cache(lambda: _decorate(decorated, typechecker=typechecker))
        outcome: list[Any] = []
        result_alone = functools.cache(lambda: _decorate(_returning(outcome, decorated), typechecker=typechecker))
        pattern = functools.cache(lambda: _same if _names_numbers(decorated) else _pattern)

        @functools.wraps(decorated)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if jaxtyping.config.jaxtyping_disable:
                return decorated(*args, **kwargs)
            given = *[outline(each) for each in args], outline(kwargs) if kwargs else None
            try:
                known = passed.get(given)
            except TypeError:  # symbolic sizes have no hash
                return whole()(*args, **kwargs)
            if known is None and (arguments := pattern()(given)) not in patterns:
                result = whole()(*args, **kwargs)
                returned = outline(result)
                patterns.update((arguments, pattern()((given, returned))))
                passed[given] = {returned}
                return result
            result = decorated(*args, **kwargs)
            returned = outline(result)
            if known is None:
                known = passed[given] = set()
            if returned not in known:
                if (both := pattern()((given, returned))) not in patterns:
                    outcome.append(result)
                    result_alone()(*args, **kwargs)
                    patterns.add(both)
                known.add(returned)
            return result

        return call

    return decorate


def outline(value: Any) -> Hashable:
    """All of a value that an annotation can ask for; of a container, of what it holds."""
    kind = type(value)
    how = _KINDS.get(kind) or _KINDS.setdefault(kind, _how(kind))
    if how == "array":
        return kind, value.shape, value.dtype
    if how == "plain":
        return kind, value
    if how == "sequence":
        return kind, *[outline(each) for each in value]
    if how == "mapping":
        return kind, *[(key, outline(each)) for key, each in value.items()]
    return kind


def _same(outlined: Hashable) -> Hashable:
    return outlined


def _pattern(outlined: Hashable) -> Hashable:
    """An outline in which numbers are told by where each came first: all that an annotation by names can ask for.

    Zero and one are kept: sizes of one are broadcast.
    """
    places: dict[int, str] = {}

    def of(each: Any) -> Any:
        if type(each) is int:
            return each if each in (0, 1) else places.setdefault(each, f"number {len(places)}")
        return tuple([of(part) for part in each]) if isinstance(each, tuple) else each

    return of(outlined)


def _names_numbers(function: types.FunctionType) -> bool:
    """Tell whether a signature asks for numbers: sizes that are not named, or one of given values."""
    try:
        hints = list(typing.get_type_hints(function).values())
    except NameError:  # of what is imported for the type checker only
        return True
    while hints:
        hint = hints.pop()
        if typing.get_origin(hint) is typing.Literal:
            return True
        sizes = [size.lstrip("*#?_") for size in str(getattr(hint, "dim_str", "")).split()]
        if not all(size in ("", "...") or size.isidentifier() for size in sizes):
            return True
        hints += [each for each in typing.get_args(hint) if not isinstance(each, list)]
    return False


def _how(kind: type) -> str:
    if issubclass(kind, (torch.Tensor, np.ndarray)):
        return "array"
    if issubclass(kind, (int, str, type, torch.dtype, torch.device, types.NoneType)):
        return "plain"
    if issubclass(kind, (tuple, list)):
        return "sequence"
    return "mapping" if issubclass(kind, dict) else "opaque"


def _returning(outcome: list[Any], function: types.FunctionType) -> Callable[..., Any]:
    """A function of the same signature that returns what lies in `outcome`, and takes it out."""

    def returning(*args: Any, **kwargs: Any) -> Any:
        return outcome.pop()

    there = types.FunctionType(returning.__code__, function.__globals__, closure=returning.__closure__)
    return functools.update_wrapper(there, function)
