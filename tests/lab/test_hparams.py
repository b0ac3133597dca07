"""The columns of TensorBoard's HParams tab over a run_dir: what names a run, and options in which runs differ."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab import config as cli
from lab.hparams import NAMING, compare_options, differing
from lab.run.folder import RunFolder
from lab.sweep import sweep
from tests.lab.runs import TINY, TinyRuns
from tests.training.board import hparams_tab

SHORT = f"{TINY} --n_layers 1 --trainer.max_steps 2"
RUNS = TinyRuns(f"{SHORT} --trainer.enable_progress_bar false")


def begin(run_dir: Path, argv: str) -> RunFolder:
    """A run as it is before its first step, all that TensorBoard is told of it until then."""
    command = cli.parse([*shlex.split(argv), "--run_dir", str(run_dir)])
    folder = RunFolder.of(command)
    folder.prepare(command.config, None, {})
    compare_options(folder)
    return folder


def assert_columns(run_dir: Path, *options: str, n: int) -> None:
    """The tab has these columns, each with two values at least, besides the names of n runs."""
    tab = hparams_tab(run_dir)
    assert set(tab.columns) == {*NAMING, *options}
    assert tab.constant <= {*NAMING}
    assert len(tab.options) == n


def test_runs_started_one_by_one_are_compared_by_what_differs_so_far(tmp_path: Path) -> None:
    shared = "--trainer.max_steps 500 --d_model 32 --task.n_pairs 2 --task.n_test 50"
    begin(tmp_path, f"--mixer attention {shared}")
    assert_columns(tmp_path, n=1)
    begin(tmp_path, f"--mixer attention {shared} --seed 1 --task.n_val 50")
    assert_columns(tmp_path, n=2)
    begin(tmp_path, f"--mixer lstm {shared} --lr 0.1")
    assert_columns(tmp_path, "model.lr", n=3)
    begin(tmp_path, f"--mixer attention {shared} --mixer.n_heads 2 --figures_every 3")
    assert_columns(tmp_path, "model.lr", "mixer.n_heads", n=4)
    begin(tmp_path, "--mixer lstm --d_model 32 --trainer.max_steps 500 --task.n_pairs 4")
    assert_columns(tmp_path, "model.lr", "mixer.n_heads", "task.n_pairs", n=5)
    told = list(hparams_tab(tmp_path).options.values())
    usual = {"task": "mqar", "seed": 0, "model.lr": 0.005, "task.n_pairs": 2}
    assert {"mixer": "attention", "mixer.n_heads": 4, **usual} in told  # the first, in columns that came later
    assert {"mixer": "lstm", **usual, "model.lr": 0.1} in told


def test_what_each_mixer_and_each_task_has_of_its_own_is_no_difference() -> None:
    def run(mixer: str, task: str, **options: Any) -> dict[str, Any]:
        named = {"mixer.name": mixer, "task.name": task, "seed": 0}
        return named | {k.replace("__", "."): v for k, v in options.items()}

    runs = [
        run("lstm", "mqar", task__seq_len=64),
        run("attention", "mqar", task__seq_len=64, mixer__n_heads=4, mixer__d_conv=4),
        run("ssd", "needle", task__seq_len=72, mixer__n_heads=8, mixer__d_conv=0, task__distance=8),
    ]
    assert differing(runs[:1]) == differing(runs[:2]) == []
    assert differing(runs) == ["mixer.n_heads"]
    runs += [run("ssd", "needle", task__seq_len=72, mixer__n_heads=8, mixer__d_conv=4, task__distance=9)]
    assert differing(runs) == ["mixer.d_conv", "mixer.n_heads", "task.distance"]


def test_runs_that_begin_at_once_are_compared_all_with_all(tmp_path: Path) -> None:
    flags = [f"--mixer attention --mixer.n_heads {h} --lr 0.1 --seed {seed}" for h in (1, 2) for seed in range(4)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda argv: begin(tmp_path, argv), flags))
    assert_columns(tmp_path, "mixer.n_heads", n=8)
    assert all("mixer.n_heads" in options for options in hparams_tab(tmp_path).options.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mqar"]  # nothing is left of the lock


def test_a_run_is_no_sibling_of_those_of_a_sweep_below_it(tmp_path: Path) -> None:
    inner = begin(tmp_path / "sweep", "--mixer attention --lr 0.1")
    outer = begin(tmp_path, "--mixer attention")
    assert list(inner.siblings()) == list(outer.siblings()) == []
    second = begin(tmp_path, "--mixer attention --seed 1")
    assert list(outer.siblings()) == [second]


def test_a_run_beside_it_that_cannot_be_read_costs_nothing(tmp_path: Path) -> None:
    broken = begin(tmp_path, "--mixer lstm --seed 1")
    (broken.path / "config.yaml").write_text("{")
    lost = begin(tmp_path, "--mixer lstm --seed 2")
    (lost.path / "config.yaml").unlink()
    begin(tmp_path, "--mixer lstm")
    begin(tmp_path, "--mixer lstm --lr 0.1")
    assert_columns(tmp_path, "model.lr", n=4)


@pytest.mark.slow
def test_finished_runs_and_sweeps_have_no_column_in_which_all_agree(tmp_path: Path) -> None:
    """Runs started one by one, by a sweep one after another, and by a sweep at once."""
    for argv in ("--mixer lstm", "--mixer attention --mixer.n_heads 2", "--mixer attention --mixer.n_heads 4"):
        RUNS.trained(tmp_path / "single", *shlex.split(argv))
    grid = shlex.split(f"--mixer attention,lstm --mixer.n_heads 2,4 --lr 0.1 {SHORT}")
    for slots in ("1", "2"):
        assert sweep.main([*grid, "--run_dir", str(tmp_path), "--name", f"by {slots}", "--slots", slots]) == 0
    for name, n in (("single", 3), ("by 1", 3), ("by 2", 3)):
        assert_columns(tmp_path / name, "mixer.n_heads", n=n)
        tab = hparams_tab(tmp_path / name)
        assert all(numbers["result/parameters"] > 0 for numbers in tab.numbers.values())
        assert len(tab.numbers) == n
