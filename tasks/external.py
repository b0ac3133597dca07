"""Tasks that are not of this project: a class or a function that a user wrote, or a user's data."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tasks.base import Task
from tasks.external_data import Data
from tasks.external_function import generated
from zoo.naming import UsageError
from zoo.targets import is_target, load


def external_task(name: str) -> type[Task]:
    """Return the task that a target or a path names.

    Args:
        name: `package.module:Class`, `/path/file.py:Class`, one of these with a function, or an absolute path of data.

    Raises:
        UsageError: no such module or file, nothing of this name in it, neither a task nor a function.
        ValueError: a function that cannot be a task's.
    """
    if is_target(name):
        return _class_of(load(name), name.rpartition(":")[2], name)
    path = Path(name)
    here = Path.cwd() / path.name  # a run's configuration has the path of another day, or of another machine
    return _class_of(here if here.exists() and not path.exists() else path, path.stem, name)


@functools.cache
def _class_of(found: Any, name: str, source: str) -> type[Task]:
    if isinstance(found, Path):
        about = {"__module__": Data.__module__, "__doc__": Data.__doc__}
        return type(name, (Data,), {**about, "path": found, "name": name, "source": source})
    if isinstance(found, type) and issubclass(found, Task):
        if not hasattr(found, "name"):
            found.name = name
        return found
    if isinstance(found, type) or not callable(found):
        raise UsageError(f"{source} is neither a subclass of tasks.Task nor a function sample(rng, n)")
    return generated(found, name, source)
