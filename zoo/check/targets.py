"""Find what TARGET names: a registered mixer, `package.module:Class`, or `path/file.py:Class`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from zoo.check.adopted import Factory
from zoo.check.subject import written_arguments
from zoo.errors import UsageError
from zoo.registry import MIXERS, create_mixer, mixer_class
from zoo.targets import load


class Target(NamedTuple):
    """Something that makes modules.

    Attributes:
        name: the name that was asked for.
        factory: makes the module from d_model and options.
        options_of: class or function whose signature has the options.
        options: those that were given, and those that the name sets.
        source: Python lines that make `module`.
    """

    name: str
    factory: Factory
    options_of: Factory
    options: Mapping[str, Any]
    source: tuple[str, ...]


def find_target(target: str, d_model: int, options: Mapping[str, Any]) -> Target:
    """Find what `target` names.

    Raises:
        UsageError: no registered mixer, no such module or file, no such class in it.
    """
    place, colon, name = target.rpartition(":")
    if not colon:
        return _registered(target, d_model, options)
    found = load(target, lambda found: isinstance(found, type) and issubclass(found, nn.Module))
    if place.endswith(".py"):
        begin = ("import runpy", f"{name} = runpy.run_path({place!r})[{name!r}]")
    else:
        begin = (f"from {place} import {name}",)
    if isinstance(found, nn.Module):
        return Target(target, lambda: found, lambda: found, {}, (*begin, f"module = {name}"))
    if not callable(found):
        raise UsageError(
            f"{target} is {type(found).__name__}: name a torch.nn.Module class, or a function that makes one"
        )
    made = f"module = {name}({written_arguments(found, d_model, options)})"
    return Target(target, found, found, options, (*begin, "torch.manual_seed(0)", made))


def _registered(name: str, d_model: int, options: Mapping[str, Any]) -> Target:
    name = MIXERS.check(name)
    whole = {**MIXERS.entry(name).options, **options}
    if name in MIXERS.own:
        return find_target(MIXERS.entry(name).home, d_model, whole)
    arguments = "".join(f", {key}={value!r}" for key, value in options.items())
    lines = (
        "from zoo import create_mixer",
        "torch.manual_seed(0)",
        f"module = create_mixer({name!r}, {d_model}{arguments})",
    )
    return Target(name, functools.partial(create_mixer, name), mixer_class(name), whole, lines)
