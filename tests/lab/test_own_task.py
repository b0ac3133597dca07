"""Whole runs of users' tasks: they train, resume, and refuse changed or missing data."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from lab import training as train
from lab.examples import examples
from lab.sweep.sweep import main as sweep
from lab.view import read_runs
from tests import error_line
from tests.lab.runs import TinyRuns, results

FUNCTION = """
def first_again(rng, n, seq_len: int = 8):
    inputs = rng.integers(5, size=(n, seq_len))
    return {"inputs": inputs, "labels": inputs[:, 0]}
"""
RUNS = TinyRuns(
    "--mixer lstm --task.n_train 64 --task.n_val 8 --task.n_test 8 --d_model 8 --n_layers 1 --batch_size 8 "
    "--trainer.max_steps 4 --trainer.accelerator cpu --figures_every 0"
)


def make(folder: Path, name: str, late: int) -> str:
    """Write a task file, and return the task's name for --task."""
    if name.endswith(".py"):
        (folder / name).write_text(FUNCTION.replace("[:, 0]", f"[:, {late}]"))
        return f"{name}:first_again"
    inputs = np.random.default_rng(0).integers(5, size=(100, 8))
    np.savez(folder / name, inputs=inputs, labels=inputs[:, late])
    return name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_tasks.py", "own.npz"])
def test_a_users_task_trains_resumes_and_refuses_changed_data(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = RUNS.command(tmp_path / "runs", "--task", make(tmp_path, name, late=0))
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert train.main(argv) == 0
    [folder] = (tmp_path / "runs").glob("*/*/seed0")
    first = results(folder)
    assert examples(folder, "test", 3).inputs.shape == (3, 8)

    (folder / "metrics.json").unlink()
    assert train.main(argv) == 0
    assert "resumed from step 4" in capsys.readouterr().out
    assert results(folder) == first

    make(tmp_path, name, late=1)
    assert train.main(argv) == 2
    assert "was started with other data" in error_line(capsys)
    (folder / "metrics.json").unlink()
    assert train.main(argv) == 2
    assert "was started with other data" in error_line(capsys)
    shutil.move(tmp_path / name, tmp_path / f"moved_{name}")
    assert train.main(argv) == 2
    assert f"put {name} there" in error_line(capsys)
    with pytest.raises(ValueError, match=f"put {name} there"):
        examples(folder, "test", 3)


def test_a_function_that_cannot_be_a_task_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own_tasks.py"
    file.write_text("def needy(rng, n, width): ...")
    assert train.main(["--task", f"{file}:needy"]) == 2
    assert "the argument width needs a default" in error_line(capsys)


@pytest.mark.slow
def test_a_sweep_over_users_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder, "own.npz", late=0)
    assert sweep(RUNS.command(tmp_path / "runs", "--task", "a/own.npz,b/own.npz")) == 0
    runs = read_runs(tmp_path / "runs")
    assert [run.task for run in runs] == ["own", "own"]
    assert {run.config["task"]["name"] for run in runs} == {str(tmp_path / each / "own.npz") for each in "ab"}
    make(tmp_path / "b", "own.npz", late=1)
    assert sweep(RUNS.command(tmp_path / "runs", "--task", "a/own.npz,b/own.npz")) == 2
    assert "was started with other data" in error_line(capsys, "sweep.py")
