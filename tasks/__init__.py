"""Sequence tasks: vectorised generators, seeded splits, a cache on disk for slow tasks.

    >>> import numpy as np
    >>> import tasks
    >>> task = tasks.create_task("mqar", vocab_size=256, seq_len=64, n_pairs=4)
    >>> batch = task.sample(np.random.default_rng(0), 2)
    >>> {name: array.shape for name, array in batch.items()}
    {'inputs': (2, 64), 'labels': (2, 64), 'distance': (2, 64), 'pairs': (2, 64)}

Importing the package does not load numpy or torch: the names below are looked up when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import lazy_names

if TYPE_CHECKING:
    from tasks.base import Task
    from tasks.data.cache import materialise
    from tasks.data.splits import sample_split, split_rng
    from tasks.registry import TASKS, create_task, list_tasks, task_class
    from tasks.spec import TaskSpec

__all__ = [
    "TASKS",
    "Task",
    "TaskSpec",
    "create_task",
    "list_tasks",
    "materialise",
    "sample_split",
    "split_rng",
    "task_class",
]

_HOMES = {
    "tasks.base": "Task",
    "tasks.data.cache": "materialise",
    "tasks.registry": "TASKS create_task list_tasks task_class",
    "tasks.spec": "TaskSpec",
    "tasks.data.splits": "sample_split split_rng",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
