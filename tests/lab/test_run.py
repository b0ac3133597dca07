"""Files of a run, and its scores: metrics on disk, damage, curves, the order of scores, and `lab.train`."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lab
from lab.config import Command
from lab.run.files import CONFIG, ENVIRONMENT, METRICS
from lab.run.folder import RunFolder
from lab.run.metrics import at_lengths, by_facts, by_heading, number_at, state_of
from lab.run.record import read_metrics
from lab.run.score import SCORES, first_at, has_converged, merit, merits, score_of
from tests import refused
from zoo.errors import UsageError

FOUND: dict[str, Any] = {
    "test": {
        "accuracy": 0.75,
        "loss": 0.5,
        "by_distance": [{"at_most": 8, "accuracy": 0.9}, {"at_most": 16, "accuracy": 0.5}],
        "at_length": {"64": {"accuracy": 0.7}, "128": {"accuracy": None}},
        "by_segment": {"path=a/b": {"accuracy": 0.6}},
    },
    "val": {"accuracy": 0.7, "loss": 0.6},
    "floor_at_heads": {"1": 0.3},
    "params": 1000,
    "tokens_per_second": None,
}


def test_metrics_are_read_as_written_with_null_for_non_finite_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run", 0)
    folder.path.mkdir(parents=True)
    assert read_metrics(folder.path) is None
    strange = {"a": math.inf, "b": -math.inf, "c": math.nan}
    folder.write_metrics(FOUND | strange)
    assert json.loads((folder.path / METRICS).read_text()).items() >= (FOUND | dict.fromkeys(strange)).items()
    assert folder.metrics() == read_metrics(folder.path) == FOUND | dict.fromkeys(strange)


@pytest.mark.parametrize("name", [METRICS, CONFIG, ENVIRONMENT])
def test_a_flipped_bit_in_a_finished_runs_files_is_detected_or_harmless(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run", 0)
    folder.prepare({"lr": 0.1}, None, {})
    folder.write_metrics(FOUND)
    assert read_metrics(folder.path) == FOUND
    content = (folder.path / name).read_bytes()
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        (folder.path / name).write_bytes(flipped)
        if name == METRICS:
            with contextlib.suppress(ValueError):
                found = read_metrics(folder.path)
                assert found is not None
                assert {key: found[key] for key in FOUND} == FOUND
        else:
            with pytest.raises(ValueError, match=f"^{name} is damaged"):
                read_metrics(folder.path)


def test_scores_are_found_in_nested_metrics() -> None:
    assert number_at(FOUND, "test", "at_length", "64", "accuracy") == 0.7
    assert [number_at(FOUND, *path) for path in (("test", "r2"), ("train", "loss"), ("params", "x"))] == [None] * 3
    assert at_lengths(FOUND, "accuracy") == {64: 0.7}
    assert at_lengths(FOUND, "perplexity") == at_lengths({}, "accuracy") == {}
    assert by_facts(FOUND) == {"distance": {8: 0.9, 16: 0.5}}
    assert by_facts(FOUND, "relative_squared_error") == {}
    headings = by_heading(FOUND)
    assert (headings["test/by_distance/16/accuracy"], headings["floor_at_heads/1"]) == (0.5, 0.3)
    states = [state_of(each) for each in (FOUND, {"test": {"loss": None}}, {"val": {"loss": 1.0}}, None)]
    assert states == ["tested", "tested", "trained", "unfinished"]  # the second was tested on no batch


@pytest.mark.parametrize(
    ("score", "values", "goal", "first", "converged"),
    [
        ("accuracy", (0.1, 0.5, 0.95, 0.94), 0.9, 300, True),  # no gain in the last quarter
        ("accuracy", (0.1, 0.5, 0.6, 0.62), 0.9, None, False),
        ("relative_squared_error", (0.9, 0.5, 0.09, 0.085), 0.1, 300, True),
        ("accuracy", (0.3,), 0.9, None, False),  # a single validation shows no gain
        ("loss", (2.0, 1.0), None, None, None),
        ("accuracy", (), 0.9, None, None),
    ],
)
def test_first_at_and_has_converged(
    score: str, values: Sequence[float], goal: float | None, first: int | None, converged: bool | None
) -> None:
    points = dict(zip(range(100, 500, 100), values, strict=False))
    assert (first_at(points, score, goal), has_converged(points, score)) == (first, converged)


TEXT = {"val": {"loss": 1.2, "accuracy": 0.5, "perplexity": 3.3}, "test": {"loss": 1.1, "accuracy": 0.6}}


def test_runs_are_judged_by_the_first_score_that_any_of_them_has() -> None:
    assert (score_of([TEXT], "test", "val"), score_of([TEXT], "test")) == ("perplexity", "accuracy")
    assert score_of([{"val": {"accuracy": None, "loss": 1.0}}, FOUND], "val") == "accuracy"
    assert score_of([{"test": {"loss": None}}], "test") == score_of([], "val") == "loss"


def test_scores_are_ordered_by_merit_then_loss() -> None:
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


def test_a_run_resumes_only_with_its_original_data(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "task/mixer", 0)
    folder.check_data({"content": "1"})  # a new run accepts any data
    folder.prepare({}, None, {"content": "1"})
    folder.check_data({"content": "1"})
    with pytest.raises(UsageError, match="other data"):
        folder.check_data({"content": "2"})
    (folder.path / ENVIRONMENT).write_bytes(b"{")
    with pytest.raises(UsageError, match=r"environment\.json is damaged"):
        folder.check_data({"content": "1"})


def test_lab_train_runs_like_the_command(tmp_path: Path) -> None:
    task = {"name": "mqar", "seq_len": 16, "n_pairs": 2, "vocab_size": 32}
    options = {"d_model": 16, "run_dir": tmp_path, "figures_every": 0, "seed": 3, "no_test": True}
    run = lab.train(
        {"name": "attention", "n_heads": 2}, task, trainer={"max_steps": 4, "accelerator": "cpu"}, **options
    )
    assert (run.mixer, run.seed, run.state, run.config["mixer"]["n_heads"]) == ("attention", 3, "trained", 2)
    assert run.model(torch.ones(1, 5, dtype=torch.long)).shape == (1, 5, 32)
    table = lab.read_runs(tmp_path).to_pandas()
    assert table[["mixer", "seed", "mixer.n_heads"]].to_numpy().tolist() == [["attention", 3, 2]]
    assert table["val/accuracy"][0] == run.metrics["val"]["accuracy"]
    with refused("unknown mixer 'attentoin' .*"):
        lab.train("attentoin")
    with refused("trainer.callbacks: expected numbers, text, lists or mappings, got <object"):
        lab.train(trainer={"callbacks": [object()]})


def test_lab_train_takes_options_as_files_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Command] = []
    monkeypatch.setattr("lab.training.run", seen.append)
    monkeypatch.setattr("lab.training.read_run", lambda *_: None)
    (tmp_path / "mine.yaml").write_text("mixer: {name: lstm, d_inner: 8}\ntask: needle\n", encoding="utf-8")
    lab.train(config=tmp_path / "mine.yaml")
    lab.train(task="ssm_teacher")  # its recipe sets the mixer
    lab.train(seed=np.int64(3))
    assert seen[2].config["seed"] == 3
    scaling, hybrid = {"rope_type": "linear", "factor": 2.0}, {"name": "hybrid", "attention": {"n_heads": 2}}
    lab.train({"name": "attention", "rope_scaling": scaling}, trainer={"max_time": {"minutes": 5}})
    lab.train(hybrid, task={"name": "mqar", "mixture": [{"seq_len": 32}, {"seq_len": 64}]})
    assert seen[3].config["mixer"]["rope_scaling"] == scaling
    assert seen[3].config["trainer"]["max_time"] == {"minutes": 5}
    assert seen[4].config["mixer"]["attention"]["n_heads"] == 2
    names = [(command.config["mixer"]["name"], command.config["task"]["name"]) for command in seen]
    assert names[:3] == [("lstm", "needle"), ("factorized", "ssm_teacher"), ("hybrid", "mqar")]
    assert seen[0].config["mixer"]["d_inner"] == 8
