"""A task from your own function `sample(rng, n) -> {"inputs": ..., "labels": ...}`."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tasks.base import Arrays, Task, named
from tasks.data.reading import content_hash
from tasks.data.splits import SHARD_ROWS
from tasks.spec import IGNORED, TaskSpec
from tasks.yours.arrays import conform, measure, require
from zoo.docstrings import arguments, paragraphs
from zoo.errors import UsageError

MEASURED = {
    "vocab_size": "number of tokens; default: as in the first 1,024 examples",
    "n_classes": "number of classes; default: as in the first 1,024 examples",
}
"""Options of every task from a function, besides the function's own options, and their help."""

PROBE_SEED = 0
"""Seed of the examples from which the spec of a function is measured."""


class Generated(Task):
    """Base of tasks from functions; `generated` derives a class for each function."""

    function: ClassVar[Callable[..., Any]]
    own: ClassVar[tuple[str, ...]]
    """The names of the function's options."""

    def __init__(self, **options: Any) -> None:
        given = inspect.signature(type(self)).bind(**options)
        given.apply_defaults()
        for name, value in given.arguments.items():
            measured = name in MEASURED and name not in self.own and value is not None
            setattr(self, name, self._whole(name, value, 1) if measured else value)
        self._spec: TaskSpec | None = None
        probe, again = (self.sample(np.random.default_rng(PROBE_SEED), SHARD_ROWS) for _ in range(2))
        if content_hash(*probe.values()) != content_hash(*again.values()):
            raise ValueError(f"{self.name}: equal generators gave different examples; take every draw from rng")
        with named(self.name):
            spec = measure([probe], *(getattr(self, name, None) for name in MEASURED))
            chance = None if spec.chance is None else _chance(probe["labels"], spec.n_outputs)
            self._spec = replace(spec, chance=chance)
            require(probe, self._spec)
        self._fingerprint = {name: _identity(array) for name, array in probe.items()}
        n_rows, n_different = len(probe["inputs"]), len(np.unique(probe["inputs"], axis=0))
        if n_different < n_rows / 2:
            few = f"{self.name} draws few different inputs, {n_different} among {n_rows}"
            warnings.warn(f"{few}: the test split repeats training examples", stacklevel=2)

    @property
    def spec(self) -> TaskSpec:
        assert self._spec is not None
        return self._spec

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        with named(self.name):
            try:
                drawn = type(self).function(rng, n, **{name: getattr(self, name) for name in self.own})
            except Exception as error:
                _, *frames = traceback.extract_tb(error.__traceback__)
                # The error may come from a library that the user's file calls.
                own = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
                where = f" in line {own[-1]}" if own else ""
                raise ValueError(f"the function fails{where}: {type(error).__name__}: {error}") from error
            if not isinstance(drawn, Mapping):
                raise ValueError(f"the function must return a dict of arrays, got {type(drawn).__name__}")
            arrays = conform(drawn)
            if (found := len(arrays["inputs"])) != n:
                raise ValueError(f"the function must return the requested {n} examples, got {found}")
            if self._spec is not None:
                require(arrays, self._spec)
        return arrays

    def at_length(self, seq_len: int) -> Task:
        if "seq_len" not in self.own:
            raise ValueError(f"{self.name}: other lengths need the function to have an argument seq_len, got {seq_len}")
        tokens, classes = self.spec.vocab_size, self.spec.n_outputs if self.spec.loss == "cross_entropy" else None
        measured = {"vocab_size": tokens, "n_classes": classes}
        fixed = {name: value for name, value in measured.items() if name not in self.own}
        return type(self)(**self.options() | fixed | {"seq_len": seq_len})

    def fingerprint(self) -> dict[str, Any]:
        return self._fingerprint


def generated(function: Callable[..., Any], name: str, source: str) -> type[Generated]:
    """Return the task whose examples a function draws.

    Its options are the function's keyword arguments, `vocab_size` and `n_classes`. The last two default to the
    function's attributes with these names, else to the numbers in the first examples.

    Args:
        function: `sample(rng, n, **options)`; `tasks.yours.arrays.conform` describes its result.
        name: name of the task.
        source: origin of the function.

    Raises:
        UsageError: a function without the arguments rng and n, an option without a default, or an option with the name
            of an attribute of every task.
    """
    _, _, *options = _parameters(function, source)
    for each in options:
        if each.default is each.empty:
            raise UsageError(f"{source}: the argument {each.name} needs a default, like every option of a task")
        if hasattr(Generated, each.name):
            raise UsageError(f"{source}: every task has an attribute {each.name}; rename the argument")
    own = tuple(each.name for each in options)
    measured = [name for name in MEASURED if name not in own]
    parameters = [*options, *(_option(name, getattr(function, name, None), int | None) for name in measured)]
    meanings = arguments(function) | {name: MEASURED[name] for name in measured}
    about = paragraphs(function) if function.__doc__ else [f"Examples from {source}."]
    lines = [f"    {each.name}: {meanings[each.name]}" for each in parameters if each.name in meanings]

    def __init__(self: Generated, **options: Any) -> None:
        Generated.__init__(self, **options)

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    __init__.__signature__ = inspect.Signature([itself, *parameters])  # pyright: ignore[reportFunctionMemberAccess]
    return type(
        getattr(function, "__name__", name),
        (Generated,),
        {
            "__doc__": "\n\n".join([*about, "\n".join(["Args:", *lines])]),
            "__module__": __name__,
            "__init__": __init__,
            "function": staticmethod(function),
            "own": own,
            "name": name,
            "source": source,
            "sources": (function.__module__,),
        },
    )


def _parameters(function: Callable[..., Any], source: str) -> list[inspect.Parameter]:
    """Return the function's parameters, with all but the first two converted by `_option`."""
    try:
        found = inspect.signature(function, eval_str=True).parameters.values()
    except NameError:  # an annotation that only a type checker can resolve
        found = inspect.signature(function).parameters.values()
    first, options = [*found][:2], [*found][2:]
    if len(first) < 2 or any(each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in first):
        raise UsageError(f"{source} must be a function sample(rng, n, ...) -> dict of arrays")
    return [
        *first,
        *(_option(each.name, each.default, each.annotation) for each in options if "VAR" not in each.kind.name),
    ]


def _option(name: str, default: Any, hint: Any) -> inspect.Parameter:
    """Return a keyword argument; without an annotation, it has the type of its default."""
    if hint is inspect.Parameter.empty or isinstance(hint, str):
        kind = type(default)
        hint = kind if kind in (bool, int, float, str) else list[Any] if kind in (list, tuple) else Any
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _identity(array: np.ndarray) -> str:
    """Return a digest of integers, or the rounded mean size of floats, whose last digits differ between machines."""
    return content_hash(array) if array.dtype.kind == "i" else f"{array.shape} {np.nanmean(np.abs(array)):.3g}"


def _chance(labels: np.ndarray, n_classes: int) -> float:
    """Return the accuracy of one half's most common class on the other half, at least 1 / n_classes."""
    first, second = (half[half != IGNORED] for half in np.array_split(labels, 2))
    if not len(first) or not len(second):
        raise ValueError("labels: hardly any position has a label")
    return max(float((second == np.bincount(first).argmax()).mean()), 1 / n_classes)
