"""Draw the train, validation and test splits: separate random streams of one seed, in shards of fixed size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tasks.base import Arrays, FiniteTask, Task
from tasks.spec import TaskSpec

SPLITS = {"train": 0, "validation": 1, "test": 2}
"""Part of the seed that selects the stream of each split."""

SHARD_ROWS = 1024
"""Rows per generator; a shard is always drawn whole, so that the first n rows do not depend on n."""

SHARD_POSITIONS = 1 << 22
"""Maximum number of positions in a shard, 32 MB of integers: shards of sequences over 4096 have fewer rows."""

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
    """Return the number of rows in a shard of this task."""
    return max(1, min(SHARD_ROWS, SHARD_POSITIONS // task.spec.seq_len))


def at_most(task: Task, split: str, n: int) -> int:
    """Return `n`, or the number of examples in the split if it is smaller."""
    drawn_from = task.of_split(split)
    return min(n, drawn_from.size) if isinstance(drawn_from, FiniteTask) else n


def require_rows(task: Task, split: str, n: int, option: str = "n") -> None:
    """Check that a split can have `n` examples.

    Raises:
        ValueError: n < 1, or more than a finite task has.
    """
    if n < 1:
        raise ValueError(f"{task.name}: a split needs at least one example, got {option}={n}")
    if n > (most := at_most(task, split, n)):
        raise ValueError(f"{task.name}: {split} has only {most:,} examples, got {option}={n}")


def shards(task: Task, split: str, n: int, seed: int) -> Iterator[Arrays]:
    """Yield the first `n` examples of a split, a shard at a time.

    Raises:
        ValueError: an unknown split, a negative seed, n < 1, or more than a finite task has.
    """
    split_rng(seed, split, 0)  # raises for a bad split or seed
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
    """Draw the first `n` examples of a split; a longer split of the same seed begins with the same rows.

    Raises:
        ValueError: see `shards`.
    """
    parts = list(shards(task, split, n, seed))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def narrow_split(task: Task, split: str, n: int, seed: int) -> Arrays:
    """Draw a split as `sample_split` does, with tokens and labels in the smallest sufficient integer types.

    100,000 examples of length 512 then take 400 MB instead of 1 GB. A progress bar appears on a terminal if generation
    takes long.

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
    """Return the type in which to store the array `name`."""
    if name not in ("inputs", "labels") or dtype.kind != "i":
        return dtype
    top = max(spec.vocab_size or 0, spec.n_outputs) - 1
    return next(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64) if top <= np.iinfo(t).max)
