"""Runs side by side: what is read, how seeds are put together, what is written, and the page in a real browser."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

from lab.plain import flatten, nested
from lab.run.files import EVENTS
from lab.run.folder import RunFolder
from lab.run.record import read_curves
from lab.score import fact_text
from lab.view import Run, group_runs, read_runs
from lab.view.charts import Series, charts_of, comparison_figure
from lab.view.command import write_comparison
from lab.view.page import as_page
from lab.view.table import columns_of, table_of
from lab.view.tensorboard import CONFIGURATION, lay_out, show_in_tensorboard
from tests import ROOT, python
from tests.lab.runs import nested_metrics
from zoo import __main__ as command
from zoo.report.numbers import NOTHING
from zoo.report.plots import as_png

SIZES = {"chance": 0.125, "params": 1000, "state_bytes": 512, "tokens_per_second": 1e4, "step": 40, "seconds": 3.0}
ERROR = {"test/accuracy": None, "val/accuracy": None, "test/relative_squared_error": 1e-3}
LABELS = ("attention n_heads=1", "attention n_heads=2", "lstm")


def write_run(
    run_dir: Path,
    name: str = "mqar/attention",
    seed: int = 0,
    accuracy: float | None = 0.5,
    options: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    steps: int = 4,
) -> Path:
    """A run as train.py leaves it, made by its own writer; unfinished where accuracy is None."""
    task, mixer = name.split("/")
    folder = RunFolder(run_dir, name, seed)
    config = {
        "mixer": {"name": mixer.partition("-")[0]},
        "task": {"name": task.partition("-")[0], "n_train": 100},
        "d_model": 64,
        "lr": 0.001,
        "trainer": {"max_steps": 40, "enable_progress_bar": True},
        "seed": seed,
    }
    config = nested(dict(flatten(config)) | dict(options or {}))
    folder.path.mkdir(parents=True)
    (folder.path / "config.yaml").write_text(yaml.safe_dump(config))
    with SummaryWriter(folder.path) as writer:
        for step in range(10, 10 * steps + 10, 10):
            writer.add_scalar("val/accuracy", step / 100 + seed / 10, step)
            writer.add_scalar("train/loss", 1 / step, step)
    if accuracy is not None:
        measured = {"test/accuracy": accuracy, "test/loss": 1 - accuracy, "val/accuracy": accuracy, "val/loss": 0.3}
        folder.write_metrics(nested_metrics(measured | SIZES | dict(metrics or {})))
    return folder.path


def lines(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> tuple[str, str]:
    """What `zoo compare` prints, with an expected exit status."""
    assert command.main(["compare", *map(str, argv)]) == status
    out, err = capsys.readouterr()
    return out, err


# Reading


def test_runs_are_read_at_any_depth_with_what_they_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "sweep" / "small", seed=3, accuracy=0.75, metrics={"test/perplexity": float("inf")})
    (run,) = read_runs(tmp_path)
    assert (run.folder, run.task, run.mixer, run.seed, run.state) == (folder, "mqar", "attention", 3, "tested")
    assert run.metrics["test"]["accuracy"] == 0.75
    assert run.metrics["test"]["perplexity"] is None
    assert run.step == 40
    assert run.curves["val/accuracy"] == [(step, pytest.approx(step / 100 + 0.3)) for step in (10, 20, 30, 40)]
    assert run.options["d_model"] == 64
    assert "seed" not in run.options
    assert "trainer.enable_progress_bar" not in run.options
    assert [each.folder for each in read_runs(folder)] == [folder]


def test_an_unfinished_run_has_its_last_logged_values(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=None, steps=2)
    (run,) = read_runs(tmp_path)
    assert (run.state, run.step) == ("unfinished", 20)
    assert run.metrics == {"val": {"accuracy": pytest.approx(0.2)}, "train": {"loss": pytest.approx(1 / 20)}}


def test_a_run_that_has_logged_nothing_yet_is_there(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=None, steps=0)
    (run,) = read_runs(tmp_path)
    assert (run.state, run.step, run.metrics) == ("unfinished", 0, {})
    (group,) = group_runs([run])
    assert group.rows[0].remark == "validation; seed 0 unfinished at step 0 of 40"


def test_an_option_that_came_later_and_is_none_makes_no_other_configuration() -> None:
    config: dict[str, Any] = {"mixer": {"name": "lstm"}, "task": {"name": "parity"}, "lr": 0.1}
    metrics: dict[str, Any] = {"test": {"accuracy": 1.0}}
    later: list[dict[str, Any]] = [{}, {"later": None}, {"later": 2}]
    runs = [Run(Path(str(i)), config | each | {"seed": i}, metrics, "tested") for i, each in enumerate(later)]
    (group,) = group_runs(runs)
    assert {row.label: [run.seed for run in row.runs] for row in group.rows} == {"lstm": [0, 1], "lstm later=2": [2]}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "metrics.json").write_text('{"test": {"acc'), "metrics.json cannot be read"),
        (lambda folder: (folder / "metrics.json").write_text("[1, 2]"), "metrics.json is not one of train.py"),
        (lambda folder: (folder / "metrics.json").write_text('{"epochs": 3}'), "it has no params"),
        (lambda folder: (folder / "config.yaml").unlink(), "no config.yaml"),
        (lambda folder: (folder / "config.yaml").write_text("a: [1"), "config.yaml cannot be read"),
        (lambda folder: (folder / "config.yaml").write_bytes(b"\xff\xfe\x00"), "config.yaml cannot be read"),
        (lambda folder: (folder / "config.yaml").write_text("model: gpt"), "it has no mixer.name"),
        (lambda folder: (folder / "config.yaml").write_text("[]"), "it has no mixer.name"),
    ],
)
def test_a_broken_run_is_named_and_the_others_are_read(
    spoil: Any, says: str, tmp_path: Path, logged: list[str]
) -> None:
    whole = write_run(tmp_path, seed=0)
    broken = write_run(tmp_path, seed=1)
    spoil(broken)
    assert [run.folder for run in read_runs(tmp_path)] == [whole]
    (message,) = logged
    assert message.startswith(f"skipped {broken}: ")
    assert says in message
    assert "\n" not in message


def test_events_that_cannot_be_read_cost_the_curves_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (events,) = folder.glob("events.out.tfevents.*")
    events.write_bytes(b"no events of TensorBoard, just text that is long enough to hold a header")
    (run,) = read_runs(tmp_path)
    assert run.curves == {}
    assert run.metrics["test"]["accuracy"] == 0.5


def test_of_a_step_that_was_logged_twice_the_later_value_counts(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        for step, value in ((20, 0.25), (10, 0.125), (20, 0.5)):
            writer.add_scalar("val/accuracy", value, step)
    assert read_curves(tmp_path) == {"val/accuracy": [(10, 0.125), (20, 0.5)]}


def test_a_run_that_went_back_is_read_without_a_word(tmp_path: Path) -> None:
    for at, (start, value) in enumerate(((10, 0.25), (20, 0.5))):
        with SummaryWriter(tmp_path, purge_step=start if at else None, filename_suffix=f".{at}") as writer:
            for step in range(start, 40, 10):
                writer.add_scalar("val/accuracy", value, step)
        time.sleep(1.1)  # files are read in the order of the second in their name
    said, logger = BufferingHandler(100), logging.getLogger("tensorboard")
    logger.addHandler(said)
    level = logger.level
    assert read_curves(tmp_path) == {"val/accuracy": [(10, 0.25), (20, 0.5), (30, 0.5)]}
    logger.removeHandler(said)
    assert said.buffer == []  # TensorBoard takes it for "a TensorFlow restart"
    assert logger.level == level


def test_what_is_foreign_is_named_once_at_its_top(tmp_path: Path, logged: list[str]) -> None:
    write_run(tmp_path)
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "deep" / "idea.txt").write_text("more heads")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "metrics.json").write_text("{}")
    (tmp_path / "measure").mkdir()
    (tmp_path / "measure" / "measure.json").write_text("{}")
    (tmp_path / "again").symlink_to(tmp_path / "mqar", target_is_directory=True)
    assert len(read_runs(tmp_path)) == 1
    assert logged == [f"skipped {tmp_path / 'notes'}: no run of train.py in it"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: None, "no folder"),
        (lambda folder: folder.write_text("a file"), "no folder"),
        (lambda folder: folder.mkdir(), "no run of train.py that can be read in"),
        (lambda folder: (write_run(folder) / "config.yaml").unlink(), ": 1 skipped"),
    ],
)
def test_nothing_to_compare_is_one_line(
    make: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "runs")
    out, err = lines(capsys, tmp_path / "runs", status=2)
    assert out == ""
    assert err.startswith("zoo: error: ")
    assert err.count("\n") == 1
    assert says in err


# Seeds together


def test_seeds_are_put_together_and_the_best_is_marked(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.5, 0.7, 0.9)):
        write_run(tmp_path, "mqar/attention", seed, accuracy)
    write_run(tmp_path, "mqar/lstm", 0, 0.6)
    (group,) = group_runs(read_runs(tmp_path))
    attention, lstm = group.rows
    assert (attention.label, lstm.label, group.title, group.chance) == ("attention", "lstm", "mqar", 0.125)
    assert attention.mean("test", "accuracy") == pytest.approx(0.7)
    assert attention.spread == pytest.approx(0.2)  # of the sample: sqrt((0.04 + 0 + 0.04) / 2)
    assert lstm.spread is None
    assert attention.seeds == "3"
    assert group.best == {"attention"}
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table_of(group, 120))
    starred = [line.split()[0] for line in captured.get().splitlines() if " *" in line]
    assert (starred, captured.get().split("\n* ")[1].strip()) == (["attention"], "the best mean of the task.")


def test_of_errors_the_least_is_best(tmp_path: Path) -> None:
    for name, error in (("attention", 0.4), ("lstm", 0.1)):
        write_run(tmp_path, f"ssm_teacher/{name}", metrics=ERROR | {"test/relative_squared_error": error})
    (group,) = group_runs(read_runs(tmp_path))
    assert group.score == "relative_squared_error"
    assert group.best == {"lstm"} == {group.rows[0].label}


def test_text_is_judged_by_its_perplexity(tmp_path: Path) -> None:
    for name, perplexity, accuracy in (("attention", 9.0, 0.5), ("lstm", 4.0, 0.4)):
        write_run(tmp_path, f"text/{name}", accuracy=accuracy, metrics={"test/perplexity": perplexity})
    (group,) = group_runs(read_runs(tmp_path))
    assert group.score == "perplexity"
    assert group.best == {"lstm"}


@pytest.mark.parametrize("key", ["lr", "mixer.n_heads", "trainer.max_steps", "mixer.extra"])
def test_configurations_of_one_name_that_differ_stay_apart(key: str, tmp_path: Path) -> None:
    first = {} if key == "mixer.extra" else {key: 1}
    write_run(tmp_path / "a", options=first)
    write_run(tmp_path / "b", options={key: 2}, accuracy=0.9)
    (group,) = group_runs(read_runs(tmp_path))
    short = key.rpartition(".")[2]
    other = f"attention {short}=1" if first else "attention"
    assert [row.label for row in group.rows] == [f"attention {short}=2", other]


def test_options_that_come_with_another_are_not_named(tmp_path: Path) -> None:
    stacks = (["lstm", "lstm"], ["lstm", "conv", "conv"], ["gru"])
    for at, pattern in enumerate(stacks):
        inner = {"mixer.lstm.bias": True} if "lstm" in pattern else {}
        write_run(tmp_path, f"mqar/hybrid-{at}", options={"mixer.pattern": pattern, **inner})
    (group,) = group_runs(read_runs(tmp_path))
    assert {row.label for row in group.rows} == {f"hybrid pattern={p}" for p in ("2×lstm", "lstm+2×conv", "gru")}


def test_what_differs_between_mixers_alone_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, "mqar/attention", options={"d_model": 32})
    write_run(tmp_path, "mqar/lstm")
    (group,) = group_runs(read_runs(tmp_path))
    assert [row.label for row in group.rows] == ["attention", "lstm"]
    assert group.unnamed == ("d_model",)


def test_tasks_of_other_shape_are_other_tasks(tmp_path: Path) -> None:
    write_run(tmp_path, "mqar/attention", options={"task.n_pairs": 4})
    write_run(tmp_path, "mqar-n_pairs8/attention", options={"task.n_pairs": 8})
    write_run(tmp_path, "mqar-n_pairs8-n_train9/attention", options={"task.n_pairs": 8, "task.n_train": 9})
    titles = {group.title: [row.label for row in group.rows] for group in group_runs(read_runs(tmp_path))}
    assert titles == {
        "mqar n_pairs=4": ["attention"],
        "mqar n_pairs=8": ["attention n_train=100", "attention n_train=9"],
    }


def test_the_same_run_twice_counts_once(tmp_path: Path, logged: list[str]) -> None:
    unfinished = write_run(tmp_path / "a", accuracy=None)
    finished = write_run(tmp_path / "b")
    (group,) = group_runs(read_runs(tmp_path))
    assert [run.folder for run in group.rows[0].runs] == [finished]
    assert f"left out {unfinished}: the same configuration and seed as {finished}" in logged[0]


def test_unfinished_runs_are_marked_and_never_best(tmp_path: Path) -> None:
    write_run(tmp_path, "mqar/attention", 0, 0.2)
    write_run(tmp_path, "mqar/attention", 1, None, steps=1)
    write_run(tmp_path, "mqar/lstm", 9, None)  # validation 1.3
    write_run(tmp_path, "mqar/rnn", 0, 0.1)
    (group,) = group_runs(read_runs(tmp_path))
    rows = {row.label: row for row in group.rows}
    assert list(rows) == ["attention", "rnn", "lstm"]
    assert group.best == {"attention"}
    assert rows["attention"].mean() == 0.2
    assert rows["attention"].mean("val", "accuracy") == 0.2  # what the unfinished one has logged so far does not count
    assert rows["attention"].seeds == "1 of 2"
    assert rows["attention"].remark == "seed 1 unfinished at step 10 of 40"
    assert (rows["lstm"].split, rows["lstm"].score) == ("val", "accuracy")
    assert rows["lstm"].remark == "validation; seed 9 unfinished at step 40 of 40"


def test_a_sweep_says_which_runs_were_trials_and_why_one_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picked = write_run(tmp_path / "tuned", "mqar/attention", options={"lr": 0.1})
    trial = write_run(tmp_path / "tuned", "mqar/attention-lr0.2", options={"lr": 0.2})
    failed = write_run(tmp_path / "tuned", "mqar/lstm", accuracy=None)
    entry = {"kind": "run", "state": "done", "params": 7, "state_bytes": 9, "message": ""}
    index = [
        entry | {"folder": str(picked.relative_to(tmp_path / "tuned"))},
        entry | {"folder": str(trial.relative_to(tmp_path / "tuned")), "kind": "trial"},
        entry | {"folder": str(failed.relative_to(tmp_path / "tuned")), "state": "failed", "message": "killed"},
    ]
    (tmp_path / "tuned" / "sweep.json").write_text(json.dumps({"runs": index}))
    assert [run.folder for run in read_runs(tmp_path)] == [picked, failed]
    assert [run.folder for run in read_runs(tmp_path, trials=True)] == [picked, trial, failed]
    lost = read_runs(tmp_path)[1]
    assert lost.metrics["params"] == 7
    out, err = lines(capsys, tmp_path, "--out", tmp_path / "out")
    assert "left out: trials of --tune (1)" in out
    assert "seed 0 failed: killed at step 40 of 40" in out
    assert "lr=0.2" not in out
    assert err == ""
    assert "lr=0.2" in lines(capsys, tmp_path, "--out", tmp_path / "out", "--trials")[0]


def test_the_window_of_learning_rates_is_shown_and_drawn(tmp_path: Path) -> None:
    rates = [(1e-3, 0.25, 0.2), (3.2e-3, 0.5, 0.8), (1e-2, 0.5, 0.9), (3.2e-2, 0.25, None)]
    window = {"score": "accuracy", "chance": 0.125, "octaves": 1.678, "at_least": True}
    window["rates"] = [{"lr": lr, "rung": rung, "score": score, "good": None} for lr, rung, score in rates]
    entries = []
    for seed in (0, 1):
        folder = write_run(tmp_path, "mqar/lstm", seed, 0.9, metrics={"steps_to_90": 20 + 40 * seed})
        entries.append({"folder": str(folder.relative_to(tmp_path)), "kind": "run", "state": "done", "window": window})
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": entries}))
    write_run(tmp_path, "mqar/gru")
    groups = group_runs(read_runs(tmp_path))
    tuned, other = groups[0].rows
    cells = {each.heading: (each.cell(tuned), each.cell(other)) for each in columns_of(groups[0])}
    assert cells["window (octaves)"] == ("≥ 1.7", "")
    assert cells["steps to 90 %"] == ("40", "–")
    (chart,) = [chart for chart in charts_of(groups[0]) if chart.kind == "rate"]
    (line,) = chart.series
    assert (line.mixer, line.x, line.y) == ("lstm", (1e-3, 3.2e-3, 1e-2), (0.2, 0.8, 0.9))
    assert (chart.chance, chart.log_x) == (0.125, True)


# What is written


def test_the_files_say_what_the_table_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, accuracy in enumerate((0.5, 0.7)):
        write_run(tmp_path / "runs", "mqar/attention", seed, accuracy, {"mixer.n_heads": 2})
    write_run(tmp_path / "runs", "mqar/attention-n_heads4", 0, 0.9, {"mixer.n_heads": 4})
    out, _ = lines(capsys, tmp_path / "runs")
    folder = tmp_path / "runs" / "compare"
    assert "0.6000 ± 0.14" in out
    assert "0.9000 *" in out
    page = (folder / "compare.md").read_text()
    assert "3 runs of 2 configurations: mqar." in page
    assert "| attention n_heads=4 | **0.9000** | 1 | 0.1250 | 1,000 | 512 | 10,000 | 0.2500 |" in page
    best, other = csv.DictReader((folder / "compare.csv").read_text().splitlines())
    assert (best["configuration"], best["best"], best["option mixer.n_heads"]) == ("attention n_heads=4", "1", "4")
    assert (other["seeds"], other["runs"], other["best"]) == ("0 1", "2", "0")
    assert float(other["test/accuracy"]) == pytest.approx(0.6)
    assert float(other["test/loss standard deviation"]) == pytest.approx(0.02**0.5)
    assert "skipped" not in lines(capsys, tmp_path / "runs")[1]  # its own files are no foreign ones


def test_chance_is_in_the_score_and_steps_are_of_most_seeds() -> None:
    assert fact_text("chance", [0.25], "accuracy", 1) == "0.2500"
    assert fact_text("chance", [0.17], "perplexity", 1) == fact_text("chance", [], "accuracy", 1) == NOTHING
    assert fact_text("chance", [], "relative_squared_error", 1) == "1"  # the error of the mean
    assert fact_text("steps_to_90", [200, 300, 700], "accuracy", 5) == "300"
    assert fact_text("steps_to_90", [200, 300], "accuracy", 4) == NOTHING
    assert fact_text("params", [100, 101], "accuracy", 5) == "100"


@pytest.mark.parametrize("width", [140, 80, 72, 60, 40])
def test_at_any_width_configurations_and_scores_are_whole(width: int, tmp_path: Path) -> None:
    write_run(tmp_path, "mqar/attention-2", 0, 0.123, {"mixer.n_heads": 2, "trainer.max_steps": 40})
    write_run(tmp_path, "mqar/attention-4", 0, 0.625, {"mixer.n_heads": 4, "trainer.max_steps": 80})
    write_run(tmp_path, "mqar/attention-4", 1, None, {"mixer.n_heads": 4, "trainer.max_steps": 80}, steps=1)
    write_run(tmp_path, "mqar/gated_linear_attention", 0, 0.5)
    console = Console(width=width, record=True, file=io.StringIO())
    (group,) = group_runs(read_runs(tmp_path))
    console.print(table_of(group, width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for word in ("gated_linear_attention", "n_heads=2", "max_steps=40", "n_heads=4", "0.1230", "0.6250 *", "0.5000"):
        assert word in text
    numbers = ["seeds", "chance", "parameters", "tokens/s"]
    shown = [name for name in numbers if name in text.partition("─")[0]]
    assert shown == numbers[: {140: 4, 80: 3, 72: 2, 60: 1, 40: 0}[width]]
    assert ("unfinished" in text) == (width > 40)  # the remark outlasts the numbers
    assert ("Too narrow for" in " ".join(text.split())) == (width < 140)


def test_seeds_of_several_versions_of_the_code_are_said(tmp_path: Path) -> None:
    for seed, commit in enumerate(("a", "b", None)):
        folder = write_run(tmp_path, seed=seed)
        (folder / "environment.json").write_text(json.dumps({"git": commit}))
    (group,) = group_runs(read_runs(tmp_path))
    assert group.rows[0].remark == "runs of 2 versions of the code"


# The page and the charts


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks: recall by two mixers at lengths, one of them with several heads; regression by one."""
    run_dir = tmp_path_factory.mktemp("varied")
    for seed in (0, 1):
        for n_heads in (1, 2):
            lengths = {f"test/at_length/{n}/accuracy": 0.4 * n_heads + seed / 10 for n in (8, 32)}
            facts = {"test/by_distance": [{"at_most": n, "accuracy": 1 / n} for n in (1, 2)]}
            options = {"mixer.n_heads": n_heads, "task.seq_len": 16}
            more = lengths | facts | {"state_bytes": 512 * n_heads}
            write_run(run_dir, f"mqar/attention-n_heads{n_heads}", seed, 0.4 * n_heads, options, more)
        write_run(run_dir, "mqar/lstm", seed, 0.3, {"task.seq_len": 16})
    floors = {"floor_at_heads/1": 1e-1, "floor_at_heads/2": 1e-4, "floor_at_heads/3": 1e-31}
    for n_heads in (1, 2, 3):
        options = {"mixer.n_heads": n_heads}
        write_run(run_dir, f"ssm_teacher/factorized-n_heads{n_heads}", 0, 0.5, options, ERROR | floors)
    return run_dir


def test_an_error_is_drawn_by_the_facts_of_its_task(tmp_path: Path) -> None:
    split = {"test/by_pairs": [{"at_most": n, "relative_squared_error": 1 / n} for n in (1, 2, 4)]}
    write_run(tmp_path, "in_context_regression/lstm", 0, 0.5, {}, ERROR | split)
    (group,) = group_runs(read_runs(tmp_path))
    (chart,) = [chart for chart in charts_of(group) if chart.kind == "fact"]
    assert (chart.title, chart.x_label) == ("Relative squared error by pairs", "pairs, at most")
    assert (chart.y_label, chart.log_y) == ("test relative squared error", True)
    (line,) = chart.series
    assert (line.x, line.y) == ((1, 2, 4), (1, 0.5, 0.25))


def test_charts_hold_means_and_spreads_over_seeds(varied: Path) -> None:
    recall, regression = group_runs(read_runs(varied))
    charts = {chart.kind: chart for chart in charts_of(recall)}
    assert list(charts) == ["curve", "loss", "length", "fact", "state", "heads"]
    curve = charts["curve"].series[0]
    assert (curve.label, curve.x) == ("attention n_heads=1", (10, 20, 30, 40))
    assert curve.y == pytest.approx((0.15, 0.25, 0.35, 0.45))
    assert curve.spread == pytest.approx([0.1 / 2**0.5] * 4)
    length = charts["length"].series[1]
    assert (length.label, length.x) == ("attention n_heads=2", (8, 16, 32))
    assert length.y == pytest.approx((0.85, 0.8, 0.85))  # at its own length the test score
    assert [each.label for each in charts["length"].series] == ["attention n_heads=1", "attention n_heads=2"]
    state = {each.label: each.x for each in charts["state"].series}
    assert state == {"attention": (512, 1024), "lstm": (512,)}
    (heads,) = charts["heads"].series
    assert (heads.label, heads.x, heads.points) == ("attention", (1, 2), ("attention n_heads=1", "attention n_heads=2"))
    assert charts["heads"].chance == 0.125
    loss, bounded = charts_of(regression)  # nothing was logged of its score on validation
    assert (loss.kind, bounded.kind) == ("loss", "heads")
    assert bounded.floor == {1: 1e-1, 2: 1e-4}  # the third is zero but for roundoff
    assert not charts["heads"].floor


def test_a_curve_is_the_mean_over_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.0, 0.0, 3.0)):
        lengths = {f"test/at_length/{n}/accuracy": accuracy for n in (8, 16)}
        write_run(tmp_path, seed=seed, accuracy=accuracy, metrics=lengths)
    (group,) = group_runs(read_runs(tmp_path))
    (length,) = [chart for chart in charts_of(group) if chart.kind == "length"]
    assert [(each.x, each.y) for each in length.series] == [((8, 16), (1, 1))]  # the median were 0
    assert length.series[0].spread == pytest.approx([3**0.5] * 2)


def test_a_band_stays_on_a_logarithmic_axis() -> None:
    series = Series("lstm", "lstm", 0, (1, 2), (1.0, 1.0), (0.5, 2.0))
    assert series.band(log=False) == ([0.5, -1.0], [1.5, 3.0])
    assert series.band(log=True) == ([0.5, 0.1], [1.5, 3.0])
    assert series.bars(log=True) == ([0.5, 0.9], [0.5, 2.0])


def test_a_mixer_without_state_has_no_place_on_the_axis_of_states(tmp_path: Path) -> None:
    for name, state_bytes in (("identity", 0), ("gru", 256), ("lstm", 512)):
        write_run(tmp_path, f"mqar/{name}", metrics={"state_bytes": state_bytes})
    groups = group_runs(read_runs(tmp_path))
    (state,) = [chart for chart in charts_of(groups[0]) if chart.kind == "state"]
    assert state.ticks == {256: "256 B", 512: "512 B"}
    assert as_png(comparison_figure(groups)).startswith(b"\x89PNG")


def test_the_picture_draws_every_chart(varied: Path) -> None:
    figure = comparison_figure(group_runs(read_runs(varied)))
    drawn = [axes for axes in figure.axes if axes.lines]
    assert [len(axes.get_legend().get_texts()) for axes in drawn] == [4, 4, 3, 3, 2, 2]
    assert drawn[0].get_title() == "mqar: learning curves"
    assert as_png(figure).startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium that keeps what its console says and what it asks the network for."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    switches = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for switch in f"{switches} disable-component-update disable-sync window-size=1400,2400".split():
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


class Page:
    """compare.html in the browser, as a reader sees and uses it."""

    def __init__(self, browser: Any, file: Path, hash_: str = "") -> None:
        self.browser = browser
        browser.get("about:blank")  # a new hash alone would load nothing
        browser.get(file.as_uri() + hash_)
        charts = "Array.from(document.querySelectorAll('.chart'))"
        self.until(lambda: self.run(f"return {charts}.every((c) => c.data || c.closest('section').hidden)"))

    def until(self, holds: Callable[[], bool]) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.browser, 20).until(lambda _: holds())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def traces(self, keep: str = "true") -> list[int]:
        """Of each drawn chart, the number of traces for which `keep` holds."""
        of_each = f"c => c.data ? c.data.filter(trace => {keep}).length : 0"
        return self.run(f"return Array.from(document.querySelectorAll('.chart'), {of_each})")

    def drawn(self, *counts: int) -> None:
        """Wait until the charts show so many traces."""
        self.until(lambda: self.traces("trace.visible === true") == list(counts))

    def find(self, selector: str) -> list[Any]:
        from selenium.webdriver.common.by import By

        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def shown(self, selector: str) -> list[str]:
        return [each.text for each in self.find(selector) if each.is_displayed()]

    def rows(self) -> list[str]:
        return self.shown("tbody tr td:first-child")

    def click(self, selector: str) -> None:
        self.find(selector)[0].click()

    def choose(self, selector: str, value: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.find(selector)[0]).select_by_visible_text(value)

    def address(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.browser.current_url).fragment)


LINEAR = [f"factorized n_heads={n_heads}" for n_heads in (1, 2, 3)]
ALL_TRACES = (6, 3, 4, 2, 2, 1, 3, 2)
"""A line a series, and a band where seeds differ; a point's bar is no trace, a bound is one of no mixer."""


@pytest.fixture(scope="module")
def written(varied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_comparison(group_runs(read_runs(varied)), folder)
    return folder / "compare.html"


@pytest.mark.slow
def test_the_page_in_a_browser(written: Path, browser: Any) -> None:
    page = Page(browser, written)
    assert page.traces() == list(ALL_TRACES)
    assert page.shown("h2") == ["mqar", "ssm_teacher"]
    assert page.rows() == ["attention n_heads=2", "attention n_heads=1", "lstm", *LINEAR]

    page.click("input[value=attention]")
    page.drawn(2, 1, 0, 0, 1, 0, 3, 2)
    assert page.rows() == ["lstm", *LINEAR]
    page.click("[data-check=all]")
    page.drawn(*ALL_TRACES)
    page.choose("[name=task]", "ssm_teacher")
    assert page.shown("h2") == ["ssm_teacher"]

    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {urlsplit(url).scheme for url in asked} <= {"file", "data", "blob", "about"}
    assert asked


@pytest.mark.slow
def test_the_first_click_on_a_column_puts_the_best_on_top(written: Path, browser: Any) -> None:
    page = Page(browser, written, "#task=mqar")
    attention = ["attention n_heads=1", "attention n_heads=2"]
    page.click("th:nth-child(1) button")
    assert page.rows() == [*attention, "lstm"]
    page.click("th:nth-child(2) button")  # accuracy
    assert page.rows() == [*reversed(attention), "lstm"]
    page.click("th:nth-child(2) button")
    assert page.rows() == ["lstm", *attention]
    page.click("th:nth-child(6) button")  # bytes of state, of which less is better
    assert page.rows()[-1] == "attention n_heads=2"


def test_of_errors_the_first_click_puts_the_least_on_top(tmp_path: Path) -> None:
    first = {}
    for score in ("accuracy", "relative_squared_error"):
        metrics = {"test/accuracy": None, "val/accuracy": None, f"test/{score}": 0.5}
        write_run(tmp_path / score, metrics=metrics)
        (group,) = group_runs(read_runs(tmp_path / score))
        first[score] = [column.heading for column in columns_of(group) if column.more_first]
    assert first == {"accuracy": ["accuracy", "seeds", "tokens/s"], "relative_squared_error": ["seeds", "tokens/s"]}


@pytest.mark.slow
def test_what_is_chosen_is_kept_in_the_address(written: Path, browser: Any) -> None:
    page = Page(browser, written)
    page.choose("[data-option='mixer.n_heads']", "2")
    assert page.rows() == ["attention n_heads=2", "lstm", "factorized n_heads=2"]  # lstm has no heads
    page.click("input[value=lstm]")
    page.choose("[name=task]", "mqar")
    assert page.rows() == ["attention n_heads=2"]
    assert page.address() == {"task": ["mqar"], "without": ["lstm"], "mixer.n_heads": ["2"]}
    again = Page(browser, written, "#" + urlsplit(browser.current_url).fragment)
    assert again.rows() == ["attention n_heads=2"]
    again.drawn(2, 1, 2, 1, 1, 1, 0, 0)
    strange = Page(browser, written, "#task=other&without=gru&mixer.n_heads=77&hide=x")
    assert len(strange.rows()) == 6


@pytest.mark.slow
def test_a_click_on_a_legend_acts_on_all_charts(written: Path, browser: Any) -> None:
    page = Page(browser, written)
    item = "[data-figures='0'] [data-chart='0'] .legendtoggle"
    page.run("const d = document.querySelector(arguments[0]); for (const t of ['mousedown', 'mouseup'])"
             " d.dispatchEvent(new MouseEvent(t, {bubbles: true}));", item)  # fmt: skip
    # attention n_heads=1: its curves and bands; of lines over several configurations one is left.
    page.drawn(4, 2, 2, 1, 2, 1, 3, 2)
    assert page.address() == {"hide": ["attention n_heads=1"]}
    assert page.shown("tr.off td:first-child") == ["attention n_heads=1"]
    assert page.rows() == ["attention n_heads=2", "attention n_heads=1", "lstm", *LINEAR]


@pytest.mark.slow
def test_charts_out_of_sight_are_drawn_and_curves_are_read_together(written: Path, browser: Any) -> None:
    browser.set_window_size(1400, 300)
    try:
        page = Page(browser, written)  # waits for all of them
    finally:
        browser.set_window_size(1400, 2400)
    layouts = page.run("return Array.from(document.querySelectorAll('.chart'), (c) => c.layout)")
    assert [layout["hovermode"] for layout in layouts[:5]] == [*["x unified"] * 4, "closest"]
    notes = [note["text"] for note in layouts[2]["annotations"]]
    assert notes == ["chance", "trained at 16"]
    assert layouts[2]["annotations"][1]["x"] == pytest.approx(math.log10(16))  # of the logarithmic axis


@pytest.mark.slow
def test_the_page_is_dark_where_the_reader_s_others_are(written: Path, browser: Any) -> None:
    def look(scheme: str) -> list[str]:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        page = Page(browser, written)
        ground = "return getComputedStyle(document.body).backgroundColor"
        line = "return document.querySelector('.chart').data.at(-1).line.color"
        paper = "return document.querySelector('.chart').layout.paper_bgcolor ?? ''"
        return [page.run(ground), page.run(paper), page.run(line)]

    try:
        assert look("light") == ["rgb(255, 255, 255)", "", "#009e73"]
        assert look("dark") == ["rgb(20, 24, 28)", "#14181c", "rgb(89, 192, 164)"]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_each_seed_leads_to_its_run(varied: Path, tmp_path: Path) -> None:
    page = as_page(group_runs(read_runs(varied)), "", tmp_path / "out").partition("<script>")[0]
    found = {(tmp_path / "out" / unquote(link)).resolve() for link in re.findall(r'<a href="([^"]+)/"', page)}
    assert found == {run.folder.resolve() for run in read_runs(varied)}


def test_names_are_no_markup(tmp_path: Path) -> None:
    write_run(tmp_path, options={"task.path": "</script><b>&"})
    write_run(tmp_path / "other", options={"task.path": "b"})
    page = as_page(group_runs(read_runs(tmp_path)), "<i>", tmp_path)
    assert "<b>&" not in page
    assert "<i>" not in page.partition("<script>")[0].replace('<i style="', "")


# TensorBoard


def test_tensorboard_gets_runs_that_sort_and_means_with_bands(varied: Path, tmp_path: Path) -> None:
    link = lay_out(group_runs(read_runs(varied)), tmp_path)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if any(path.glob(f"{EVENTS}*")))
    runs = [f"mqar/{label}/{each}" for label in LABELS for each in ("mean", "seed0", "seed1")]
    runs += [f"ssm_teacher/factorized n_heads={n_heads}/{each}" for n_heads in (1, 2, 3) for each in ("mean", "seed0")]
    assert names == ["charts", *runs]
    # Mean and seeds of a configuration have its colour.
    coloured = {name: match[1] for name in names if (match := re.search(CONFIGURATION, name))}
    assert coloured == {name: name.rpartition("/")[0] for name in runs}
    curves = read_curves(tmp_path / "mqar" / "lstm" / "mean")
    tag = "mqar/Learning curves"
    spread = 0.1 / 2**0.5
    assert [step for step, _ in curves[tag]] == [10, 20, 30, 40]
    for name, first in ((tag, 0.15), (f"spread of {tag}/low", 0.15 - spread), (f"spread of {tag}/high", 0.15 + spread)):
        assert curves[name][0][1] == pytest.approx(first)
    seed = read_runs(varied)[0]
    assert read_curves(tmp_path / "mqar" / "attention n_heads=1" / "seed0") == seed.curves
    later = seed.folder / f"{EVENTS}9999999999.later"
    later.write_bytes(b"")
    link()
    later.unlink()
    assert (tmp_path / "mqar" / "attention n_heads=1" / "seed0" / later.name).is_symlink()


@pytest.mark.slow
def test_ctrl_c_ends_tensorboard_and_its_folder(varied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders, said, naps = [], [], iter([None, KeyboardInterrupt])

    def serve(folder: Path, port: int | None) -> str:
        folders.append(folder)
        return f"http://localhost:{port}/"

    def sleep(seconds: float) -> None:
        assert list(folders[0].rglob(f"{EVENTS}*"))
        if interrupt := next(naps):
            raise interrupt

    monkeypatch.setattr("lab.view.tensorboard.serve", serve)
    monkeypatch.setattr("lab.view.tensorboard.time", SimpleNamespace(sleep=sleep))
    show_in_tensorboard(group_runs(read_runs(varied)), 6006, said.append)
    assert [line.partition("?")[0] for line in said] == ["TensorBoard at http://localhost:6006/"]
    assert not folders[0].exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_tensorboard_is_served_until_it_is_stopped(number: int, status: int, varied: Path, tmp_path: Path) -> None:
    before = sorted(varied.rglob("*"))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-m", "zoo", "compare", str(varied), "--tensorboard", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=ROOT, text=True, env=environment, **pipes) as process:
        assert process.stdout is not None
        line = next(each for each in iter(process.stdout.readline, "") if each.startswith("TensorBoard at "))
        address, _, asked = line.split()[2].partition("/?")
        assert parse_qs(asked) == {"runColorGroup": [f"regex:{CONFIGURATION}"]}
        deadline = time.monotonic() + 60
        layout: Any = {}
        while not layout.get("category") and time.monotonic() < deadline:
            with urllib.request.urlopen(f"{address}/data/plugin/custom_scalars/layout") as answer:
                layout = json.load(answer)
            time.sleep(0.1)  # it has runs to read
        process.send_signal(number)
        assert process.wait(60) == status
    assert not list(tmp_path.glob("zoo-compare-*"))
    assert [category["title"] for category in layout["category"]] == ["mqar", "ssm_teacher"]
    charts = [chart["title"] for chart in layout["category"][0]["chart"]]
    assert charts == ["Learning curves", "Training loss", "Accuracy against length", "Accuracy by distance"]
    assert sorted(varied.rglob("*")) == before  # nothing is left where the runs are


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer:DeprecationWarning")  # of TensorBoard's own imports
def test_what_tensorboard_cannot_do_is_one_line(varied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        _, err = lines(capsys, varied, "--tensorboard", "--port", port, status=2)
    assert f"could not bind to port {port}" in err
    assert err.count("\n") == 1
    assert "--port is of --tensorboard" in lines(capsys, varied, "--port", 6006, status=2)[1]
    assert "--tensorboard writes no files" in lines(capsys, varied, "--tensorboard", "--out", "x", status=2)[1]


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path)
    read = f"c.group_runs(c.read_runs({str(tmp_path)!r}))"
    python("-c", f"import sys, lab.view as c; {read}; assert 'torch' not in sys.modules")


@pytest.mark.parametrize("module", ["yaml", "tensorboard", "rich.table", "matplotlib.figure", "plotly.graph_objects"])
def test_a_missing_extra_is_named(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    _, err = lines(capsys, tmp_path, status=2)
    assert err == f"zoo: error: {module.partition('.')[0]} is not installed: pip install 'mixer-zoo[report]'\n"
    assert not (tmp_path / "compare").exists()


def test_a_run_is_a_plain_record() -> None:
    run = Run(
        Path("x"), {"mixer": {"name": "lstm"}, "task": {"name": "mqar"}, "seed": 0}, {"val": {"loss": 1.0}}, "trained"
    )
    assert group_runs([run])[0].rows[0].mean("val", "loss") == 1.0
