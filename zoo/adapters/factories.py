"""Build foreign modules: find the signature and width argument, initialise lazy layers, perturb constant parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_overloads

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from zoo.adapters.protocols import find_adapter
from zoo.errors import unknown

Factory = Callable[..., Any]

WIDTHS = (
    *("d_model", "dim", "embed_dim", "embedding_dim", "hidden_dim", "hidden_size", "input_size", "model_dim"),
    *("n_embd", "n_embed"),
)
"""Names of constructor parameters for the width."""
CONFIGS = ("config", "cfg", "configuration", "args")
NUDGE = 0.1
"""Size of the noise on constant parameters (biases, norms, closed gates), which could hide an error at zero or one."""


def signature_of(factory: Factory) -> inspect.Signature:
    """Return the signature of a class or function; of its first overload if it takes only `*args, **kwargs`."""
    for strings in (True, False):
        try:
            found = inspect.signature(factory, eval_str=strings)
        except (TypeError, ValueError):
            return inspect.Signature()
        except Exception:  # noqa: BLE001 - annotations may use names that only type checkers import
            continue
        kinds = {each.kind for each in found.parameters.values()}
        overloads = get_overloads(factory.__init__) if isinstance(factory, type) else ()
        if overloads and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            found = inspect.signature(overloads[0], eval_str=strings)
            return found.replace(parameters=list(found.parameters.values())[1:])
        return found
    return inspect.Signature()


def with_width(factory: Factory, d_model: int, options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and keywords to build a module of width d_model.

    d_model is passed to the parameters in `WIDTHS` that no option sets. Without such parameters it is passed to the
    first positional one, or, if that is a `config` annotated with its class, to this class in the same way.
    """
    if isinstance(factory, type) and factory.__init__ in (nn.Module.__init__, object.__init__):
        return (), dict(options)
    if widths := widths_of(factory):
        return (), {**dict.fromkeys(widths, d_model), **options}
    first = next(iter(signature_of(factory).parameters.values()), None)
    if first is None or first.name in options or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return (), dict(options)
    if _is_config(first) and isinstance(first.annotation, type):
        arguments, named = with_width(first.annotation, d_model, {})
        return (first.annotation(*arguments, **named),), dict(options)
    return (d_model,), dict(options)


def widths_of(factory: Factory) -> list[str]:
    """Return the names of the width parameters of a class or function: only d_model if it has that."""
    parameters = signature_of(factory).parameters.values()
    found = [each.name for each in parameters if each.name in WIDTHS and each.kind is not each.POSITIONAL_ONLY]
    return ["d_model"] if "d_model" in found else found


def _is_config(parameter: inspect.Parameter) -> bool:
    return parameter.name in CONFIGS and parameter.kind is not parameter.VAR_POSITIONAL


def built_with(factory: Factory, given: Collection[str]) -> str:
    """Return a hint why a class could not be built with the given options; empty if there is none.

    Reasons are a config argument, an unknown option, or a missing option without default.
    """
    parameters = [*signature_of(factory).parameters.values()]
    if parameters and _is_config(parameters[0]):
        name = getattr(factory, "__name__", "Mixer")
        example = f"class Mine({name}): def __init__(self, d_model): super().__init__(Config(hidden_size=d_model))"
        return f"; it needs a {parameters[0].name}: write a class that builds it, such as {example}"
    valid = [each.name for each in parameters]
    if parameters and parameters[-1].kind is not parameters[-1].VAR_KEYWORD:
        for name in given:
            if name not in valid:
                return f"; {unknown('option', name, valid)}"
    for each in parameters if widths_of(factory) else parameters[1:]:
        needed = each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        if needed and each.name not in {*WIDTHS, *given}:
            return f"; give --option {each.name}=VALUE to zoo check, or --mixer.{each.name} VALUE to train.py"
    return ""


def settle(module: nn.Module, x: Tensor) -> None:
    """Run a module with lazy layers once, which initialises their parameters."""
    if any(is_lazy(p) for p in module.parameters()):
        with torch.no_grad():
            find_adapter(module, x).whole(module, x)


def nudge(module: nn.Module) -> None:
    """Add noise to constant parameters, those whose entries are all equal."""
    generator = torch.Generator().manual_seed(2)
    for p in module.parameters():
        if p.is_floating_point() and p.requires_grad and p.numel() and bool((p == p.flatten()[0]).all()):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64, device="cpu")
            p.data += NUDGE * noise.to(p)


def require_batch_first(module: nn.Module) -> None:
    """Raise ValueError for a module with input (seq, batch, d_model), the default of torch.nn.LSTM."""
    if getattr(module, "batch_first", True) is False:
        raise ValueError(
            f"{type(module).__name__} expects (seq, batch, d_model): build it with batch_first=True "
            "(train.py: --mixer.batch_first true; zoo check: --option batch_first=true)"
        )
