"""TaskDataModule and its batches: order by (seed, index), fresh examples, several processes, caching, test lengths."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks import create_task, sample_split
from tasks.data.batches import (
    FRESH_STREAM,
    MIXTURE_STREAM,
    ORDER_STREAM,
    FreshBatches,
    MixedBatches,
    OrderedBatches,
    TrainingBatches,
    gather,
)
from tasks.data.mixture import SEGMENT_STREAM
from tasks.data.splits import SPLITS
from tasks.spec import TaskSpec
from tests.training import small


def numbered(n: int) -> dict[str, np.ndarray]:
    return {"inputs": np.arange(n, dtype=np.int32)[:, None], "weight": np.linspace(0, 1, n, dtype=np.float32)}


def rows(batch: dict[str, torch.Tensor]) -> list[int]:
    return batch["inputs"][:, 0].tolist()


@given(st.integers(1, 50), st.integers(1, 8), st.integers(1, 3), st.integers(0, 5))
def test_a_pass_holds_each_row_at_most_once_and_fills_its_batches(n: int, size: int, world: int, number: int) -> None:
    if n < size * world:
        with pytest.raises(ValueError, match=f"n_train must hold a batch, got n_train={n}"):
            TrainingBatches(numbered(n), size, 0, world_size=world)
        return
    ranks = [TrainingBatches(numbered(n), size, 7, rank=rank, world_size=world) for rank in range(world)]
    n_batches = len(ranks[0])
    assert n_batches == n // (size * world)
    seen = [row for i in range(n_batches) for loader in ranks for row in rows(loader[number * n_batches + i])]
    assert len(seen) == len(set(seen)) == n_batches * size * world


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks of 19 rows, so that a few batches span several."""
    monkeypatch.setattr("tasks.data.splits.SHARD_ROWS", 19)


def stored(size: int, seed: int, **options: Any) -> Any:
    return TrainingBatches(numbered(20), size, seed, **options)


def fresh(size: int, seed: int, **options: Any) -> Any:
    return FreshBatches(create_task("needle", distance=20), 40, size, seed, **options)


def mixed(size: int, seed: int, position: Any = lambda: 0, sizes: Sequence[int] = (20, 12), **options: Any) -> Any:
    """A mixture whose n-th segment has n + 1 positions and rows that count from 1000 n."""
    arrays = [{"inputs": 1000 * at + np.arange(n)[:, None].repeat(at + 1, 1)} for at, n in enumerate(sizes)]
    return MixedBatches([TrainingBatches(each, size, at, **options) for at, each in enumerate(arrays)], seed, position)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("make", [stored, fresh, mixed])
def test_batches_depend_only_on_seed_and_index_and_are_split_over_processes(make: Any) -> None:
    first = [make(4, 1)[i]["inputs"] for i in range(30)]
    used, n = make(4, 1, position=lambda: 5), len(make(4, 1))
    assert all(torch.equal(used[i]["inputs"], first[i]) for i in reversed(range(30)))
    assert all(torch.equal(a["inputs"], b) for a, b in zip(used, first[5 : 5 + n], strict=True))
    assert not all(torch.equal(make(4, 2)[i]["inputs"], first[i]) for i in range(30))
    assert not all(torch.equal(a, b) for a, b in zip(first[:n], first[n:], strict=False))  # the next pass
    two = [make(2, 1, rank=rank, world_size=2) for rank in range(2)]
    for index in range(12):
        assert torch.equal(torch.cat([part[index]["inputs"] for part in two]), first[index])


@pytest.mark.usefixtures("short_blocks")
def test_fresh_examples_never_repeat_and_are_in_no_other_split() -> None:
    batches = [fresh(8, 1)[i]["inputs"] for i in range(12)]
    assert len(torch.cat(batches).unique(dim=0)) == 12 * 8
    task = create_task("needle", distance=20)
    splits = {row.tobytes() for split in SPLITS for row in sample_split(task, split, 1024, 1)["inputs"]}
    assert not splits & {row.numpy().tobytes() for batch in batches for row in batch}


def test_fresh_examples_have_the_labels_of_the_training_split() -> None:
    batch = FreshBatches(create_task("in_context_recall"), 16, 8, seed=1)[0]
    assert torch.equal(batch["labels"][:, :-1], batch["inputs"][:, 1:])  # all next tokens, not only the answers


def test_every_use_of_a_seed_has_a_different_stream() -> None:
    words = {**SPLITS, "order": ORDER_STREAM, "fresh": FRESH_STREAM, "mixture": MIXTURE_STREAM}
    words["segments"] = SEGMENT_STREAM
    assert sorted(words.values()) == [0, 1, 2, 3, 4, 5, 6], words


def test_fresh_training_draws_no_training_split_and_the_usual_other_splits(tmp_path: Path) -> None:
    data, usual = small.data(tmp_path / "fresh", fresh=True, cache=True), small.data(tmp_path / "usual")
    small.trainer(tmp_path, max_steps=7).fit(small.module(), datamodule=data)
    data.setup("test")
    assert kept(tmp_path / "fresh/cache/echo") == ["test-10", "validation-10"]
    for split in ("validation", "test"):
        assert np.array_equal(data.split(split)["inputs"], usual.split(split)["inputs"])
    with pytest.raises(ValueError, match="n_train must hold a batch, got n_train=4 for batch_size=8"):
        small.data(tmp_path, fresh=True, n_train=4)


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 3))
def test_evaluation_sees_each_row_once(n: int, size: int, world: int) -> None:
    ranks = [OrderedBatches(numbered(n), size, rank, world) for rank in range(world)]
    batches = [[rows(batch) for batch in loader] for loader in ranks]
    assert all(len(part) == len(ranks[0]) for part in batches)
    seen = [row for step in zip(*batches, strict=True) for part in step for row in part]
    assert seen == list(range(n))


def test_batches_are_int64_and_float32_tensors() -> None:
    batch = next(iter(TrainingBatches(numbered(8), 4, 0)))
    assert (batch["inputs"].dtype, batch["weight"].dtype) == (torch.int64, torch.float32)
    for narrow in (np.int8, np.int16, np.int32, np.uint8, np.uint16):
        assert gather({"inputs": np.ones((3, 2), narrow)}, np.arange(2))["inputs"].dtype == torch.int64


def kept(folder: Path) -> list[str]:
    """The splits in a task's cache folder."""
    return sorted(path.name.split("-seed")[0] for path in folder.glob("[!.]*.npz"))


def test_a_fast_task_is_drawn_in_memory_without_the_cache_and_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("datasets", "filelock", "pyarrow"):
        monkeypatch.setitem(sys.modules, library, None)  # importing it raises an error
    monkeypatch.delitem(sys.modules, "tasks.data.cache", raising=False)
    monkeypatch.delitem(sys.modules, "tasks.data.arrow", raising=False)
    task = create_task("mqar", vocab_size=130, seq_len=16, n_pairs=2)
    data = small.data(tmp_path, task, test_lengths=[24])
    data.setup("fit")
    data.setup("test")
    for split in SPLITS:
        expected = sample_split(task, split, {"train": 40}.get(split, 10), 0)
        for name, array in data.split(split).items():
            assert np.array_equal(array, expected[name])
            assert array.dtype == (np.int32 if name in task.spec.facts else np.int16)
    assert [batch["inputs"].shape[1] for _, batches in data.length_batches() for batch in batches] == [24] * 4
    assert not (tmp_path / "cache").exists()


class Slow(small.Echo):
    """Declares that it is slow to draw."""

    slow = True


@pytest.mark.parametrize(
    ("task", "cache", "is_kept"),
    [(small.Echo(), None, False), (small.Echo(), True, True), (Slow(), None, True), (Slow(), False, False)],
)
def test_slow_tasks_are_cached_unless_the_option_says_otherwise(
    task: Any, cache: bool | None, is_kept: bool, tmp_path: Path
) -> None:
    data = small.data(tmp_path, task, cache=cache)
    assert np.array_equal(data.split("test")["inputs"], sample_split(task, "test", 10, 0)["inputs"])
    assert (tmp_path / "cache/echo").exists() == is_kept


class Taken(small.L.Callback):
    """Records each training batch with its optimizer step and epoch."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, torch.Tensor]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.taken.append((trainer.global_step, trainer.current_epoch, batch["inputs"]))


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        # Five batches per pass, two per step: the third step has the last batch of one pass and the first of the next.
        ({"max_steps": 6, "accumulate_grad_batches": 2}, [(step, 0) for step in range(6) for _ in range(2)]),
        ({"max_steps": -1, "max_epochs": 2}, [(i, i // 5) for i in range(10)]),
    ],
)
def test_with_max_steps_a_run_is_one_epoch_and_with_max_epochs_an_epoch_is_a_pass(
    options: dict[str, int], taken: list[tuple[int, int]], tmp_path: Path
) -> None:
    watch, data = Taken(), small.data(tmp_path)
    small.trainer(tmp_path, watch, **options).fit(small.module(), datamodule=data)
    expected = TrainingBatches(data.split("train"), 8, 0)
    assert [each[:2] for each in watch.taken] == taken
    assert all(torch.equal(seen, expected[i]["inputs"]) for i, (*_, seen) in enumerate(watch.taken))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_val": -1}, "n_val must be a positive integer, got -1"),
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"n_train": 4, "batch_size": 8}, "n_train must hold a batch, got n_train=4 for batch_size=8"),
        ({"seed": -1}, "seed must lie in 0..9223372036854775807, got -1"),
    ],
)
def test_invalid_sizes_are_refused(tmp_path: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.data(tmp_path, **options)


def test_test_lengths_have_their_own_examples_in_batches_of_similar_size(tmp_path: Path) -> None:
    task = create_task("needle", distance=7)
    data = small.data(tmp_path, task, n_test=40, cache=True, test_lengths=[64, 10, 16, 64])
    assert list(data.at_lengths) == [10, 16, 64]
    data.setup("test")
    # 40 examples at 8 positions, fewer at 10 and 16, the minimum at 64
    assert kept(tmp_path / "cache/needle") == ["test-16", "test-20", "test-32", "test-40"]
    for length, loader in data.length_batches():
        batches = [batch["inputs"] for batch in loader]
        expected = sample_split(task.at_length(length), "test", {10: 32, 16: 20, 64: 16}[length], 0)["inputs"]
        assert np.array_equal(torch.cat(batches).numpy(), expected)
        assert len(batches[0]) == {10: 6, 16: 4, 64: 1}[length]
    alone = small.data(tmp_path, task, n_test=5, batch_size=1, test_lengths=[64])
    assert [len(batch["inputs"]) for _, loader in alone.length_batches() for batch in loader] == [1] * 16


class Alphabet(small.Echo):
    """Its vocabulary grows with its length."""

    name = "alphabet"

    @property
    def spec(self) -> TaskSpec:
        return replace(super().spec, vocab_size=self.seq_len)


@pytest.mark.parametrize(
    ("task", "lengths", "message"),
    [
        (create_task("needle", distance=7), [64, 7], "^needle: seq_len must be > distance, got seq_len=7, distance=7$"),
        (create_task("needle", distance=7), [0], "^test_lengths must be positive integers, got 0$"),
        (Alphabet(), [16], "^alphabet: vocab_size is 16 at length 16, but 8 in training$"),
    ],
)
def test_lengths_that_cannot_be_tested_are_refused(tmp_path: Path, task: Any, lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.data(tmp_path, task, test_lengths=lengths)
