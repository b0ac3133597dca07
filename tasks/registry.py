"""The tasks by name. Adding one is a class in a file of its own and a line here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from zoo.naming import Registry, UnknownNameError, unknown

if TYPE_CHECKING:
    from tasks.base import Task

TASKS = Registry(
    "task",
    {
        "mqar": ("tasks.mqar:MQAR", "multi-query associative recall: look up the value of a key seen before"),
        "needle": ("tasks.needle:Needle", "name the one relevant token, a fixed distance back among noise"),
        "ssm_teacher": ("tasks.ssm_teacher:SSMTeacher", "regress a linear time-invariant teacher of span dimension k"),
    },
)


def list_tasks() -> list[str]:
    """The registered names."""
    return list(TASKS)


def task_class(name: str) -> type[Task]:
    """The class registered under `name`.

    Raises:
        UnknownNameError: the name is not registered; the message lists those that are.
    """
    return TASKS[name]


def create_task(name: str, **options: Any) -> Task:
    """Build the task `name` from its constructor's options.

    Raises:
        UnknownNameError: no such task, or no such option of this task.
        ValueError: the options describe a shape that cannot exist.
    """
    cls = task_class(name)
    valid = inspect.signature(cls).parameters
    for option in options:
        if option not in valid:
            raise UnknownNameError(unknown(f"{name} option", option, valid))
    return cls(**options)
