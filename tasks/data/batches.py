"""Batches for training, validation and tests, from arrays in memory or drawn from a task on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.base import Arrays, Task
from tasks.data.splits import shard_rows

ORDER_STREAM = 3
"""Part of the seed that selects the stream for the training order; splits use 0, 1 and 2."""

FRESH_STREAM = 4
"""Part of the seed that selects the stream for fresh examples."""

MIXTURE_STREAM = 5
"""Part of the seed that selects the stream for the order of segments."""


class _Resumable:
    """Batches without state, since the trainer keeps the position; Lightning warns if these methods are missing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load nothing."""
        del state_dict


class NumberedBatches(_Resumable, ABC):
    """Training batches of one size, numbered from the start of the run; a batch depends only on its number.

    A resumed run therefore sees the same batches as an uninterrupted one, and several devices together see the batches
    of one device with the same global batch. A DataLoader would need a sampler, a batch sampler and their state, and
    would be ten times slower.

    Args:
        n_rows: rows per epoch; rows left over after the last full batch are dropped.
        batch_size: rows per batch and process.
        seed: seed of the batches' content.
        position: function that returns the index of the first batch when an iteration starts; default 0.
        rank: rank of this process.
        world_size: number of processes.
    """

    def __init__(
        self,
        n_rows: int,
        batch_size: int,
        seed: int,
        position: Callable[[], int] = lambda: 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if n_rows < batch_size * world_size:
            raise ValueError(
                f"n_train must hold a batch, got n_train={n_rows} for batch_size={batch_size}"
                + (f" on {world_size} processes" if world_size > 1 else "")
            )
        self.n_rows, self.batch_size, self.seed = n_rows, batch_size, seed
        self.position, self.rank, self.world_size = position, rank, world_size

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return this process's part of batch `index` >= 0 of the run; there is no last batch."""

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.n_rows // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        first = self.position()
        for index in range(first, first + len(self)):
            yield self[index]


class TrainingBatches(NumberedBatches):
    """The rows of the training split, reshuffled for each epoch.

    Batch `index` is batch `index % len(self)` of a permutation drawn for epoch `index // len(self)`. Rows that do not
    fill a batch are left out of that epoch.

    Args:
        arrays: arrays of the split.
        numbered, place: batch_size, seed, position, rank and world_size of `NumberedBatches`.
    """

    def __init__(self, arrays: Arrays, *numbered: Any, **place: Any) -> None:
        super().__init__(len(arrays["inputs"]), *numbered, **place)
        self.arrays = arrays
        self._order: tuple[int, np.ndarray] | None = None

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        epoch, place = divmod(index, len(self))
        start = (place * self.world_size + self.rank) * self.batch_size
        return gather(self.arrays, self._permutation(epoch)[start : start + self.batch_size])

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, ORDER_STREAM, epoch])
            self._order = epoch, rng.permutation(self.n_rows)
        return self._order[1]


class FreshBatches(NumberedBatches):
    """An endless stream of training batches with new examples, drawn on demand; no split is stored.

    Examples are drawn in blocks of about a shard, because a thousand rows at once are much faster than small draws.
    Block `b` is drawn from `default_rng([seed, FRESH_STREAM, b])`, and each process takes its part of each batch.

    Args:
        task: the task that draws.
        numbered, place: the arguments of `NumberedBatches`.
    """

    def __init__(self, task: Task, *numbered: Any, **place: Any) -> None:
        super().__init__(*numbered, **place)
        self.task = task.of_split("train")
        self._batches_per_block = max(1, shard_rows(task) // (self.batch_size * self.world_size))
        self._drawn: tuple[int, Arrays] | None = None

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        block, place = divmod(index, self._batches_per_block)
        start = (place * self.world_size + self.rank) * self.batch_size
        return gather(self._block(block), np.arange(start, start + self.batch_size))

    def _block(self, block: int) -> Arrays:
        if self._drawn is None or self._drawn[0] != block:
            rng = np.random.default_rng([self.seed, FRESH_STREAM, block])
            rows = self._batches_per_block * self.batch_size * self.world_size
            self._drawn = block, self.task.sample(rng, rows)
        return self._drawn[1]


class MixedBatches(NumberedBatches):
    """Training batches of several shapes: each batch has one shape, so nothing is padded.

    A pass contains a pass over every segment, in an order redrawn for each pass. All processes have the same shape at
    the same time.

    Args:
        segments: training batches of each segment.
        seed: seed of the order.
        position: see `NumberedBatches`.
    """

    def __init__(self, segments: Sequence[NumberedBatches], seed: int, position: Callable[[], int] = lambda: 0) -> None:
        first = segments[0]
        n_rows = sum(each.n_rows for each in segments)
        super().__init__(n_rows, first.batch_size, seed, position, first.rank, first.world_size)
        self.segments = segments
        self._turns: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return sum(len(each) for each in self.segments)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        epoch, place = divmod(index, len(self))
        turns, numbers = self._epoch(epoch)
        segment = self.segments[turns[place]]
        return segment[epoch * len(segment) + int(numbers[place])]

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each batch of a pass, its segment and its number within that segment."""
        if self._turns is None or self._turns[0] != epoch:
            rng = np.random.default_rng([self.seed, MIXTURE_STREAM, epoch])
            turns = rng.permutation(np.repeat(np.arange(len(self.segments)), [len(each) for each in self.segments]))
            numbers = np.empty_like(turns)
            for segment in range(len(self.segments)):
                places = np.flatnonzero(turns == segment)
                numbers[places] = np.arange(len(places))
            self._turns = epoch, turns, numbers
        return self._turns[1:]


class OneEpoch(_Resumable):
    """The batches of a whole run, over several passes, as a single Lightning epoch.

    The trainer can then accumulate batches across the end of a pass, and nothing counts epochs.

    Args:
        batches: training batches, with the start position.
        n_batches: number of batches of the run.
    """

    def __init__(self, batches: NumberedBatches, n_batches: int) -> None:
        self.batches, self.n_batches = batches, n_batches

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self.batches[index] for index in range(self.batches.position(), self.n_batches))


class OrderedBatches:
    """All rows in order; the last batch may be shorter. Several processes share each batch.

    Args:
        arrays: arrays of a split.
        batch_size: rows per batch and process.
        rank: rank of this process.
        world_size: number of processes.
    """

    def __init__(self, arrays: Arrays, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.arrays, self.rank, self.world_size = arrays, rank, world_size
        self.global_batch_size = batch_size * world_size
        self.n_rows = len(arrays["inputs"])

    def __len__(self) -> int:
        return -(-self.n_rows // self.global_batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, self.n_rows, self.global_batch_size):
            rows = np.arange(start, min(start + self.global_batch_size, self.n_rows))
            yield gather(self.arrays, np.array_split(rows, self.world_size)[self.rank])


class BatchesInTurn:
    """The batches of several sets of rows, one set after the other."""

    def __init__(self, parts: Sequence[OrderedBatches]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return chain.from_iterable(self.parts)


def gather(arrays: Arrays, rows: np.ndarray) -> dict[str, Tensor]:
    """Return the chosen rows as tensors, integers as int64."""
    taken = {name: array[rows] for name, array in arrays.items()}
    return {
        name: torch.from_numpy(part.astype(np.int64, copy=False) if part.dtype.kind in "iu" else part)
        for name, part in taken.items()
    }
