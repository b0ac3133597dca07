"""Mixtures: a task at several shapes, trained together and tested separately.

A segment overrides options of the task: {seq_len: 128, n_pairs: 8}. Its seed derives from the run's seed and its
overrides, so its examples stay the same when other segments are added or removed.
"""

from __future__ import annotations

import inspect
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.base import Task
from zoo.errors import UnknownNameError, unknown

SEGMENT_STREAM = 6
"""Part of a seed that selects the stream of segments."""

WEIGHT = "weight"
"""Key in an entry of a mixture that is not an option of the task; default 1."""

SHARED = ("input", "vocab_size", "d_input", "n_outputs", "loss", "facts", "perplexity")
"""Fields of a spec that must be equal in all segments, because they share one model."""


@dataclass(frozen=True)
class Segment:
    """One shape of a task.

    Attributes:
        name: options that differ between segments, with this segment's values: "seq_len=128,n_pairs=8".
        task: the task at this shape.
        share: share of the training examples, between 0 and 1; 0 for a shape that is only tested.
        overrides: options that the segment sets; None for a task of one shape.
    """

    name: str
    task: Task
    share: float
    overrides: Mapping[str, Any] | None = None

    def seed(self, seed: int) -> int:
        """Return the seed of the segment's examples in a run with this seed."""
        if self.overrides is None:
            return seed
        text = json.dumps({option: getattr(self.task, option) for option in self.overrides}, sort_keys=True)
        words = np.random.SeedSequence([seed, SEGMENT_STREAM, zlib.crc32(text.encode())])
        return int(words.generate_state(1)[0])


def create_segments(
    cls: type[Task],
    options: Mapping[str, Any],
    mixture: Sequence[Mapping[str, Any]] | None,
    test_segments: Sequence[Mapping[str, Any]] | None = None,
) -> list[Segment]:
    """Return the segments of a mixture, then the segments that are only tested.

    Args:
        cls: class of the task.
        options: options that segments do not override; with a mixture, these alone need not be a valid shape.
        mixture: for each segment, the options that it overrides and its `weight`.
        test_segments: for each additional test segment, the options that it overrides.

    Raises:
        UnknownNameError: an option that the task does not have.
        ValueError: an empty list, a weight that is not positive, an impossible or repeated shape, shapes that need
            different models.
    """
    made: list[tuple[str, Task, float, dict[str, Any]]] = []
    for group, entries in (("mixture", mixture), ("test_segments", test_segments)):
        if entries is not None and not entries:
            raise ValueError(f"{group} must contain at least one segment, such as {{seq_len: 128}}, got []")
        for number, entry in enumerate(entries or (), 1):
            where = f"{group}, segment {number}"
            overrides = _overrides(cls, entry, where, weighed=group == "mixture")
            weight = _weight(entry, where) if group == "mixture" else 0.0
            try:
                made.append((where, cls(**{**options, **overrides}), weight, overrides))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{where}: {error}") from None
    if not made:
        return []
    alone = [] if mixture else [("training", cls(**options))]
    _check_same_model([*alone, *((where, task) for where, task, _, _ in made)])
    _check_distinct([(where, task) for where, task, _, _ in made])
    total = sum(weight for _, _, weight, _ in made) or 1.0
    differing = list(dict.fromkeys(option for *_, overrides in made for option in overrides))
    return [Segment(_name(task, differing), task, weight / total, overrides) for _, task, weight, overrides in made]


def longest(segments: Sequence[Segment]) -> Task:
    """Return the task at the longest trained shape (the first of several), for which model sizes are reported."""
    return max((segment.task for segment in segments if segment.share), key=lambda task: task.spec.seq_len)


def apportion(n: int, shares: Sequence[float]) -> list[int]:
    """Divide `n` examples by shares into whole numbers, rounding up the largest remainders.

    >>> apportion(10, [0.5, 0.25, 0.25])
    [5, 3, 2]
    """
    exact = [n * share for share in shares]
    # The tolerance protects shares that give whole numbers from rounding.
    parts = [math.floor(each + 1e-9 * n) for each in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - exact[i])
    for i in by_remainder[: n - sum(parts)]:
        parts[i] += 1
    return parts


def _overrides(cls: type[Task], entry: Any, where: str, *, weighed: bool) -> dict[str, Any]:
    valid = list(inspect.signature(cls).parameters)
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where}: must be a mapping of options, such as {{{valid[0]}: ...}}, got {entry!r}")
    if WEIGHT in entry and not weighed:
        raise ValueError(f"{where}: takes no weight, because it is only tested; got {WEIGHT}={entry[WEIGHT]!r}")
    for option in entry:
        if option not in valid and option != WEIGHT:
            raise UnknownNameError(f"{where}: {unknown(f'{cls.name} option', str(option), valid)}")
    overrides = {option: value for option, value in entry.items() if option != WEIGHT}
    if not overrides and not weighed:
        raise ValueError(f"{where}: must override an option, such as {{{valid[0]}: ...}}, got {entry!r}")
    return overrides


def _weight(entry: Mapping[str, Any], where: str) -> float:
    weight = entry.get(WEIGHT, 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ValueError(f"{where}: {WEIGHT} must be a positive number, got {weight!r}")
    return float(weight)


def _check_same_model(shapes: Sequence[tuple[str, Task]]) -> None:
    (first_at, first), *others = shapes
    for where, task in others:
        for shape in (*SHARED, *task.equal_in_mixture):
            here, there = (getattr(each.spec if shape in SHARED else each, shape) for each in (task, first))
            if here != there:
                raise ValueError(f"{task.name}: {shape} is {here} in {where}, but {there} in {first_at}")


def _check_distinct(shapes: Sequence[tuple[str, Task]]) -> None:
    for number, (where, task) in enumerate(shapes):
        for earlier, other in shapes[:number]:
            if other.options() == task.options():
                raise ValueError(f"{task.name}: {where} is the same shape as {earlier}")


def _name(task: Task, options: Sequence[str]) -> str:
    values = {option: getattr(task, option) for option in options}
    return ",".join(f"{k}={v if isinstance(v, str) else json.dumps(v, default=str)}" for k, v in values.items())
