"""Mixtures of task shapes: their segments, the order of batches, splits, and scores per segment."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import create_task, task_class
from tasks.data.batches import FreshBatches, MixedBatches
from tasks.data.mixture import Segment, apportion, create_segments, longest
from tasks.datamodule import TaskDataModule
from tasks.spec import IGNORED, TaskSpec
from tests import refused
from tests.training import small
from tests.training.test_datamodule import mixed, rows
from zoo.training import scores_apart

PAIRS = [{"seq_len": 16, "n_pairs": 2, "weight": 3}, {"seq_len": 32}]


def segments(name: str, mixture: Any, tested: Any = None, **options: Any) -> list[Segment]:
    return create_segments(task_class(name), options, mixture, tested)


def data(folder: Path, name: str = "mqar", **options: Any) -> TaskDataModule:
    sizes = {"n_train": 40, "n_val": 8, "n_test": 6, "batch_size": 4, "cache_dir": folder}
    return TaskDataModule({"name": name}, **(sizes | options))


def test_a_segment_is_the_task_with_other_options() -> None:
    found = segments("mqar", PAIRS, [{"n_pairs": 8}], vocab_size=64, seq_len=48)
    assert [each.name for each in found] == ["seq_len=16,n_pairs=2", "seq_len=32,n_pairs=4", "seq_len=48,n_pairs=8"]
    assert [each.share for each in found] == [0.75, 0.25, 0]
    assert found[0].task.options() == create_task("mqar", vocab_size=64, seq_len=16, n_pairs=2).options()
    assert longest(found) is found[1].task


def test_the_seed_of_a_segment_does_not_depend_on_other_segments() -> None:
    first, second = segments("mqar", PAIRS)
    assert len({first.seed(0), second.seed(0), first.seed(1), second.seed(1), 0, 1}) == 6
    _, *moved = segments("mqar", [{"n_pairs": 1}, PAIRS[1], PAIRS[0]])
    assert [each.seed(5) for each in moved] == [second.seed(5), first.seed(5)]
    (tested,) = segments("mqar", None, [{"seq_len": 32}])
    assert (tested.seed(5), tested.share) == (second.seed(5), 0)


@settings(max_examples=50)
@given(st.integers(1, 10_000), st.lists(st.integers(1, 100), min_size=1, max_size=9))
def test_apportion_distributes_all_examples_by_weight(n: int, weights: list[int]) -> None:
    parts = apportion(n, [weight / sum(weights) for weight in weights])
    assert sum(parts) == n
    assert all(abs(part - n * weight / sum(weights)) < 1 for part, weight in zip(parts, weights, strict=True))
    total = sum(weights)
    assert apportion(total, [weight / total for weight in weights]) == weights


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mixture": []}, "mixture must contain at least one segment, such as {seq_len: 128}, got []"),
    ({"mixture": [{"weight": "x"}]}, "mixture, segment 1: weight must be a positive number, got 'x'"),
    (
        {"test_segments": [{"seq_len": 32, "weight": 2}]},
        "test_segments, segment 1: takes no weight, because it is only tested; got weight=2",
    ),
    ({"mixture": [3]}, "mixture, segment 1: must be a mapping of options, such as {vocab_size: ...}, got 3"),
    ({"mixture": [{"pairs": 3}]}, "mixture, segment 1: unknown mqar option 'pairs' (did you mean 'n_pairs'?); choose "),
    ({"mixture": [{"seq_len": 31}]}, "mixture, segment 1: mqar: seq_len must be even, got seq_len=31"),
    (
        {"mixture": [{}, {"vocab_size": 128}]},
        "mqar: vocab_size is 128 in mixture, segment 2, but 256 in mixture, segment 1",
    ),
    (
        {"mixture": [{}, {"seq_len": 32}], "test_segments": [{"seq_len": 32}]},
        "mqar: test_segments, segment 1 is the same shape as mixture, segment 2",
    ),
    ({"test_segments": [{}]}, "test_segments, segment 1: must override an option, such as {vocab_size: ...}, got {}"),
    (
        {"name": "ssm_teacher", "test_segments": [{"seq_len": 64}]},
        "ssm_teacher: period is 64 in test_segments, segment 1, but 32 in training",
    ),
    (
        {"mixture": PAIRS, "test_lengths": [32]},
        "test_lengths need a task of one shape; with a mixture, give shapes in test_segments",
    ),
    (
        {"mixture": [{"seq_len": 16, "weight": 50}, {"seq_len": 32}]},
        "n_train must hold a batch, got n_train=1 of seq_len=32 for batch_size=4",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_an_invalid_mixture_is_a_one_line_error(options: Any, message: str, tmp_path: Path) -> None:
    with refused(f"^{re.escape(message)}"):
        data(tmp_path, **options)


def test_the_tasks_own_shape_may_be_invalid_if_every_segment_overrides_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"4 \* n_pairs must be <= seq_len"):
        create_task("mqar", n_pairs=20)
    own = {"name": "mqar", "n_pairs": 20}
    mixed = TaskDataModule(own, 40, 8, 6, 4, cache_dir=tmp_path, mixture=[{"seq_len": 80}, {"seq_len": 96}])
    assert mixed.spec.seq_len == 96


def test_an_epoch_has_the_batches_of_every_segment_in_a_new_order() -> None:
    batches = mixed(4, 3, sizes=(20, 9))
    assert len(batches) == 5 + 2
    epochs = [[rows(batches[7 * epoch + i]) for i in range(7)] for epoch in range(6)]
    turns = [[batch[0] // 1000 for batch in epoch] for epoch in epochs]
    assert all(sorted(turn) == [0] * 5 + [1] * 2 for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    for epoch in epochs:
        seen = list(chain(*epoch))
        assert len(set(seen)) == 28
        assert set(range(20)) < set(seen)
        assert all(len({row // 1000 for row in batch}) == 1 for batch in epoch)  # one segment per batch
    assert epochs[0] != epochs[1]


def test_fresh_mixtures_never_repeat_and_keep_the_shares(tmp_path: Path) -> None:
    batches = data(
        tmp_path, "needle", mixture=[{"distance": 12, "seq_len": 20, "weight": 3}, {"distance": 9}], fresh=True
    )
    loader = batches.train_dataloader()
    assert isinstance(loader, MixedBatches)
    assert all(isinstance(each, FreshBatches) for each in loader.segments)
    drawn = [loader[index]["inputs"] for index in range(3 * len(loader))]
    shapes = [batch.shape[1] for batch in drawn]
    assert {length: shapes.count(length) for length in set(shapes)} == {20: 21, 10: 6}  # 30 and 10 rows per epoch
    for length in (20, 10):
        seen = torch.cat([batch for batch in drawn if batch.shape[1] == length])
        assert len(seen.unique(dim=0)) == len(seen)


def test_splits_are_divided_by_weight_but_every_segment_has_a_whole_test_split(tmp_path: Path) -> None:
    mixed = data(tmp_path, mixture=PAIRS, test_segments=[{"seq_len": 48}])
    mixed.setup("fit")
    mixed.setup("test")
    first, second = (each.name for each in mixed.segments[:2])
    for split, sizes in (("train", [30, 10]), ("test", [6, 6])):
        assert [len(mixed.split(split, name)["inputs"]) for name in (first, second)] == sizes
    assert [len(batch["inputs"]) for batch in mixed.val_dataloader()] == [6, 2]
    assert sum(len(batch["inputs"]) for batch in mixed.test_dataloader()) == 12  # without segments that are only tested
    assert [name for name, _ in mixed.segment_batches()] == [each.name for each in mixed.segments]
    with pytest.raises(ValueError, match=r"^no segment ''; choose from: seq_len=16,n_pairs=2, seq_len=32,n_pairs=4, "):
        mixed.split("train")


class Half(small.Echo):
    """Its chance level grows with its length."""

    name = "half"

    @property
    def spec(self) -> TaskSpec:
        return replace(super().spec, chance=self.seq_len / 16)


def test_the_chance_of_a_mixture_is_the_mean_over_its_labels(tmp_path: Path) -> None:
    mixed = small.data(tmp_path, Half(), mixture=[{}, {"seq_len": 12}])
    assert mixed.chance == pytest.approx((4 * 0.5 + 8 * 0.75) / 12)
    assert small.data(tmp_path, Half(), test_segments=[{"seq_len": 12}]).chance == 0.5
    # Ninths at many positions whose number varies, an eighth at one.
    recall = data(tmp_path, "in_context_recall", mixture=[{"vocab_size": 17, "final_query": each} for each in (0, 1)])
    many, one = ((recall.split("test", each.name)["labels"] != IGNORED).sum() for each in recall.segments)
    assert one == 6 < many / 9
    assert recall.chance == pytest.approx((many / 9 + one / 8) / (many + one))


def test_the_scores_of_a_segment_are_those_of_its_task_alone(tmp_path: Path) -> None:
    mixture = [{}, {"seq_len": 12}]
    mixed, trainer, module = small.data(tmp_path, mixture=mixture), small.trainer(tmp_path, logger=True), small.module()
    (whole,) = trainer.test(module, datamodule=mixed, verbose=False)
    results, loggers = module.results, trainer.loggers
    scores = scores_apart(trainer, module, mixed.segment_batches())
    assert (module.results, trainer.loggers) == (results, loggers)
    assert set(scores["seq_len=8"]) == {"loss", "accuracy", "accuracy_macro", "sequence_accuracy"}
    for segment in mixed.segments:
        alone = small.data(tmp_path, segment.task, seed=segment.seed(0))
        (found,) = small.trainer(tmp_path).test(module, datamodule=alone, verbose=False)
        assert scores[segment.name]["accuracy"] == pytest.approx(found["test/accuracy"])
        assert scores[segment.name]["loss"] == pytest.approx(found["test/loss"])
    pooled = (4 * (scores["seq_len=8"]["accuracy"] or 0) + 8 * (scores["seq_len=12"]["accuracy"] or 0)) / 12
    assert whole["test/accuracy"] == pytest.approx(pooled)
