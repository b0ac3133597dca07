"""Modules in general: their options, their initialisation, weight decay, copies without storage."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class Configured(nn.Module):
    """A module that knows the options it was built from.

    `options` holds the arguments of the constructor, defaults too, as far as they are plain data: numbers, strings,
    None, and lists, tuples and mappings of these. The module's repr shows them; an attribute of the same name takes
    precedence, since it holds the resolved value. `objects` names the other arguments that are not defaults.
    """

    options: dict[str, Any]
    objects: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _remembering(cls.__init__)

    def extra_repr(self) -> str:
        resolved = {name: getattr(self, name, value) for name, value in self.options.items()}
        plain = {name: found if _is_plain(found) else self.options[name] for name, found in resolved.items()}
        return ", ".join(f"{name}={value!r}" for name, value in plain.items())


def _remembering(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    keywords = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
    defaults = {p.name: p.default for p in signature.parameters.values()}

    @functools.wraps(init)
    def remember(self: Configured, *args: Any, **kwargs: Any) -> None:
        if "options" not in vars(self):  # a subclass was called first
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            named = dict(list(given.arguments.items())[1:])
            named |= named.pop(keywords, {})
            vars(self)["options"] = {k: copy.deepcopy(v) for k, v in named.items() if _is_plain(v)}
            vars(self)["objects"] = tuple(k for k, v in named.items() if not _is_plain(v) and v is not defaults.get(k))
        init(self, *args, **kwargs)

    return remember


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(v) for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


def reset_submodules(module: nn.Module) -> None:
    """Call `reset_parameters` of all submodules that have it, in the order in which they were added."""
    for child in module.children():
        getattr(child, "reset_parameters", functools.partial(reset_submodules, child))()


def read_weight(linear: nn.Linear) -> Tensor:
    """Return the weight of a linear map that is applied elsewhere, within a kernel or transposed.

    Raises:
        TypeError: a class with a forward of its own, such as a LoRA adapter, of which the weight is only a part.
    """
    if type(linear).forward is not nn.Linear.forward:
        kind = f"{type(linear).__module__}.{type(linear).__name__}"
        raise TypeError(
            f"this mixer reads the weight of a linear map and does not call it, so that {kind} would have no effect: "
            "merge it into the weight, or adapt the other linear maps"
        )
    return linear.weight


def no_weight_decay(module: nn.Module) -> set[str]:
    """Return the names of the parameters below `module` that weight decay must spare.

    All scalars and vectors (biases, norms, skips), and the names that a class lists in `undecayed`; attributes set on
    parameters would vanish in deepcopy.
    """
    return {name for name, parameter in module.named_parameters() if parameter.ndim < 2} | listed(module, "undecayed")


def listed(module: nn.Module, attribute: str) -> set[str]:
    """Return the names of the parameters below `module` that its classes list in an attribute, such as `slow`."""
    return {
        f"{path}.{name}" if path else name
        for path, child in module.named_modules()
        for name in getattr(child, attribute, ())
        if attrgetter(name)(child) is not None
    }


def on_meta(module: M, dtype: torch.dtype | None = None) -> M:
    """Return a copy of `module` whose tensors have shapes and no storage; floating ones take `dtype`."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        empty = torch.empty_like(tensor, dtype=kind, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)
