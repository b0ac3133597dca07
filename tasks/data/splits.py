"""Train, validation and test: disjoint streams of one seed, cut into shards of a fixed number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tasks.base import Arrays, FiniteTask, Task
from tasks.spec import TaskSpec

SPLITS = {"train": 0, "validation": 1, "test": 2}
"""Each split's word in the seed of its generators."""

SHARD_ROWS = 1024
"""Rows drawn from one generator, always all of them: the first n rows do not depend on n."""

SHARD_POSITIONS = 1 << 22
"""Positions of a shard, 32 MB of integers: sequences longer than 4096 come in shards of fewer rows."""

PROGRESS_DELAY = 2.0
"""Seconds of generation before a progress bar appears."""


def split_rng(seed: int, split: str, shard: int) -> np.random.Generator:
    """Return the generator of one shard: `default_rng([seed, split, shard])`.

    Raises:
        ValueError: an unknown split, or a negative seed or shard.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose from: {', '.join(SPLITS)}")
    if seed < 0 or shard < 0:
        raise ValueError(f"seed and shard must be >= 0, got seed={seed}, shard={shard}")
    return np.random.default_rng([seed, SPLITS[split], shard])


def shard_rows(task: Task) -> int:
    """Count the rows of a shard of this task."""
    return max(1, min(SHARD_ROWS, SHARD_POSITIONS // task.spec.seq_len))


def at_most(task: Task, split: str, n: int) -> int:
    """Return `n`, or the number of examples in the split if it is smaller."""
    drawn_from = task.of_split(split)
    return min(n, drawn_from.size) if isinstance(drawn_from, FiniteTask) else n


def require_rows(task: Task, split: str, n: int, option: str = "n") -> None:
    """Refuse a number of examples that no split can hold.

    Raises:
        ValueError: n < 1, or more than a finite task has.
    """
    if n < 1:
        raise ValueError(f"{task.name}: a split holds at least one example, got {option}={n}")
    if n > (most := at_most(task, split, n)):
        raise ValueError(f"{task.name}: {split} has {most:,} examples and no more, got {option}={n}")


def shards(task: Task, split: str, n: int, seed: int) -> Iterator[Arrays]:
    """Yield the first `n` examples of a split, a shard at a time.

    Raises:
        ValueError: an unknown split, a negative seed, n < 1, or more than a finite task has.
    """
    split_rng(seed, split, 0)  # refuses a bad split or seed
    require_rows(task, split, n)
    drawn_from, rows = task.of_split(split), shard_rows(task)
    if isinstance(drawn_from, FiniteTask):
        order = split_rng(seed, split, 0).permutation(drawn_from.size)[:n]
        yield from (drawn_from.take(order[start : start + rows]) for start in range(0, len(order), rows))
        return
    for shard, start in enumerate(range(0, n, rows)):
        arrays = drawn_from.sample(split_rng(seed, split, shard), rows)
        yield {name: array[: n - start] for name, array in arrays.items()}


def sample_split(task: Task, split: str, n: int, seed: int) -> Arrays:
    """Draw the first `n` examples of a split in memory; a longer split of the same seed begins with the same rows.

    Raises:
        ValueError: see `shards`.
    """
    parts = list(shards(task, split, n, seed))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def narrow_split(task: Task, split: str, n: int, seed: int) -> Arrays:
    """Return the same as `sample_split`, with tokens and labels in the smallest integer types that hold them.

    For 100,000 examples of length 512 these are 400 MB instead of 1 GB. A progress bar appears on a terminal if
    generation takes long.

    Raises:
        ValueError: see `shards`.
    """
    from tqdm.auto import tqdm

    arrays: Arrays = {}
    start = 0
    # disable=None: shown on a terminal only.
    title = f"generating {task.name} {split}"
    with tqdm(total=n, desc=title, unit=" examples", delay=PROGRESS_DELAY, leave=False, disable=None) as bar:
        for part in shards(task, split, n, seed):
            for name, array in part.items():
                if name not in arrays:
                    arrays[name] = np.empty((n, *array.shape[1:]), _narrow(name, array.dtype, task.spec))
                arrays[name][start : start + len(array)] = array
            start += len(part["inputs"])
            bar.update(len(part["inputs"]))
    return arrays


def _narrow(name: str, dtype: np.dtype, spec: TaskSpec) -> np.dtype:
    """Return the type in which the array `name` is kept."""
    if name not in ("inputs", "labels") or dtype.kind != "i":
        return dtype
    top = max(spec.vocab_size or 0, spec.n_outputs) - 1
    return next(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64) if top <= np.iinfo(t).max)
