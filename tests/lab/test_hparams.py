"""The columns of TensorBoard's HParams tab over several run_dirs: what names a run, and how runs differ."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from lab.hparams import NAMING, compared_options
from lab.sweep import sweep
from tests.lab.runs import TINY, TinyRuns
from tests.training.board import hparams_tab

SHORT = f"{TINY} --n_layers 1 --trainer.max_steps 2"
RUNS = TinyRuns(f"{SHORT} --trainer.enable_progress_bar false")


def test_options_have_the_headings_of_their_help_and_files_short_names() -> None:
    config: dict[str, Any] = {"mixer": {"name": "/a/m.py:Mine", "n_heads": 2}, "task": {"name": "mqar", "n_pairs": 4}}
    config |= {"seed": 1, "lr": 0.1, "run_dir": "x", "trainer": {"max_steps": 5, "logger": True}}
    named = {"mixer": "m.Mine", "task": "mqar", "seed": 1}
    others = {"mixer.n_heads": 2, "task.n_pairs": 4, "model.lr": 0.1, "trainer.max_steps": 5}
    assert compared_options(config) == named | others


@pytest.mark.slow
def test_the_first_columns_are_those_in_which_runs_of_several_sweeps_differ(tmp_path: Path) -> None:
    for argv in ("--mixer lstm", "--mixer attention --mixer.n_heads 2 --task.n_train 48"):
        RUNS.trained(tmp_path / "single", *shlex.split(argv))
    grid = shlex.split(f"--mixer attention,lstm --mixer.n_heads 2,4 --lr 0.1 {SHORT}")
    assert sweep.main([*grid, "--run_dir", str(tmp_path), "--name", "sweep", "--slots", "2"]) == 0
    tab = hparams_tab(tmp_path)
    assert len(tab.options) == len(tab.numbers) == 5
    differing = ["mixer", "mixer.n_heads", "model.lr", "task.n_train"]
    assert tab.columns[:4] == differing
    assert not tab.constant & {*differing}
    assert {*NAMING.values()} <= {*tab.columns}
    assert tab.metrics[1:4] == ["result/accuracy", "result/parameters", "result/state_bytes"]
    assert all(numbers["result/parameters"] > 0 for numbers in tab.numbers.values())
