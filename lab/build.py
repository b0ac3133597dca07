"""Build the task and the model of a complete configuration, to train it, count its parameters or measure a run."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tasks.registry import TASKS, create_task, list_tasks
from zoo.errors import UsageError

if TYPE_CHECKING:
    from tasks.base import Task
    from zoo.backbone import Backbone
    from zoo.contract import SequenceMixer

OF_THE_TASK = ("vocab_size", "d_input", "n_outputs", "loss", "facts", "perplexity")
"""Fields of a task's spec that become arguments of the model or of its training module."""


def build(config: Mapping[str, Any]) -> tuple[Task, Backbone]:
    """Build the task and the model of a configuration; torch's global generator draws the weights.

    Args:
        config: complete configuration, nested as in config.yaml.

    Raises:
        ValueError: options that the task or the model rejects.
    """
    from zoo.backbone import Backbone

    task = build_task(config)
    return task, Backbone(**model_options(config, task, Backbone))


def find_leak(model: Backbone, seq_len: int) -> str:
    """Describe how a mixer from outside the library reads later positions; empty if none does.

    Each such mixer runs the causality check of `zoo.check`, because two of one class may differ in options.

    Args:
        model: the model to be trained.
        seq_len: sequence length of its task.

    Raises:
        UsageError: outputs that are not finite, so that comparing them shows nothing.
    """
    import torch

    from zoo.check import check
    from zoo.check.calls import LONGEST
    from zoo.contract import SequenceMixer

    for mixer in model.modules():
        if not isinstance(mixer, SequenceMixer) or is_ours(type(mixer)):
            continue
        name = type(mixer).__name__
        n = max(8, min(LONGEST, seq_len))
        try:
            report = check(mixer, d_model=mixer.d_model, only=["causality"], seq_len=n)
        except ValueError as error:
            return f"{name} cannot be checked for causality: {error}"
        for finding in report.failed:
            x = torch.randn(2, n, mixer.d_model, generator=torch.Generator().manual_seed(0))
            with torch.no_grad():
                if not copy.deepcopy(mixer).eval()(x).isfinite().all():
                    raise UsageError(
                        f"{name} is not finite: it maps finite inputs to nan or infinity before any training"
                    )
            return f"{name} reads later positions: {finding.detail.partition('; expected')[0]}"
    return ""


def is_ours(kind: type[SequenceMixer]) -> bool:
    """Return whether a mixer class belongs to the library, whose tests check that it is causal."""
    from zoo.adapters.adopted import Adopted

    return kind.__module__.startswith("zoo.") and not issubclass(kind, Adopted)


def build_task(config: Mapping[str, Any]) -> Task:
    """Build only the task; for a mixture, in the longest of the trained shapes.

    Raises:
        ValueError: options that the task rejects.
    """
    options, mixture = task_options(config), config["task"].get("mixture")
    name = options.pop("name")
    if mixture is None:
        return create_task(name, **options)
    from tasks.data.mixture import create_segments, longest

    return longest(create_segments(TASKS[name], options, mixture))


def trivial_guess(config: Mapping[str, Any], guess: str) -> float | None:
    """Return the score of a trivial guess on a configuration's task, or None if it is unknown.

    It is unknown for mixtures, your own tasks, missing data files, and tasks that do not define the guess.

    Args:
        config: complete configuration, nested as in config.yaml.
        guess: name of the task's method, "guess_among_read" or "guess_without_order".
    """
    task = config.get("task", {})
    if task.get("name") not in list_tasks() or task.get("mixture"):
        return None
    return _trivial_guess(json.dumps(task, sort_keys=True, default=str), guess)


@cache
def _trivial_guess(task: str, guess: str) -> float | None:
    try:
        return getattr(build_task({"task": json.loads(task)}), guess)()
    except (ValueError, OSError):  # an option that no longer exists, a missing file
        return None


def task_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's name and its own options, without the data options of the same configuration group."""
    name = config["task"]["name"]
    return {"name": name, **declared(config["task"], TASKS[name])}


def model_options(config: Mapping[str, Any], task: Task, *targets: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a model, or of its training module, from the configuration and the task's spec."""
    spec = {name: getattr(task.spec, name) for name in OF_THE_TASK}
    return declared(config, *targets) | declared(spec, *targets)


def declared(options: Mapping[str, Any], *targets: Callable[..., Any]) -> dict[str, Any]:
    """Return the options that are arguments of one of the targets."""
    names = {name for target in targets for name in inspect.signature(target).parameters}
    return {name: value for name, value in options.items() if name in names}
