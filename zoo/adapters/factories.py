"""Build foreign modules: the signature of a class or function, its width argument, lazy layers, constant parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_overloads

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from zoo.adapters.protocols import find_adapter

Factory = Callable[..., Any]

NUDGE = 0.1
"""Noise on parameters that start constant (biases, norms, closed gates): at zero or one an error would not show."""


def signature_of(factory: Factory) -> inspect.Signature:
    """Return the signature of a class or function; of its first overload if it takes only `*args, **kwargs`."""
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
    """Return arguments and keywords that make a module.

    d_model goes to the parameter of that name, or to the first positional one unless an option already sets it.
    """
    parameters = signature_of(factory).parameters
    first = next(iter(parameters.values()), None)
    named = parameters.get("d_model")
    if named is not None and named.kind is not named.POSITIONAL_ONLY:
        return (), {"d_model": d_model, **options}
    takes = (
        first is not None and first.name not in options and first.kind not in (first.KEYWORD_ONLY, first.VAR_KEYWORD)
    )
    return (d_model,) if takes else (), dict(options)


def settle(module: nn.Module, x: Tensor) -> None:
    """Run a module of lazy layers once, so that its parameters have shapes."""
    if any(is_lazy(p) for p in module.parameters()):
        with torch.no_grad():
            find_adapter(module, x).whole(module, x)


def nudge(module: nn.Module) -> None:
    """Add noise to the parameters whose numbers are all equal."""
    generator = torch.Generator().manual_seed(2)
    for p in module.parameters():
        if p.is_floating_point() and p.requires_grad and p.numel() and bool((p == p.flatten()[0]).all()):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64, device="cpu")
            p.data += NUDGE * noise.to(p)


def require_batch_first(module: nn.Module) -> None:
    """Raise ValueError for a module that reads (seq, batch, d_model), as torch.nn.LSTM does by default."""
    if getattr(module, "batch_first", True) is False:
        raise ValueError(
            f"{type(module).__name__} reads (seq, batch, d_model): build it with batch_first=True (--mixer.batch_first "
            "true, for zoo check --option batch_first=true)"
        )
