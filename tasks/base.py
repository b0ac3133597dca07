"""The base classes of all tasks: a task has a spec, a vectorised sampler and plain constructor options."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tasks.spec import TaskSpec
from zoo.docstrings import paragraphs

Arrays = dict[str, np.ndarray]
"""Arrays by name; the first axis of each is the example."""

Options = Mapping[str, Any]
"""Plain values by the names of a constructor's arguments."""


@contextlib.contextmanager
def named(name: object) -> Iterator[None]:
    """Prefix the message of a ValueError with a name, unless the name is empty."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if name else str(error)) from error.__cause__


class Task(ABC):
    """A distribution over labelled sequences.

    The constructor takes plain values and stores each as an attribute of the same name, for `options`. Every draw comes
    from the generator passed to `sample`: equal generator states give equal arrays.
    """

    name: ClassVar[str]
    """The registered name, the prefix of error messages; default in `tasks.generators`: the name of the file."""

    source: ClassVar[str] = ""
    """Authors, title and arXiv number of the definition; default: the docstring's paragraph `Source: ...`."""

    reported: ClassVar[str] = ""
    """The score that the source reports, if it is not `accuracy`; default: the paragraph `Reported: ...`."""

    prediction: ClassVar[str] = ""
    """Which mixers solve the task according to theory; default: the docstring's paragraph `Prediction: ...`."""

    slow: ClassVar[bool] = False
    """Whether splits are kept on disk, because ten thousand examples take seconds to generate."""

    equal_in_mixture: ClassVar[tuple[str, ...]] = ()
    """Options that must be equal in all shapes of a mixture although their defaults depend on the shape."""

    sources: ClassVar[tuple[str, ...]] = ()
    """Modules outside `tasks` whose code affects the examples; the cache's key includes their source text."""

    libraries: ClassVar[tuple[str, ...]] = ("numpy",)
    """Installed packages whose versions are part of the cache's key."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls) and cls.__module__.startswith("tasks.generators."):
            cls.name = cls.__module__.rpartition(".")[2]
        for attribute in ("source", "prediction", "reported"):
            title = f"{attribute.capitalize()}: "
            titled = (" ".join(p.split()) for p in paragraphs(cls) if p.startswith(title))
            if attribute not in vars(cls) and (paragraph := next(titled, None)):
                setattr(cls, attribute, paragraph.removeprefix(title))

    @property
    @abstractmethod
    def spec(self) -> TaskSpec:
        """Shapes, loss and chance level at these options."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        """Draw `n` independent examples.

        Args:
            rng: source of all randomness; its state advances.
            n: number of examples, at least 0.

        Returns:
            `inputs` and `labels` as in `TaskSpec`, then one array per fact.
        """

    def of_split(self, split: str) -> Task:
        """Return the task that draws a split ("train", "validation" or "test"): by default this task."""
        return self

    def at_length(self, seq_len: int) -> Task:
        """Return the task at another length, to test a model that was trained at this length.

        Raises:
            ValueError: the task does not exist at this length.
        """
        return type(self)(**(self.options() | {"seq_len": seq_len}))

    def files(self) -> list[Path]:
        """Return the files and folders that the examples come from; by default all options that are existing paths."""
        found = []
        for value in self.options().values():
            # A text may be an invalid path, for example too long or in the home of an unknown user.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                if isinstance(value, str | Path) and value and Path(value).expanduser().exists():
                    found.append(Path(value).expanduser())
        return found

    def fingerprint(self) -> dict[str, Any]:
        """Return plain data that, with options and code, identifies the examples in the key of the cache.

        By default a hash of each file in `files` and, for a folder, names, sizes and modification times of its files,
        so that editing a file invalidates the cache.
        """
        return {str(path): _state_of(path) for path in self.files()}

    def floors(self) -> dict[str, float | dict[str, float]]:
        """Return theoretical lower bounds of the error, by name and size; empty if unknown."""
        return {}

    def guess_among_read(self) -> float | None:
        """Return the accuracy of guessing one of the tokens seen that could be the answer; None if unknown.

        A subclass with a different question overrides it.
        """
        return None

    def guess_without_order(self) -> float | None:
        """Return the score of the best guess that ignores the order of the tokens; None if unknown.

        The score is an accuracy; for text, the perplexity of the symbols' frequencies.
        """
        return self.guess_among_read()

    def input_text(self, token: int) -> str:
        """Return a readable text of an input token."""
        return str(token)

    def label_text(self, label: int) -> str:
        """Return a readable text of a class."""
        return str(label)

    def options(self) -> dict[str, Any]:
        """Return the options: `type(task)(**task.options())` is the same task.

        Raises:
            ValueError: a constructor that does not keep an argument as an attribute of the same name.
        """
        names = list(inspect.signature(type(self)).parameters)
        if lost := [name for name in names if not hasattr(self, name)]:
            raise ValueError(f"{type(self).__name__} must keep its argument {lost[0]} as an attribute: self.{lost[0]}")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options().items())})"

    def _whole(self, option: str, value: Any, minimum: int) -> int:
        """Return `value` as an int; raise ValueError unless it is an integer >= `minimum`."""
        if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
            raise ValueError(f"{self.name}: {option} must be an integer >= {minimum}, got {option}={value!r}")
        return int(value)

    def _demand(self, holds: bool, rule: str, *further: str) -> None:
        """Raise ValueError unless a rule holds; the message has the values of the options in `rule` and `further`."""
        if not holds:
            options = inspect.signature(type(self)).parameters
            named = dict.fromkeys([*(word for word in re.findall(r"\w+", rule) if word in options), *further])
            raise ValueError(f"{self.name}: {rule}, got {', '.join(f'{k}={getattr(self, k)!r}' for k in named)}")


class FiniteTask(Task):
    """A task with a limited number of examples: a split has each of its examples at most once, in a seeded order.

    Each example belongs to one split, independent of the data seed: a tenth for test, a tenth for validation, the rest
    for training. A task with its own division overrides `of_split`.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of examples."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> Arrays:
        """Return the examples with these numbers, int64 in 0 ... size - 1."""

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        return self.take(rng.integers(self.size, size=n))

    def of_split(self, split: str) -> Task:
        """Return the task restricted to the examples of a split.

        Raises:
            ValueError: fewer than three examples.
        """
        if self.size < len(HELD_OUT) + 1:
            raise ValueError(f"{self.name}: three splits need at least three examples, got {self.size}")
        order = np.random.default_rng(DIVISION_SEED).permutation(self.size)
        held = max(1, round(HELD_OUT_SHARE * self.size))
        start = held * HELD_OUT.index(split) if split in HELD_OUT else held * len(HELD_OUT)
        return _Part(self, order[start : start + held] if split in HELD_OUT else order[start:])


DIVISION_SEED = 0
"""Seed of the shuffle before examples are divided into splits, since they may come sorted by label."""

HELD_OUT = ("validation", "test")
HELD_OUT_SHARE = 0.1
"""Share of a finite task's examples in each held-out split."""


class _Part(FiniteTask):
    """The examples of a finite task that belong to one split."""

    def __init__(self, whole: FiniteTask, rows: np.ndarray) -> None:
        self.whole, self.rows = whole, rows

    @property
    def spec(self) -> TaskSpec:
        return self.whole.spec

    @property
    def size(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray) -> Arrays:
        return self.whole.take(self.rows[rows])


def _state_of(path: Path) -> str | list[Any]:
    """Return a hash of a file, or names, sizes and modification times of a folder's files."""
    if path.is_dir():
        found = sorted((file.relative_to(path).as_posix(), file.stat()) for file in path.rglob("*") if file.is_file())
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
