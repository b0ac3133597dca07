"""The checker behind zoo's shape and type annotations while the tests run: jaxtyping and beartype, with a memory.

Whether a call fits a signature follows from the types of its arguments and of its result, from the shapes and dtypes of
their arrays and from numbers, not from what the arrays hold. Calls of one outline are checked once.
"""

from __future__ import annotations

import functools
import inspect
import types
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
        whole = functools.cache(lambda: _decorate(decorated, typechecker=typechecker))
        outcome: list[Any] = []
        result_alone = functools.cache(lambda: _decorate(_returning(outcome, decorated), typechecker=typechecker))

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
            result = whole()(*args, **kwargs) if known is None else decorated(*args, **kwargs)
            returned = outline(result)
            if known is None:
                passed[given] = {returned}
            elif returned not in known:
                outcome.append(result)
                result_alone()(*args, **kwargs)
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
