"""Turn a user's class, function or data into a task."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tasks.base import Task
from tasks.yours.files import Data
from tasks.yours.function import generated
from zoo.errors import UsageError
from zoo.targets import short


@functools.cache
def adopt(target: str, found: Any) -> type[Task]:
    """Return the task of a target or a path.

    Args:
        target: the target or the path as text.
        found: its object: a subclass of `Task`, a function `sample(rng, n)`, or an absolute path to data.

    Raises:
        UsageError: any other object, a function that cannot be a task.
    """
    name = short(target)
    if isinstance(found, Path):
        about = {"__module__": Data.__module__, "__doc__": Data.__doc__}
        return type(name, (Data,), {**about, "path": found, "name": name, "source": target})
    if isinstance(found, type) and issubclass(found, Task):
        if not hasattr(found, "name"):
            found.name = name
        return found
    if isinstance(found, type) or not callable(found):
        raise UsageError(f"{target} must be a subclass of tasks.Task or a function sample(rng, n)")
    return generated(found, name, target)
