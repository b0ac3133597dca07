"""Functions for any `nn.Module`: recorded constructor options, initialisation, weight decay, copies on meta."""

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
    """A module that records its constructor's arguments.

    `options` holds the arguments, including defaults, that are plain data: numbers, strings, None, and lists, tuples
    and mappings of these. `objects` lists the names of the other arguments, unless they are defaults. The module's repr
    shows the options. If an attribute has the name of an option, the repr shows its value, since that is resolved.
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
        if "options" not in vars(self):  # the outermost constructor runs first, then those of its base classes
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
    """Call `reset_parameters` of all submodules that have it, in order of registration."""
    for child in module.children():
        getattr(child, "reset_parameters", functools.partial(reset_submodules, child))()


def read_weight(linear: nn.Linear) -> Tensor:
    """Return the weight of a linear layer that is not called, because a kernel applies it or it is transposed.

    Raises:
        TypeError: the layer overrides `forward`, as a LoRA adapter does, so that the weight is not the whole map.
    """
    if type(linear).forward is not nn.Linear.forward:
        kind = f"{type(linear).__module__}.{type(linear).__name__}"
        raise TypeError(
            f"this mixer uses the weight of a linear layer without calling the layer, so {kind} would have no effect: "
            "merge it into the weight, or adapt the other linear layers"
        )
    return linear.weight


def no_weight_decay(module: nn.Module) -> set[str]:
    """Return the names of the parameters of `module` without weight decay.

    These are all scalars and vectors (biases, norms, skips), and the parameters that a class lists in `undecayed`. We
    do not mark the parameters themselves, because deepcopy drops their attributes.
    """
    return {name for name, parameter in module.named_parameters() if parameter.ndim < 2} | listed(module, "undecayed")


def listed(module: nn.Module, attribute: str) -> set[str]:
    """Return the names of the parameters that the classes in `module` list in a class attribute, such as `slow`."""
    return {
        f"{path}.{name}" if path else name
        for path, child in module.named_modules()
        for name in getattr(child, attribute, ())
        if attrgetter(name)(child) is not None
    }


def on_meta(module: M, dtype: torch.dtype | None = None) -> M:
    """Copy `module` to the meta device, without storage; floating-point tensors get `dtype`, if given."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        empty = torch.empty_like(tensor, dtype=kind, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)
