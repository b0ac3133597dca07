"""`zoo compare`: reading runs, grouping seeds, tables, files, charts, the page in a browser, and TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
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
from lab.view import Group, Run, group_runs, read_runs
from lab.view.charts import charts_of
from lab.view.command import write_comparison
from lab.view.page import as_page
from lab.view.picture import paper_figure
from lab.view.table import COLUMNS, columns_of, section_of, table_of
from lab.view.tensorboard import MIXER, lay_out
from tests import ROOT, python
from tests.browser import fits_every_screen, reached_by_keyboard
from zoo import __main__ as command
from zoo.report.numbers import NOTHING
from zoo.report.plots import as_image

SIZES = {"chance": 0.125, "params": 1000, "state_bytes": 512, "tokens_per_second": 1e4, "step": 40, "seconds": 3.0}
LABELS = ("attention n_heads=1", "attention n_heads=2", "lstm")


def config_of(name: str, seed: int, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of a run; `name` is "task/mixer"."""
    task, mixer = name.split("/")
    config: dict[str, Any] = {"mixer": {"name": mixer}, "task": {"name": task, "n_train": 100}, "d_model": 64}
    config |= {"lr": 0.001, "trainer": {"max_steps": 40, "enable_progress_bar": True}, "seed": seed}
    return nested(dict(flatten(config)) | dict(options or {}))


def run_of(
    name: str = "mqar/attention",
    seed: int = 0,
    score: float | None = 0.5,
    options: Mapping[str, Any] | None = None,
    metric: str = "accuracy",
    **facts: Any,
) -> Run:
    """A tested run in memory, or an unfinished one if `score` is None."""
    config, folder = config_of(name, seed, options), Path("nowhere", name, f"seed{seed}")
    if score is None:
        return Run(folder, config, {}, "unfinished")
    return Run(folder, config, {"test": {metric: score, "loss": 0.1}} | SIZES | facts, "tested")


def only(runs: list[Run]) -> Group:
    (group,) = group_runs(runs)
    return group


def write_run(
    run_dir: Path,
    name: str = "mqar/attention",
    seed: int = 0,
    accuracy: float | None = 0.5,
    options: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    steps: int = 4,
    commit: str = "",
) -> Path:
    """Write a run's folder like train.py; the run is unfinished if `accuracy` is None."""
    task, mixer = name.split("/")
    folder = RunFolder(run_dir, name, seed)
    config = config_of(f"{task.partition('-')[0]}/{mixer.partition('-')[0]}", seed, options)
    folder.path.mkdir(parents=True)
    (folder.path / "config.yaml").write_text(yaml.safe_dump(config))
    (folder.path / "environment.json").write_text(json.dumps({"git": commit}))
    with SummaryWriter(folder.path) as writer:
        for step in range(10, 10 * steps + 10, 10):
            writer.add_scalar("val/accuracy", step / 100 + seed / 10, step)
            writer.add_scalar("train/loss", 1 / step, step)
    if accuracy is not None:
        measured = {"test/accuracy": accuracy, "test/loss": 1 - accuracy, "val/accuracy": accuracy, "val/loss": 0.3}
        measured |= SIZES | dict(metrics or {})
        folder.write_metrics(nested({name.replace("/", "."): value for name, value in measured.items()}))
    return folder.path


def lines(capsys: pytest.CaptureFixture[str], *argv: object, status: int = 0) -> tuple[str, str]:
    """Run `zoo compare`, assert its exit status, and return stdout and stderr."""
    assert command.main(["compare", *map(str, argv)]) == status
    out, err = capsys.readouterr()
    return out, err


# Reading


def test_runs_are_read_at_any_depth(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "sweep" / "small", seed=3, accuracy=0.75, metrics={"test/perplexity": float("inf")})
    (run,) = read_runs(tmp_path)
    assert (run.folder, run.task, run.mixer, run.seed, run.state) == (folder, "mqar", "attention", 3, "tested")
    assert (run.metrics["test"]["accuracy"], run.metrics["test"]["perplexity"], run.step) == (0.75, None, 40)
    assert run.curves["val/accuracy"] == [(step, pytest.approx(step / 100 + 0.3)) for step in (10, 20, 30, 40)]
    assert run.options["d_model"] == 64
    assert not {"seed", "trainer.enable_progress_bar"} & run.options.keys()
    assert [each.folder for each in read_runs(folder)] == [folder]


@pytest.mark.parametrize(("steps", "metrics"), [(2, {"val": {"accuracy": 0.2}, "train": {"loss": 0.05}}), (0, {})])
def test_an_unfinished_run_has_its_last_logged_values(steps: int, metrics: Any, tmp_path: Path) -> None:
    with SummaryWriter(write_run(tmp_path, accuracy=None, steps=steps)) as writer:
        writer.add_scalar("train/load/layer0/expert0", 0.5, 10 * steps)  # not a score
    (run,) = read_runs(tmp_path)
    assert (run.state, run.step) == ("unfinished", 10 * steps)
    assert run.metrics == {split: pytest.approx(each, rel=1e-6) for split, each in metrics.items()}
    assert only([run]).rows[0].remark == f"validation; seed 0 unfinished at step {10 * steps} of 40"


def test_broken_runs_and_other_folders_are_skipped_with_a_warning(tmp_path: Path, logged: list[str]) -> None:
    whole = write_run(tmp_path, seed=0)
    broken: list[tuple[str, str, bytes | None]] = [
        ("metrics.json cannot be read", "metrics.json", b'{"test": {"acc'),
        ("metrics.json was not written by train.py", "metrics.json", b"[1, 2]"),
        ("it has no params", "metrics.json", b'{"epochs": 3}'),
        ("metrics.json is damaged", "metrics.json", b'{"params": 3, "crc32": "00000000"}'),
        ("no config.yaml", "config.yaml", None),
        ("config.yaml cannot be read", "config.yaml", b"a: [1"),
        ("config.yaml cannot be read", "config.yaml", b"\xff\xfe\x00"),
        ("it has no mixer.name", "config.yaml", b"model: gpt"),
        ("it has no mixer.name", "config.yaml", b"[]"),
        ("environment.json is damaged", "environment.json", b"{"),  # it records whether the run looks ahead
    ]
    expected = {}
    for seed, (why, name, content) in enumerate(broken, 1):
        file = write_run(tmp_path, seed=seed, steps=0) / name
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        expected[file.parent] = why
    for name in ("notes/deep/idea.txt", ".hidden/metrics.json", "measure/measure.json"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "again").symlink_to(tmp_path / "mqar", target_is_directory=True)
    assert {run.folder.resolve() for run in read_runs(tmp_path)} == {whole}
    *messages, foreign = logged
    assert foreign == f"skipped {tmp_path / 'notes'}: no run of train.py in it"
    assert len(messages) == len(expected)
    for message in messages:
        folder, _, why = message.removeprefix("skipped ").partition(": ")
        assert expected[Path(folder).resolve()] in why
        assert "\n" not in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder.write_text("a file"), "no folder"),
        (lambda folder: folder.mkdir(), "no readable run of train.py in"),
        (lambda folder: (write_run(folder, steps=0) / "config.yaml").unlink(), ": 1 skipped"),
    ],
)
def test_a_folder_without_readable_runs_is_a_one_line_error(
    make: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "runs")
    out, err = lines(capsys, tmp_path / "runs", status=2)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("zoo: error: ")
    assert message in err


# Grouping


def test_seeds_are_grouped_and_the_best_is_marked() -> None:
    runs = [run_of("mqar/attention", seed, accuracy) for seed, accuracy in enumerate((0.5, 0.7, 0.9))]
    group = only([*runs, run_of("mqar/lstm", 0, 0.6)])
    attention, lstm = group.rows
    assert (attention.label, lstm.label, group.title, group.chance) == ("attention", "lstm", "mqar", 0.125)
    assert attention.center("test", "accuracy") == pytest.approx(0.7)
    assert attention.spread == pytest.approx(0.2)  # sample standard deviation, sqrt((0.04 + 0 + 0.04) / 2)
    assert (lstm.spread, attention.seeds, group.best) == (None, "3", {"attention"})
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table_of(group, 120))
    starred = [line.split()[0] for line in captured.get().splitlines() if " *" in line]
    assert starred == ["attention"]


@pytest.mark.parametrize(
    ("metric", "more"), [("accuracy", True), ("relative_squared_error", False), ("perplexity", False)]
)
def test_the_score_determines_whether_higher_or_lower_is_better(metric: str, more: bool) -> None:
    runs = [run_of(f"text/{name}", 0, score, metric=metric) for name, score in (("attention", 0.9), ("lstm", 0.4))]
    group = only(runs)
    best = "attention" if more else "lstm"
    assert (group.score, group.best, group.rows[0].label) == (metric, {best}, best)
    first_click = {column.heading: column.more_first for column in columns_of(group)}
    assert first_click[metric.replace("_", " ")] is more
    assert (first_click["tokens/s"], first_click["state bytes"]) == (True, False)


def test_the_best_is_marked_within_a_training_budget_and_only_above_chance() -> None:
    def marked(*scores: tuple[str, float, int], **options: Any) -> list[str]:
        runs = [run_of(f"mqar/{name}", 0, score, {"trainer.max_steps": steps}) for name, score, steps in scores]
        (group,) = group_runs(runs, **options)
        return [f"{row.label}*" if row.label in group.best else row.label for row in group.rows]

    longer = ("lstm", 0.9, 400), ("attention", 0.8, 120), ("gru", 0.7, 120)
    assert marked(*longer) == ["lstm", "attention*", "gru"]
    assert marked(*longer, any_budget=True) == ["lstm*", "attention", "gru"]
    assert marked(("lstm", 0.15, 40), ("gru", 0.13, 40)) == ["lstm", "gru"]  # chance is 0.125
    fresh = run_of("mqar/lstm", 0, 0.9, {"task.fresh": True}), run_of("mqar/gru", 0, 0.8, {"task.fresh": False})
    assert only(list(fresh)).best == set()


@pytest.mark.parametrize("key", ["mixer.n_heads", "mixer.extra"])
def test_configurations_of_the_same_mixer_have_separate_rows(key: str) -> None:
    first = {} if key == "mixer.extra" else {key: 1}
    group = only([run_of(options=first), run_of(options={key: 2}, score=0.9)])
    short = key.rpartition(".")[2]
    assert [row.label for row in group.rows] == [
        f"attention {short}=2",
        f"attention {short}=1" if first else "attention",
    ]


def test_labels_omit_options_that_depend_on_another_or_are_none() -> None:
    runs = []
    for pattern in (["lstm", "lstm"], ["lstm", "conv", "conv"], ["gru"]):
        inner = {"mixer.lstm.bias": True} if "lstm" in pattern else {}
        runs.append(run_of("mqar/hybrid", options={"mixer.pattern": pattern, **inner}))
    assert {row.label for row in only(runs).rows} == {f"hybrid pattern={p}" for p in ("2×lstm", "lstm+2×conv", "gru")}
    later: list[dict[str, Any]] = [{}, {"later": None}, {"later": 2}]
    rows = only([run_of("mqar/lstm", seed, options=each) for seed, each in enumerate(later)]).rows
    assert {row.label: [run.seed for run in row.runs] for row in rows} == {"lstm": [0, 1], "lstm later=2": [2]}


def test_tasks_of_different_shapes_have_separate_groups() -> None:
    runs = [run_of(options={"task.n_pairs": n}) for n in (8, 16)]
    runs.append(run_of(options={"task.n_pairs": 8, "task.n_train": 9}))
    titles = [(group.title, [row.label for row in group.rows]) for group in group_runs(runs)]
    assert titles == [
        ("mqar n_pairs=8", ["attention n_train=100", "attention n_train=9"]),
        ("mqar n_pairs=16", ["attention"]),
    ]


def test_a_duplicate_run_counts_once(logged: list[str]) -> None:
    unfinished, finished = run_of(score=None), run_of()
    assert only([unfinished, finished]).rows[0].runs == (finished,)
    assert "left out" in logged[0]


def test_runs_on_different_data_of_the_same_name_give_a_warning(tmp_path: Path, logged: list[str]) -> None:
    for seed, labels in enumerate(("a", "a", "b")):
        folder = write_run(tmp_path, seed=seed)
        (folder / "environment.json").write_text(json.dumps({"data": {"labels": labels}}))
        (folder / "metrics.json").write_text(json.dumps({"params": 1, "test": {"accuracy": 0.5}}))
        only(read_runs(tmp_path))
        assert len(logged) == (seed == 2)
    assert logged[0].startswith(f"not comparable: {folder} read other data of mqar than ")


def test_unfinished_runs_are_marked_and_never_best(tmp_path: Path) -> None:
    write_run(tmp_path, "mqar/attention", 0, 0.3)
    write_run(tmp_path, "mqar/attention", 1, None, steps=1)
    write_run(tmp_path, "mqar/lstm", 9, None)  # validation 1.3
    write_run(tmp_path, "mqar/rnn", 0, 0.1)
    group = only(read_runs(tmp_path))
    rows = {row.label: row for row in group.rows}
    assert (list(rows), group.best) == (["attention", "rnn", "lstm"], {"attention"})
    # Numbers of the unfinished run do not count.
    assert (rows["attention"].center(), rows["attention"].center("val", "accuracy")) == (0.3, 0.3)
    assert (rows["attention"].seeds, rows["lstm"].split) == ("1 of 2", "val")
    assert rows["attention"].remark == "seed 1 unfinished at step 10 of 40"
    assert rows["lstm"].remark == "validation; seed 9 unfinished at step 40 of 40"


def test_trials_of_a_sweep_are_left_out_and_failures_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "tuned"
    picked = write_run(root, "mqar/attention", options={"lr": 0.1})
    trial = write_run(root, "mqar/attention-lr0.2", options={"lr": 0.2})
    failed = write_run(root, "mqar/lstm", accuracy=None)
    entry = {"kind": "run", "state": "done", "params": 7, "state_bytes": 9, "message": ""}
    changes = {picked: {}, trial: {"kind": "trial"}, failed: {"state": "failed", "message": "killed"}}
    index = [entry | {"folder": str(folder.relative_to(root))} | each for folder, each in changes.items()]
    (root / "sweep.json").write_text(json.dumps({"runs": index}))
    assert [run.folder for run in read_runs(tmp_path)] == [picked, failed]
    assert [run.folder for run in read_runs(tmp_path, trials=True)] == [picked, trial, failed]
    assert read_runs(tmp_path)[1].metrics["params"] == 7
    out, err = lines(capsys, tmp_path, "--out", tmp_path / "out")
    assert "left out: trials of --tune (1)" in out
    assert "seed 0 failed: killed at step 40 of 40" in out
    assert ("lr=0.2" in out, err) == (False, "")
    assert "lr=0.2" in lines(capsys, tmp_path, "--out", tmp_path / "out", "--trials")[0]


def test_the_learning_rate_window_is_in_the_table_and_in_a_chart() -> None:
    rates = [(1e-3, 0.2), (3.2e-3, 0.8), (1e-2, 0.9), (3.2e-2, None)]
    window = {"octaves": 1.678, "at_least": True, "rates": [{"lr": lr, "score": score} for lr, score in rates]}
    tuned = run_of("mqar/lstm", score=0.9, steps_to_90=40)
    tuned = Run(tuned.folder, tuned.config, tuned.metrics, "tested", window=window)
    group = only([tuned, run_of("mqar/gru")])
    cells = {each.heading: [each.cell(row) for row in group.rows] for each in columns_of(group)}
    assert (cells["window (octaves)"], cells["lr"]) == (["≥ 1.7", ""], ["0.001", ""])
    assert cells["steps to 90 %"] == ["40", "–"]
    (chart,) = [chart for chart in charts_of(group) if chart.kind == "rate"]
    (line,) = chart.series
    assert (line.mixer, line.x, line.y) == ("lstm", (1e-3, 3.2e-3, 1e-2), (0.2, 0.8, 0.9))
    assert (chart.chance, chart.log_x) == (0.125, True)


def test_chance_is_in_the_unit_of_the_score_and_steps_need_most_seeds() -> None:
    def cell(heading: str, metric: str = "accuracy", **facts: list[Any]) -> str:
        n = max(map(len, facts.values()))
        runs = [run_of(seed=i, metric=metric, **{name: each[i] for name, each in facts.items()}) for i in range(n)]
        (column,) = [column for column in COLUMNS if column.heading == heading]
        return column.cell(only(runs).rows[0])

    assert cell("chance", chance=[0.25]) == "0.2500"
    assert cell("chance", "perplexity", chance=[0.17]) == NOTHING
    assert cell("chance", "relative_squared_error", chance=[None]) == "1"  # predicting the mean
    assert cell("steps to 90 %", steps_to_90=[200, 300, 700, None, None]) == "700"  # the third of five
    assert cell("steps to 90 %", steps_to_90=[200, 300, 700, None]) == "500"
    assert cell("steps to 90 %", steps_to_90=[200, None], params=[1, 1]) == NOTHING
    assert cell("parameters", params=[100, 101]) == "100"


# Files


def test_the_files_have_the_numbers_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, (accuracy, commit) in enumerate(((0.5, "a"), (0.7, "b"))):
        write_run(tmp_path / "runs", "mqar/attention", seed, accuracy, {"mixer.n_heads": 2}, commit=commit)
    write_run(tmp_path / "runs", "mqar/attention-n_heads4", 0, 0.9, {"mixer.n_heads": 4})
    out, _ = lines(capsys, tmp_path / "runs")
    folder = tmp_path / "runs" / "compare"
    assert "0.6000 ± 0.14" in out
    assert "0.9000 *" in out
    page = (folder / "compare.md").read_text()
    assert "3 runs of 2 configurations: mqar." in page
    assert "| attention n_heads=4 | **0.9000** | 1 | | 0.1250 | 1,000 | 512 | 10,000 | 0.2500 |" in page
    best, other = csv.DictReader((folder / "compare.csv").read_text().splitlines())
    assert (best["configuration"], best["best"], best["option mixer.n_heads"]) == ("attention n_heads=4", "1", "4")
    assert (other["seeds"], other["runs"], other["best"]) == ("0 1", "2", "0")
    assert other["remark"] == "runs of 2 versions of the code"
    assert float(other["test/accuracy"]) == pytest.approx(0.6)
    assert float(other["test/loss standard deviation"]) == pytest.approx(0.02**0.5)
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "skipped" not in lines(capsys, tmp_path / "runs")[1]  # no warning about the folder that it wrote


def test_runs_next_to_the_files_of_a_comparison_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "mqar/attention", 0, 0.5)
    for place in (tmp_path / "runs", tmp_path / "runs" / "mqar", folder):
        (place / "compare.csv").touch()
        assert [run.folder for run in read_runs(tmp_path / "runs")] == [folder]


def test_without_a_tested_run_no_figure_of_scores_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", accuracy=None)
    lines(capsys, tmp_path / "runs")
    folder = tmp_path / "runs" / "compare"
    assert sorted(file.name for file in folder.iterdir()) == ["compare.csv", "compare.html", "compare.md"]
    assert "compare.png" not in (folder / "compare.md").read_text()


@pytest.mark.parametrize("width", [140, 40])
def test_a_narrow_table_keeps_configurations_and_scores_whole(width: int) -> None:
    longer = {"mixer.n_heads": 4, "d_model": 80}
    runs = [run_of(score=0.123, options={"mixer.n_heads": 2}), run_of("mqar/gated_linear_attention")]
    runs += [run_of(score=0.625, options=longer), run_of(seed=1, score=None, options=longer)]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table_of(only(runs), width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert all(word in text for word in ("gated_linear_attention", "n_heads=4", "0.6250 *", "0.5000"))
    assert ("unfinished" in text) == (width == 140)  # at width 40 there is no room for remarks


# Charts


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two tasks: recall at several lengths with two mixers, one by number of heads; regression with one."""
    run_dir = tmp_path_factory.mktemp("varied")
    for seed in (0, 1):
        for n_heads in (1, 2):
            lengths = {f"test/at_length/{n}/accuracy": 0.4 * n_heads + seed / 10 for n in (8, 32)}
            facts = {"test/by_distance": [{"at_most": n, "accuracy": 1 / n} for n in (1, 2)]}
            options = {"mixer.n_heads": n_heads, "task.seq_len": 16}
            more = lengths | facts | {"state_bytes": 512 * n_heads}
            write_run(run_dir, f"mqar/attention-n_heads{n_heads}", seed, 0.4 * n_heads, options, more)
        write_run(run_dir, "mqar/lstm", seed, 0.3, {"task.seq_len": 16})
    error = {"test/accuracy": None, "val/accuracy": None, "test/relative_squared_error": 1e-3}
    floors = {"floor_at_heads/1": 1e-1, "floor_at_heads/2": 1e-4, "floor_at_heads/3": 1e-31}
    for n_heads in (1, 2, 3):
        options = {"mixer.n_heads": n_heads}
        write_run(run_dir, f"ssm_teacher/factorized-n_heads{n_heads}", 0, 0.5, options, error | floors)
    return run_dir


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
    assert length.y == pytest.approx((0.85, 0.8, 0.85))  # 16 is the training length, with the test score
    assert [each.label for each in charts["length"].series] == ["attention n_heads=1", "attention n_heads=2"]
    assert {each.label: each.x for each in charts["state"].series} == {"attention": (512, 1024), "lstm": (512,)}
    (heads,) = charts["heads"].series
    assert (heads.label, heads.x, heads.points) == ("attention", (1, 2), ("attention n_heads=1", "attention n_heads=2"))
    assert charts["heads"].chance == 0.125
    loss, bounded = charts_of(regression)  # no curve of its validation score was logged
    assert (loss.kind, bounded.kind) == ("loss", "heads")
    assert bounded.floor == {1: 1e-1, 2: 1e-4}  # the third is only roundoff
    assert not charts["heads"].floor
    scores = {"accuracy": 0.5, "perplexity": 3.0, "loss": 1.1, "at_length": {"32": {"accuracy": 0.25}}}
    (text,) = charts_of(only([run_of("lano/lstm", options={"task.seq_len": 16}, test=scores)]))
    assert (text.series[0].x, text.series[0].y, text.y_label) == ((16, 32), (0.5, 0.25), "test accuracy")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "begins"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_figure_for_a_paper_is_one_file_with_real_text(
    kind: str, begins: bytes, varied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"figure.{kind}"
    lines(capsys, varied, "--figure", file, "--columns", 2)
    content = file.read_bytes()
    assert content.startswith(begins)
    assert b"Type3" not in content
    assert kind != "svg" or b">lstm</text>" in content
    assert not (varied / "compare").exists()
    assert "pdf" in lines(capsys, varied, "--figure", "figure.gif", status=2)[1]


def test_a_figure_for_a_paper_marks_every_point_and_its_spread(varied: Path) -> None:
    (state,) = (chart for chart in charts_of(group_runs(read_runs(varied))[0]) if chart.kind == "state")
    assert 1 in [len(each.x) for each in state.series]  # a single point has no line
    drawn = as_image(paper_figure([state], 1), "svg").decode()
    for each in state.series:
        marks = re.findall(rf"<use [^>]*fill: {each.look.colour}", drawn, re.IGNORECASE)
        assert len(marks) == len(each.x)
        bars = re.findall(rf"<path [^>]*stroke: {each.look.colour}; stroke-width: 0.8", drawn, re.IGNORECASE)
        assert len(bars) == len(each.x)


# The page


class Page:
    """Drives compare.html in the browser."""

    def __init__(self, browser: Any, file: Path, hash_: str = "") -> None:
        self.browser = browser
        browser.get("about:blank")  # changing only the hash would not reload the page
        browser.get(file.as_uri() + hash_)
        charts = "Array.from(document.querySelectorAll('.chart'))"
        self.until(lambda: self.run(f"return {charts}.every((c) => c.data || c.closest('section').hidden)"))

    def until(self, holds: Callable[[], bool]) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.browser, 20).until(lambda _: holds())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def traces(self, keep: str = "true") -> list[int]:
        """Number of traces in each chart for which `keep` holds."""
        of_each = f"c => c.data ? c.data.filter(trace => {keep}).length : 0"
        return self.run(f"return Array.from(document.querySelectorAll('.chart'), {of_each})")

    def drawn(self, *counts: int) -> None:
        """Wait until the charts show these numbers of traces."""
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
"""Traces per chart: a line per series, a band if seeds differ, and one for a bound; error bars are no traces."""


@pytest.fixture(scope="module")
def written(varied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_comparison(group_runs(read_runs(varied)), folder)
    return folder / "compare.html"


@pytest.mark.slow
def test_the_page_filters_tables_and_charts_without_network_requests(written: Path, browser: Any) -> None:
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
def test_columns_sort_and_the_address_keeps_the_selection(written: Path, browser: Any) -> None:
    page = Page(browser, written, "#task=mqar")
    attention = ["attention n_heads=1", "attention n_heads=2"]
    page.click("th:nth-child(2) button")  # accuracy, best first
    assert page.rows() == [*reversed(attention), "lstm"]
    page.click("th:nth-child(2) button")
    assert page.rows() == ["lstm", *attention]
    page.click("th:nth-child(6) button")  # state bytes, lower is better
    assert page.rows()[-1] == "attention n_heads=2"
    page.choose("[data-option='mixer.n_heads']", "2")
    assert page.rows() == ["lstm", "attention n_heads=2"]  # the filter does not apply to lstm
    page.click("input[value=lstm]")
    assert page.address() == {"task": ["mqar"], "without": ["lstm"], "mixer.n_heads": ["2"]}
    again = Page(browser, written, "#" + urlsplit(browser.current_url).fragment)
    assert again.rows() == ["attention n_heads=2"]
    strange = Page(browser, written, "#task=other&without=gru&mixer.n_heads=77&hide=x")
    assert len(strange.rows()) == 6


@pytest.mark.slow
def test_a_click_in_a_legend_hides_the_series_in_all_charts(written: Path, browser: Any) -> None:
    page = Page(browser, written)
    item = "[data-task='mqar'] [data-chart='0'] .legendtoggle"
    page.run("const d = document.querySelector(arguments[0]); for (const t of ['mousedown', 'mouseup'])"
             " d.dispatchEvent(new MouseEvent(t, {bubbles: true}));", item)  # fmt: skip
    # Hidden are curves and bands of attention n_heads=1; lines over several configurations keep the other point.
    page.drawn(4, 2, 2, 1, 2, 1, 3, 2)
    assert page.address() == {"hide": ["attention n_heads=1"]}
    assert page.shown("tr.off td:first-child") == ["attention n_heads=1"]
    assert page.rows() == ["attention n_heads=2", "attention n_heads=1", "lstm", *LINEAR]


@pytest.mark.slow
def test_the_page_fits_every_screen_and_works_by_keyboard(written: Path, browser: Any) -> None:
    fits_every_screen(browser, written.as_uri())
    Page(browser, written)
    assert reached_by_keyboard(browser, "form :is(select, input, button), th button, td a")


def test_each_seed_links_to_its_run_and_names_are_escaped(varied: Path, tmp_path: Path) -> None:
    def page(groups: list[Group]) -> str:
        return as_page("title", "<i>", groups, [section_of(group) for group in groups], tmp_path / "out")

    runs = read_runs(varied)
    links = re.findall(r'<a href="([^"]+)/"', page(group_runs(runs)).partition("<script>")[0])
    assert {(tmp_path / "out" / unquote(link)).resolve() for link in links} == {run.folder.resolve() for run in runs}
    text = page(group_runs([run_of(options={"task.path": path}) for path in ("</script><b>&", "b")]))
    assert "<b>&" not in text
    assert "<i>" not in text.partition("<script>")[0]


# TensorBoard


def test_tensorboard_gets_runs_in_order_and_means_with_bands(varied: Path, tmp_path: Path) -> None:
    link = lay_out(group_runs(read_runs(varied)), tmp_path)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if any(path.glob(f"{EVENTS}*")))
    runs = [f"mqar/{label}/seed{seed}" for label in LABELS for seed in (0, 1)]
    runs += [f"ssm_teacher/factorized n_heads={n_heads}/seed0" for n_heads in (1, 2, 3)]
    means = ["attention", "factorized", "lstm"]
    assert names == sorted([*means, *runs])
    # The means and the seeds of a mixer have its colour.
    coloured = {name: match[1] for name in names if (match := re.search(MIXER, name))}
    assert coloured == {name: name if name in means else re.split("[/ ]", name)[1] for name in names}
    curves = read_curves(tmp_path / "lstm")
    tag, spread = "means/mqar: Learning curves", 0.1 / 2**0.5
    assert [step for step, _ in curves[tag]] == [10, 20, 30, 40]
    for name, first in ((tag, 0.15), (f"{tag}: low", 0.15 - spread), (f"{tag}: high", 0.15 + spread)):
        assert curves[name][0][1] == pytest.approx(first)
    curves = read_curves(tmp_path / "attention")
    assert {f"{tag} n_heads={n_heads}" for n_heads in (1, 2)} <= curves.keys()
    assert curves["means/mqar: Accuracy against state"] == [(512, pytest.approx(0.4)), (1024, pytest.approx(0.8))]
    seed = read_runs(varied)[0]
    assert read_curves(tmp_path / "mqar" / "attention n_heads=1" / "seed0") == seed.curves
    later = seed.folder / f"{EVENTS}9999999999.later"
    later.write_bytes(b"")
    link()
    later.unlink()
    assert (tmp_path / "mqar" / "attention n_heads=1" / "seed0" / later.name).is_symlink()


def test_tensorboard_gets_no_point_at_zero_state_bytes(tmp_path: Path) -> None:
    for name, n_bytes in (("mqar/conv", 0), ("mqar/gru", 256), ("mqar/lstm", 512)):
        write_run(tmp_path / "runs", name, metrics={"state_bytes": n_bytes})
    lay_out(group_runs(read_runs(tmp_path / "runs")), tmp_path / "shown")
    found = {name: read_curves(tmp_path / "shown" / name) for name in ("conv", "gru", "lstm")}
    tag = "means/mqar: Accuracy against state"
    assert {name: curves.get(tag) for name, curves in found.items()} == {
        "conv": None,
        "gru": [(256, 0.5)],
        "lstm": [(512, 0.5)],
    }


@pytest.mark.slow
def test_tensorboard_is_served_until_it_is_stopped(varied: Path, tmp_path: Path) -> None:
    before = sorted(varied.rglob("*"))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    verb = "import sys; from lab.view.command import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", verb, str(varied), "--tensorboard", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=ROOT, text=True, env=environment, **pipes) as process:
        assert process.stdout is not None
        line = next(each for each in iter(process.stdout.readline, "") if each.startswith("TensorBoard at "))
        address, _, asked = line.split()[2].partition("/?")
        assert parse_qs(asked) == {"smoothing": ["0"], "runColorGroup": [f"regex:{MIXER}"]}
        deadline = time.monotonic() + 60
        layout: Any = {}
        while not layout.get("category") and time.monotonic() < deadline:
            with urllib.request.urlopen(f"{address}/data/plugin/custom_scalars/layout") as answer:
                layout = json.load(answer)
            time.sleep(0.1)  # TensorBoard is still reading runs
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("zoo-compare-*"))
    assert [category["title"] for category in layout["category"]] == ["mqar", "ssm_teacher"]
    length = next(chart for chart in layout["category"][0]["chart"] if chart["title"] == "Accuracy against length")
    assert {each["value"][-9:] for each in length["margin"]["series"]} == {"n_heads=1", "n_heads=2"}
    assert sorted(varied.rglob("*")) == before  # no files are left in the runs' folder


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer:DeprecationWarning")  # raised by TensorBoard's imports
def test_wrong_arguments_are_one_line_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        _, err = lines(capsys, tmp_path, "--tensorboard", "--port", port, status=2)
    assert f"could not bind to port {port}" in err
    assert err.count("\n") == 1
    assert "no home folder" in lines(capsys, "~nobody-here/runs", status=2)[1]
    figure = ["--figure", tmp_path / "x.pdf"]
    exclusive = [[*figure, "--out", tmp_path], [*figure, "--tensorboard"], ["--tensorboard", "--out", "x"]]
    for argv in (["--port", 6006], ["--columns", 2], *exclusive, ["--port", "x"], ["--fast"]):
        err = lines(capsys, tmp_path, *argv, status=2)[1]
        assert str(argv[-1] if argv[0] == "--fast" else argv[0]) in err
        assert err.count("\n") == 1


def test_files_are_written_next_to_the_runs_in_the_home_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "kept")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("lab.view.command.write_comparison", lambda groups, folder: [folder])
    assert lines(capsys, "~/kept")[0].splitlines()[-1] == str(tmp_path / "kept" / "compare")


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path)
    read = f"c.group_runs(c.read_runs({str(tmp_path)!r}))"
    python("-c", f"import sys, lab.view as c; {read}; assert 'torch' not in sys.modules")


@pytest.mark.parametrize("module", ["yaml", "tensorboard", "rich.table", "matplotlib.figure", "plotly.offline"])
def test_a_missing_extra_is_a_one_line_error(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    _, err = lines(capsys, tmp_path, status=2)
    package = module.partition(".")[0]
    wanted = "pyyaml" if package == "yaml" else package
    assert err.startswith(f"zoo: error: {package} is not installed: pip install {wanted}, or ")
    assert not (tmp_path / "compare").exists()
