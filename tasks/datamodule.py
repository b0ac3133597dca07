"""The Lightning data module of every task: holds its splits in memory and serves batches of one or several shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

from tasks.base import Arrays, Task
from tasks.data.batches import (
    BatchesInTurn,
    FreshBatches,
    MixedBatches,
    NumberedBatches,
    OneEpoch,
    OrderedBatches,
    TrainingBatches,
)
from tasks.data.cache import materialise
from tasks.data.mixture import Segment, apportion, create_segments, longest
from tasks.data.splits import at_most, narrow_split, require_rows
from tasks.registry import create_task, task_class
from tasks.spec import TaskSpec
from tasks.yours.arrays import known
from zoo.validate import require_seed

USUAL_SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000}
"""Default numbers of examples."""

LEAST_AT_LENGTH = 16
"""Minimum number of examples at a test length."""


def task_at_length(task: Task, length: int) -> Task:
    """Return the task at another length, for the same model.

    Raises:
        ValueError: the task does not exist at this length, or has other numbers of tokens or outputs there.
    """
    if length < 1:
        raise ValueError(f"test_lengths must be positive integers, got {length}")
    other = task.at_length(length)
    for shape in ("vocab_size", "d_input", "n_outputs"):
        here, there = getattr(task.spec, shape), getattr(other.spec, shape)
        if here != there:
            raise ValueError(f"{task.name}: {shape} is {there} at length {length}, but {here} in training")
    return other


class TaskDataModule(L.LightningDataModule):
    """The splits of a task, generated or read from the cache, and held in memory.

    Args:
        task: a task, or {"name": ..., **options} for `tasks.create_task`.
        n_train: number of training examples, or of examples per pass with `fresh`; default 10,000, or all if fewer.
        n_val: number of validation examples; default 1,000, or all if fewer.
        n_test: number of test examples, per segment of a mixture; default 1,000, or all if fewer.
        batch_size: examples per batch and device.
        seed: seed of the data and of the training order.
        cache: keep the splits on disk instead of generating them at each start; default: only for slow tasks.
        cache_dir: folder of the cache; default $MIXER_ZOO_CACHE or ~/.cache/mixer-zoo.
        test_lengths: additional lengths at which to test the trained model, such as 64,256,1024. The number of
            positions at each length is the same as in n_test examples, but there are at least 16 examples.
        fresh: draw new training examples forever, instead of repeating the same n_train.
        mixture: shapes to train on together, each with the options that it overrides and its weight (default 1):
            "{seq_len: 64, weight: 3}, {seq_len: 128}". n_train and n_val are divided by weight. A batch has one shape,
            and each shape is also tested separately.
        test_segments: additional shapes to test separately; same format as mixture, without weights.

    Raises:
        ValueError: a size below 1, a split larger than the task's data, a training split smaller than a batch, an
            invalid seed, an impossible task or mixture.
    """

    def __init__(
        self,
        task: Task | Mapping[str, Any],
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        batch_size: int = 64,
        seed: int = 0,
        cache: bool | None = None,
        cache_dir: str | Path | None = None,
        test_lengths: list[int] | None = None,
        fresh: bool = False,
        mixture: list[dict[str, Any]] | None = None,
        test_segments: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        sizes = {"n_train": n_train, "n_val": n_val, "n_test": n_test, "batch_size": batch_size}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} must be a positive integer, got {size}")
        require_seed(seed)
        if mixture is not None and test_lengths:
            raise ValueError("test_lengths need a task of one shape; with a mixture, give shapes in test_segments")
        if isinstance(task, Task):
            cls, options = type(task), task.options()
        else:
            cls, options = task_class(task["name"]), {name: value for name, value in task.items() if name != "name"}
        self.segments = create_segments(cls, options, mixture, test_segments)
        """The shapes of a mixture, then the shapes that are only tested."""
        self.is_mixture = mixture is not None
        if self.is_mixture:
            self.task = longest(self.segments)
        else:
            self.task = task if isinstance(task, Task) else create_task(**task)
        self.batch_size, self.seed, self.fresh = batch_size, seed, fresh
        self.cache, self.cache_dir = self.task.slow if cache is None else cache, cache_dir
        self._trained = [each for each in self.segments if each.share] or [Segment("", self.task, 1.0)]
        asked = {"train": ("n_train", n_train), "validation": ("n_val", n_val), "test": ("n_test", n_test)}
        self._sizes = {split: self._shared_out(split, name, n) for split, (name, n) in asked.items()}
        for name, n in self._sizes["train"].items():
            if n < batch_size:
                got = f"n_train={n}" + (f" of {name}" if name else "")
                raise ValueError(f"n_train must hold a batch, got {got} for batch_size={batch_size}")
        self._splits: dict[tuple[str, str], Arrays] = {}
        self.at_lengths = {length: task_at_length(self.task, length) for length in sorted(set(test_lengths or ()))}
        """The task at each test length, ascending."""

    def n_rows(self) -> dict[str, int]:
        """Return the total numbers of rows over all segments, keyed by n_train, n_val and n_test."""
        return {f"n_{split.removesuffix('idation')}": sum(sizes.values()) for split, sizes in self._sizes.items()}

    def _shared_out(self, split: str, option: str, n: int | None) -> dict[str, int]:
        """Return the number of examples in a split, by the name of the segment."""
        usual = USUAL_SIZES[split] if n is None else n
        if split == "test":
            sizes = {each.name: usual for each in (*self._trained, *self.segments)}
        else:
            shared = apportion(usual, [each.share for each in self._trained])
            sizes = {each.name: max(1, size) for each, size in zip(self._trained, shared, strict=True)}
        for each in (*self._trained, *self.segments):
            if each.name in sizes and n is None:
                sizes[each.name] = at_most(each.task, split, sizes[each.name])
            elif each.name in sizes and not (self.fresh and split == "train"):
                require_rows(each.task, split, sizes[each.name], option)
        return sizes

    @property
    def spec(self) -> TaskSpec:
        """The task's spec; for a mixture the spec of the longest trained shape."""
        return self.task.spec

    @property
    def chance(self) -> float | None:
        """The chance level of the test split; for a mixture, the mean over its segments, weighted by labels."""
        levels = [each.task.of_split("test").spec.chance for each in self._trained]
        if len(set(levels)) == 1:
            return levels[0]
        # A split is generated only to count labels whose number varies: a run may never test.
        labels = [
            self._sizes["test"][each.name] * each.task.spec.labelled
            if each.task.spec.labelled is not None
            else known(self._split("test", each)["labels"]).sum()
            for each in self._trained
        ]
        return float(np.average([level or 0.0 for level in levels], weights=labels))

    def split(self, name: str, segment: str | None = None) -> Arrays:
        """Return the arrays of split "train", "validation" or "test", generated on first use.

        Args:
            name: name of the split.
            segment: name of a segment of the mixture or of `test_segments`.

        Raises:
            ValueError: a cache folder that cannot be written, an unknown segment.
        """
        found = {each.name: each for each in (*self._trained, *self.segments)}
        if (key := segment or "") not in found:
            raise ValueError(f"no segment {key!r}; choose from: {', '.join(found)}")
        return self._split(name, found[key])

    def _split(self, name: str, segment: Segment) -> Arrays:
        key = name, segment.name
        if key not in self._splits:
            n = self._sizes[name][segment.name]
            self._splits[key] = self._made(segment.task, name, n, segment.seed(self.seed))
        return self._splits[key]

    def setup(self, stage: str) -> None:
        """Generate the splits of a stage, so that generation does not count towards the first step."""
        fitted = ("validation",) if self.fresh else ("train", "validation")
        for name in {"fit": fitted, "validate": ("validation",), "test": ("test",)}.get(stage, ()):
            for segment in self._trained:
                self._split(name, segment)
        if stage == "test":
            for segment in self.segments:
                self._split("test", segment)
            for length in self.at_lengths if self.cache else ():
                self._test_split_at(length)

    def train_dataloader(self) -> OneEpoch | NumberedBatches | BatchesInTurn:
        """Return shuffled or fresh batches from the trainer's position on; with overfit_batches, batches in order.

        With max_steps and without max_epochs, one epoch is the whole run; otherwise an epoch is a pass over the data.
        """
        if self.trainer is not None and self.trainer.overfit_batches:  # pyright: ignore[reportAttributeAccessIssue]
            return self._in_order("train")
        each = [self._training_batches(segment) for segment in self._trained]
        batches = MixedBatches(each, self.seed, self._position) if self.is_mixture else each[0]
        trainer = self.trainer
        if trainer is None or trainer.max_steps == -1 or trainer.max_epochs not in (None, -1):
            return batches
        return OneEpoch(batches, trainer.max_steps * trainer.accumulate_grad_batches)

    def _training_batches(self, segment: Segment) -> NumberedBatches:
        numbered = (self.batch_size, segment.seed(self.seed), self._position, *self._place)
        if self.fresh:
            return FreshBatches(segment.task, self._sizes["train"][segment.name], *numbered)
        return TrainingBatches(self._split("train", segment), *numbered)

    def val_dataloader(self) -> BatchesInTurn:
        """Return the validation split, in order."""
        return self._in_order("validation")

    def test_dataloader(self) -> BatchesInTurn:
        """Return the test split, in order."""
        return self._in_order("test")

    def segment_batches(self) -> Iterator[tuple[str, OrderedBatches]]:
        """Yield each segment's name with its test batches."""
        for each in self.segments:
            yield each.name, self._ordered(self._split("test", each))

    def length_batches(self) -> Iterator[tuple[int, OrderedBatches]]:
        """Yield each test length with its test batches, generated one length at a time."""
        for length in self.at_lengths:
            yield length, self._ordered(self._test_split_at(length))

    def _in_order(self, split: str) -> BatchesInTurn:
        return BatchesInTurn([self._ordered(self._split(split, each)) for each in self._trained])

    def _ordered(self, arrays: Arrays) -> OrderedBatches:
        """Return batches with about the same number of positions as in training, but at least one sequence."""
        rows = max(1, self.batch_size * self.spec.seq_len // arrays["inputs"].shape[1])
        return OrderedBatches(arrays, rows, *self._place)

    def _test_split_at(self, length: int) -> Arrays:
        """Return the test split at another length, without keeping it: a few very long sequences take 100 MB."""
        task, n = self.at_lengths[length], self._sizes["test"][""]
        n = at_most(task, "test", max(LEAST_AT_LENGTH, n * self.spec.seq_len // length))
        return self._made(task, "test", n, self.seed)

    def _made(self, task: Task, split: str, n: int, seed: int) -> Arrays:
        """Return the first `n` examples of a split, from the cache if enabled."""
        if not self.cache:
            return narrow_split(task, split, n, seed)
        return materialise(task.name, task, split, n, seed, self.cache_dir)

    @property
    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _position(self) -> int:
        return 0 if self.trainer is None else self.trainer.fit_loop.epoch_loop.batch_progress.total.completed
