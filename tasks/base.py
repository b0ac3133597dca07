"""What every task is: a spec, a vectorised sampler, and plain constructor options."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from tasks.spec import TaskSpec

Arrays = dict[str, np.ndarray]
"""One array per name, all of the same first axis (examples)."""


class Task(ABC):
    """A distribution over labelled sequences.

    A constructor takes plain values only and keeps each under its own name, so that `options` can list them.
    Every draw comes from the generator given to `sample`: equal generator states give equal arrays.
    """

    name: ClassVar[str]
    """The registered name; begins every error message."""

    source: ClassVar[str] = ""
    """Where the definition comes from: authors, title, arXiv number."""

    prediction: ClassVar[str] = ""
    """What the theory predicts for which mixer, in a sentence or two."""

    worked: ClassVar[Mapping[str, Any]] = {}
    """Options of a shape small enough to look at, for the example on the task's page."""

    sources: ClassVar[tuple[str, ...]] = ()
    """Further modules of this project whose code decides what `sample` returns; their text keys the cache."""

    libraries: ClassVar[tuple[str, ...]] = ("numpy",)
    """Installed packages whose version keys the cache."""

    @property
    @abstractmethod
    def spec(self) -> TaskSpec:
        """Shapes, loss and chance level at these options."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        """Draw `n` independent examples.

        Args:
            rng: source of all randomness; advanced.
            n: number of examples, at least 0.

        Returns:
            `inputs`, `labels` as `spec` says, then one array (n, ...) per fact.
        """

    def of_split(self, split: str) -> Task:
        """What the examples of a split are drawn from: the task itself, unless it is made of data that is divided up.

        Args:
            split: "train", "validation" or "test".
        """
        return self

    def at_length(self, seq_len: int) -> Task:
        """The same task with sequences of another length, to test what was learned at this one.

        Raises:
            ValueError: the task does not exist at this length.
        """
        return type(self)(**(self.options() | {"seq_len": seq_len}))

    def fingerprint(self) -> dict[str, Any]:
        """What decides the examples beside options and code, such as a hash of a user's file; keys the cache."""
        return {}

    def floors(self) -> dict[str, float]:
        """Least errors that theory allows, by their names in metrics.json; none unless a task knows them."""
        return {}

    def input_text(self, token: int) -> str:
        """How a person writes an input token."""
        return str(token)

    def label_text(self, label: int) -> str:
        """How a person writes a class."""
        return str(label)

    def options(self) -> dict[str, Any]:
        """The constructor's options: `type(task)(**task.options())` is the same task."""
        return {option: getattr(self, option) for option in inspect.signature(type(self)).parameters}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options().items())})"

    def _whole(self, option: str, value: Any, minimum: int) -> int:
        """`value` as an int; ValueError unless it is an integer of at least `minimum`."""
        if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
            raise ValueError(f"{self.name}: {option} must be an integer >= {minimum}, got {option}={value!r}")
        return int(value)

    def _demand(self, holds: bool, rule: str, *named: str) -> None:
        """ValueError saying `rule` and the values of the `named` options, unless the rule `holds`."""
        if not holds:
            raise ValueError(f"{self.name}: {rule}, got {', '.join(f'{k}={getattr(self, k)!r}' for k in named)}")


class FiniteTask(Task):
    """A task of a limited number of examples: a split gives each of its examples at most once, in a seeded order."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many examples there are."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> Arrays:
        """The examples with these numbers, int64 in 0 ... size - 1."""

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        return self.take(rng.integers(self.size, size=n))
