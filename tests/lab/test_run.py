"""A run's metrics on disk: nested, and read back; what a task is judged by, the same everywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lab.run.files import METRICS
from lab.run.folder import RunFolder
from lab.run.metrics import at_lengths, by_facts, is_tested, number_at, state_of
from lab.run.record import read_metrics
from lab.score import SCORES, merit, merits, score_of
from zoo.errors import UsageError

FOUND = {
    "test": {
        "accuracy": 0.75,
        "loss": 0.5,
        "by_distance": [{"at_most": 8, "accuracy": 0.9}, {"at_most": 16, "accuracy": 0.5}],
        "by_n_pairs": [{"at_most": 4, "accuracy": 1.0}],
        "at_length": {"64": {"accuracy": 0.7}, "128": {"accuracy": None}},
        "by_segment": {"seq_len=64,n_pairs=4": {"accuracy": 0.8, "loss": 0.4}, "path=a/b": {"accuracy": 0.6}},
    },
    "val": {"accuracy": 0.7, "loss": 0.6},
    "chance": 0.125,
    "floor_at_heads": {"1": 0.3, "2": 0.0},
    "params": 1000,
    "state_bytes": 512,
    "tokens_per_second": None,
    "step": 40,
    "seconds": 3.0,
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run", 0)
    folder.path.mkdir(parents=True)
    folder.write_metrics(FOUND)
    assert json.loads((folder.path / METRICS).read_text(encoding="utf-8")) == FOUND
    assert folder.metrics() == read_metrics(folder.path) == FOUND


def test_what_is_asked_of_metrics() -> None:
    assert number_at(FOUND, "test", "accuracy") == 0.75
    assert number_at(FOUND, "params") == 1000
    assert number_at(FOUND, "test", "at_length", "64", "accuracy") == 0.7
    assert [number_at(FOUND, *path) for path in (("test", "r2"), ("train", "loss"), ("params", "x"))] == [None] * 3
    assert at_lengths(FOUND, "accuracy") == {64: 0.7}
    assert at_lengths(FOUND, "perplexity") == at_lengths({}, "accuracy") == {}
    assert by_facts(FOUND) == {"distance": {8: 0.9, 16: 0.5}, "n_pairs": {4: 1.0}}
    assert by_facts(FOUND, "relative_squared_error") == {}


def test_states() -> None:
    assert [state_of(each) for each in (FOUND, {"val": {"loss": 1.0}}, None)] == ["tested", "trained", "unfinished"]
    assert is_tested({"test": {"loss": None}})  # tested on no batch


def test_metrics_that_are_not_there_and_those_that_are_not_ours(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) is None
    for text, said in (("{", "cannot be read"), ("[1]", "is not one of train.py"), ('{"epochs": 3}', "has no params")):
        (tmp_path / METRICS).write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"^metrics\.json .*{said}"):
            read_metrics(tmp_path)


# Scores

TEXT = {"val": {"loss": 1.2, "accuracy": 0.5, "perplexity": 3.3}, "test": {"loss": 1.1, "accuracy": 0.6}}


@pytest.mark.parametrize(
    ("runs", "splits", "score"),
    [
        ([TEXT], ("test", "val"), "perplexity"),
        ([TEXT], ("test",), "accuracy"),
        ([{"val": {"accuracy": None, "loss": 1.0}}, FOUND], ("val",), "accuracy"),
        (
            [{"test": {"loss": 0.1, "relative_squared_error": 0.2, "accuracy": None}}],
            ("test", "val"),
            "relative_squared_error",
        ),
        ([{"test": {"loss": None}}], ("test",), "loss"),
        ([], ("val",), "loss"),
    ],
)
def test_what_runs_are_judged_by(runs: list[Any], splits: tuple[str, ...], score: str) -> None:
    assert score_of(runs, *splits) == score


def test_which_result_is_better() -> None:
    better = {
        "perplexity": (2.0, 3.0),
        "accuracy": (0.9, 0.8),
        "accuracy_macro": (0.7, 0.6),
        "relative_squared_error": (0.1, 0.2),
        "loss": (1.0, 2.0),
    }
    assert better.keys() == SCORES.keys()
    for score, (good, bad) in better.items():
        assert merit(score, good) > merit(score, bad) > merit(score, None) == -math.inf
    equal = [{"val": {"accuracy": 0.9, "loss": loss}} for loss in (0.3, 0.2, 0.4)]
    assert max(equal, key=lambda metrics: merits(metrics, "accuracy", "val")) is equal[1]


def test_an_option_that_came_later_and_is_not_given_leaves_a_run_what_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "parity/lstm", 0)
    folder.path.mkdir(parents=True)
    (folder.path / "config.yaml").write_text("task: {name: parity}\nlr: 0.1\n", encoding="utf-8")
    config: dict[str, Any] = {"task": {"name": "parity"}, "lr": 0.1}
    folder.check_config(config | {"later": None})
    with pytest.raises(UsageError, match="later is None there, 2 here"):
        folder.check_config(config | {"later": 2})


def test_a_run_goes_on_only_with_the_data_that_it_began_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "task/mixer", 0)
    folder.check_data({"content": "1"})  # not begun
    folder.prepare({}, None, {"content": "1"})
    folder.check_data({"content": "1"})
    with pytest.raises(UsageError, match="was begun with other data"):
        folder.check_data({"content": "2"})
