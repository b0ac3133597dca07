"""Targets: import user-defined classes by `package.module:Class` or `path/file.py:Class`. Standard library only."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from zoo.errors import UsageError, unknown
from zoo.extras import find_module

FORMS = "package.module:Class or path/file.py:Class"
MOST_NAMES = 24
"""Maximum number of a module's names that a message lists."""


def is_target(name: object) -> bool:
    """Return whether a name has the form of a target; imports nothing."""
    return isinstance(name, str) and re.fullmatch(r"([\w.]+|.+\.py):[^\W\d]\w*", name) is not None


def expanded(path: str | Path) -> Path:
    """Return a path with ~ replaced by the home folder.

    Raises:
        UsageError: ~NAME of an unknown user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{path}: there is no home folder of {Path(path).parts[0]}") from None


def absolute(target: str) -> str:
    """Make the file path of a target absolute, so that it does not depend on the current folder; import nothing."""
    place, colon, name = target.rpartition(":")
    return f"{expanded(place).absolute()}{colon}{name}" if place.endswith(".py") else target


def load(target: str, suits: Callable[[Any], bool] = callable) -> Any:
    """Import and return the object that `target` names. A file runs once, and again after it has changed.

    >>> load("collections:OrderedDict")
    <class 'collections.OrderedDict'>

    Args:
        target: `package.module:Class` or `path/file.py:Class`; functions and instances work too. Packages are also
            searched in the current folder.
        suits: selects the objects of the module that a message about an unknown name lists.

    Raises:
        UsageError: no such module, file or name, or an import that fails; one line.
    """
    place, colon, name = absolute(target).rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{target!r} is not a target: give {FORMS}")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    if hasattr(module, name):
        return getattr(module, name)
    valid = [key for key, value in vars(module).items() if not key.startswith("_") and suits(value)]
    own = [
        key for key in valid if f"{getattr(vars(module)[key], '__module__', None)}.".startswith(f"{module.__name__}.")
    ]
    raise UsageError(unknown(f"name in {place}", name, own or valid, most=MOST_NAMES))


def _from_package(place: str) -> ModuleType:
    if not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"{place} is not the dotted name of a module; give {FORMS}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:  # installed commands do not search it by default
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = find_module(place)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    if found is None:
        raise UsageError(f"there is no module {place} to import; give {FORMS}")
    return found


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: put {path.name} there, or give {FORMS}")
    stat = path.stat()
    return _run(path, stat.st_mtime_ns, stat.st_size)


def _module_name(path: Path) -> str:
    import hashlib

    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


@functools.cache
def _run(path: Path, _changed: int, _size: int) -> ModuleType:
    import traceback  # slow to import, and not needed for --help

    # Registered in sys.modules, so that pickle finds its classes, under a name unique to this file.
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert isinstance(spec.loader, SourceFileLoader)
    module = importlib.util.module_from_spec(spec)
    # The file may import its neighbours; its folder is last in the path, so that they shadow no package.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        # Compiled here, because cached bytecode is checked by whole seconds and size: a file saved twice in a second
        # would run in its old version.
        exec(spec.loader.source_to_code(path.read_bytes(), str(path)), vars(module))
    except (Exception, SystemExit) as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" in line {lines[-1]}" if lines else ""
        raise UsageError(f"{path} cannot be run{where}: {type(error).__name__}: {error}") from error
    return module


def target_of(cls: type) -> str:
    """Return the target of a class.

    >>> from collections import OrderedDict
    >>> target_of(OrderedDict)
    'collections:OrderedDict'
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    of_file = file is not None and cls.__module__ == _module_name(Path(file))
    return f"{file if of_file else cls.__module__}:{cls.__qualname__}"


def short(name: Any) -> Any:
    """Shorten a name for tables, plots and folders: a target to file.Class, a path to its stem; others are unchanged.

    >>> short("some/where/file.py:Class"), short("torch.nn:LSTM"), short("some/where/data.npz"), short("lstm")
    ('file.Class', 'nn.LSTM', 'data', 'lstm')
    """
    if not is_target(name):
        return Path(name).stem if isinstance(name, str) and "/" in name else name
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).stem if place.endswith('.py') else place.rpartition('.')[2]}.{attribute}"


def label(name: str) -> str:
    """Return a name without dots, as key of a hybrid's member: a target's class name; others are unchanged."""
    return name.rpartition(":")[2]
