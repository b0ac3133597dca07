"""A cached checker of zoo's shape and type annotations for the tests: jaxtyping and beartype, once per call signature.

Whether a call fits its annotations depends on the types of arguments and result, on shapes, dtypes and numbers, but
not on the entries of arrays. `outline` collects these; calls with a known outline are not checked again.
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
"""Cache of `_how` by type: a test run asks a million times."""


def install() -> None:
    """Check every function and class of `zoo` that is imported from now on."""
    jaxtyping.install_import_hook("zoo", f"{__name__}.checked")
    jaxtyping.jaxtyped = jaxtyped  # the import hook decorates functions with this name


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, with `Self` read as Any: beartype allows `Self` only in decorated classes, and sees bare functions."""
    hints = function.__annotations__
    function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints.items()}
    return beartype(function)


def jaxtyped(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """jaxtyping's decorator with a cache of outlines; applied at the first call, as most functions are never called."""

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
    """Everything an annotation can check about a value: type, shape, dtype, number; recursive for containers."""
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
    """A function with the same signature that pops its result off `outcome`."""

    def returning(*args: Any, **kwargs: Any) -> Any:
        return outcome.pop()

    there = types.FunctionType(returning.__code__, function.__globals__, closure=returning.__closure__)
    return functools.update_wrapper(there, function)
