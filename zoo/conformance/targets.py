"""Find what TARGET names: a registered mixer, `package.module:Class`, or `path/file.py:Class`."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from zoo.conformance.subject import Factory, positional
from zoo.naming import UsageError, find_module, unknown
from zoo.registry import MIXERS, create_mixer, mixer_class


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
    found = find_class(target)
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
    return Target(target, found, found, options, (*begin, "torch.manual_seed(0)", _call(name, found, d_model, options)))


def find_class(target: str) -> Any:
    """Find what `package.module:Class` or `path/file.py:Class` names.

    Raises:
        UsageError: no such module or file, no such class in it.
    """
    place, colon, name = target.rpartition(":")
    if not colon:
        raise UsageError(f"{target} names no class: give package.module:Class, or path/file.py:Class")
    return _attribute(_from_file(Path(place)) if place.endswith(".py") else _from_package(place), name, target)


def _registered(name: str, d_model: int, options: Mapping[str, Any]) -> Target:
    if name not in MIXERS:
        raise UsageError(f"{unknown('mixer', name, MIXERS)}; or give package.module:Class, or path/file.py:Class")
    name = MIXERS.check(name)
    arguments = "".join(f", {key}={value!r}" for key, value in options.items())
    lines = (
        "from zoo import create_mixer",
        "torch.manual_seed(0)",
        f"module = create_mixer({name!r}, {d_model}{arguments})",
    )
    whole = {**MIXERS.entry(name).options, **options}
    return Target(name, functools.partial(create_mixer, name), mixer_class(name), whole, lines)


def _call(name: str, found: Factory, d_model: int, options: Mapping[str, Any]) -> str:
    arguments = [*map(repr, positional(found, d_model, options)), *(f"{k}={v!r}" for k, v in options.items())]
    return f"module = {name}({', '.join(arguments)})"


def _from_package(place: str) -> Any:
    if not place or not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"{place or 'nothing'} is not a module's dotted name; TARGET is package.module:Class")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:  # an installed command does not look where it is run
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = find_module(place)
    except ImportError as error:
        raise UsageError(f"{place} cannot be imported: {error}") from None
    if found is None:
        raise UsageError(f"there is no module {place} to import; TARGET is package.module:Class")
    return found


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}; TARGET is path/file.py:Class")
    # Registered under its name, so that pickle finds the class again.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def _attribute(module: Any, name: str, target: str) -> Any:
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)]
        raise UsageError(unknown(f"class in {target.rpartition(':')[0]}", name, known))
    return getattr(module, name)
