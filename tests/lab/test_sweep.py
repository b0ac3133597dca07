"""Sweeps: expansion of grids, matched sizes, failures and interrupts, Ray, learning rate tuning, scores."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import training as train
from lab.build import build
from lab.run.lock import locked
from lab.run.record import read_rungs
from lab.run.score import window_text
from lab.sweep import engine, sweep
from lab.sweep.engine import (
    Job,
    Outcome,
    Stop,
    reason,
    run_local,
    run_ray,
    slot_environments,
)
from lab.sweep.experiment import Experiment, read_experiment, values_of
from lab.sweep.forks import Fork
from lab.sweep.grid import expand
from lab.sweep.matching import TOLERANCE
from lab.sweep.scores import Point, model_flags, score_table, scores
from lab.sweep.tuning import beyond, promoted, window
from tests import ROOT, error_line, raising
from tests.lab.runs import TINY, results, wait_until

SMALL = shlex.split(f"{TINY} --trainer.val_check_interval 2")
# A fast replacement of train.py: it writes the same files, or fails in one of the ways that train.py may.
STAND_IN = """
import json, os, pathlib, signal, sys, time
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.stderr.write("training:  50%|=====  | 30/60 [00:10<00:09, 3.1 steps/s, loss=0.5, accuracy=0.75\\r")
sys.stderr.flush()
if how == "raises":
    raise RuntimeError("the reason")
if how == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "segfaults":
    os.kill(os.getpid(), signal.SIGSEGV)
if how == "leaves nothing":
    sys.exit(0)
if how == "loses its worker once":
    if not (folder / "lost").exists():
        (folder / "lost").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    how = json.dumps({"test": {"loss": 1.0}, "params": 1})
if how == "meets another":
    (folder / "gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    until = time.monotonic() + 60
    while len([*folder.parent.glob("*/gpu")]) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    how = json.dumps({"test": {"loss": 1.0}, "params": 1}) if time.monotonic() < until else "raises"
if how == "holds out":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "ready").touch()
    time.sleep(60)
if how == "waits":
    signal.signal(signal.SIGTERM, lambda *_: ((folder / "saved").touch(), sys.exit(143)))
    (folder / "ready").touch()
    time.sleep(60)
metrics = json.loads(how)
if stop := [flag.removeprefix("--stop_at=") for flag in sys.argv if flag.startswith("--stop_at=")]:
    metrics.pop("test", None)
    file = folder / "rungs.json"
    before = json.loads(file.read_text()) if file.exists() else []
    file.write_text(json.dumps([*before, {"stop_at": float(stop[0]), **metrics}]))
else:
    (folder / "metrics.json").write_text(json.dumps(metrics))
with (folder / "starts").open("a") as file:
    file.write("x")
"""
FOUND = {"test": {"loss": 0.5, "accuracy": 0.75}, "val": {"loss": 0.4, "accuracy": 0.8}, "params": 1, "seconds": 1.0}
ONE_SLOT, TWO_SLOTS = [{}], [{}, {}]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Job], str]], None]:
    """Replace train.py by STAND_IN; the argument chooses how each job ends."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN, encoding="utf-8")

    def replace(how: Callable[[Job], str]) -> None:
        def command(self: Job) -> list[str]:
            stop = [] if self.stop_at is None else [f"--stop_at={self.stop_at}"]
            return [sys.executable, str(script), str(self.folder), how(self), *stop]

        monkeypatch.setattr(Job, "command", property(command))

    return replace


def rate(job: Job) -> float:
    """The learning rate of a job."""
    return float(next(flag for flag in job.arguments if flag.startswith("--lr=")).removeprefix("--lr="))


def go(run_dir: Path, *argv: str) -> int:
    return sweep.main([*argv, *SMALL, "--run_dir", str(run_dir)])


def runs_of(folder: Path) -> list[dict[str, Any]]:
    """The runs in the sweep's sweep.json."""
    return json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["runs"]


# Grids


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ("attention,hybrid", ["attention", "hybrid"]),
        ("1e-4,3e-4", [1e-4, 3e-4]),
        (["1e-3..8e-3:4", 1], [1e-3, 2e-3, 4e-3, 8e-3, 1]),
        ("1.25e-3..5e-3:3,0.999..0.9995:2", [1.25e-3, 2.5e-3, 5e-3, 0.999, 0.9995]),
        ("[{name: lstm, d_inner: 4}, attention],[lstm]", [[{"name": "lstm", "d_inner": 4}, "attention"], ["lstm"]]),
        ("null,true", [None, True]),
        ([1, "2-3"], [1, 2, 3]),
        (5, [5]),
    ],
)
def test_the_values_of_a_flag(value: Any, values: list[Any]) -> None:
    assert values_of("", "flag", value) == values


@pytest.mark.parametrize(
    ("fixed", "grids", "expected"),
    [
        # Without the options that a mixer lacks some runs are equal and count once.
        (
            {},
            [{"mixer": ["attention", "lstm"], "mixer.n_heads": [1, 2]}],
            [{"mixer": "attention", "mixer.n_heads": 1}, {"mixer": "attention", "mixer.n_heads": 2}, {"mixer": "lstm"}],
        ),
        # A grid's own value wins over a fixed one.
        (
            {"mixer": "attention", "mixer.n_heads": 2},
            [{"mixer.n_heads": [1]}, {"d_model": [16]}],
            [
                {"mixer": "attention", "mixer.n_heads": 1},
                {"mixer": "attention", "mixer.n_heads": 2, "d_model": 16},
            ],
        ),
        # Options apply only to the members and tasks that have them.
        (
            {"mixer.attention.n_heads": 2, "mixer.d_state": 4, "task.distance": 16},
            [{"mixer": ["hybrid"], "task": ["mqar", "needle"]}, {"mixer": ["attention"], "task": ["mqar"]}],
            [
                {"mixer.attention.n_heads": 2, "mixer.d_state": 4, "mixer": "hybrid", "task": "mqar"},
                {
                    "mixer.attention.n_heads": 2,
                    "mixer.d_state": 4,
                    "task.distance": 16,
                    "mixer": "hybrid",
                    "task": "needle",
                },
                {"mixer": "attention", "task": "mqar"},
            ],
        ),
        # Several values of an option with a list type are one list, as in train.py; several lists are several values.
        (
            {"mixer": "hybrid"},
            [{"task.test_lengths": [16, 32], "mixer.pattern": ["lstm", "gru"]}, {"task.test_lengths": [[16], [32]]}],
            [
                {"mixer": "hybrid", "task.test_lengths": [16, 32], "mixer.pattern": ["lstm", "gru"]},
                {"mixer": "hybrid", "task.test_lengths": [16]},
                {"mixer": "hybrid", "task.test_lengths": [32]},
            ],
        ),
    ],
)
def test_a_grid_leaves_out_the_options_that_a_mixer_or_task_lacks(
    fixed: dict[str, Any], grids: list[dict[str, Any]], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = expand(Experiment("x", tuple(grids), fixed=fixed).overridden({"seed": [0, 1]}), tmp_path)
    assert [configuration.options for configuration, _ in found] == expected
    assert found.n_runs == 2 * len(expected)
    if not fixed:
        assert found.left_out == ["mixer.n_heads is left out for lstm, which has no such option"]


@pytest.mark.parametrize(
    ("mixer", "wanted"),
    [
        ("hybrid", {"params": 2e5}),
        ("ssd", {"params": 3e5, "state": 65536.0}),
    ],
)
def test_parameters_and_state_are_matched(mixer: str, wanted: dict[str, float], tmp_path: Path) -> None:
    ((configuration, _),) = expand(Experiment("x", fixed={"mixer": mixer}, match=wanted), tmp_path)
    task, model = build(configuration.command.config)
    found = {"params": sum(p.numel() for p in model.parameters()), "state": model.state_bytes(task.spec.seq_len)}
    assert found == {"params": configuration.params, "state": configuration.state_bytes}
    assert all(abs(found[name] / value - 1) < TOLERANCE for name, value in wanted.items())


def test_every_trial_is_matched_and_equal_trials_count_once(tmp_path: Path) -> None:
    tune = {"n_layers": [1, 3], "lr": [1e-3, 1e-2, 0.01]}
    (point,) = expand(Experiment("x", fixed={"mixer": "gru"}, match={"params": 5e4}, tune=tune), tmp_path).points
    tried = [(trial.options["n_layers"], trial.options["lr"]) for trial in point.trials]
    assert tried == [*itertools.product([1, 3], [1e-3, 1e-2])]
    for trial in point.trials:
        _, model = build(trial.command.config)
        assert abs(sum(p.numel() for p in model.parameters()) / 5e4 - 1) < TOLERANCE


def test_an_experiments_file_has_settings_and_flags_override_it(tmp_path: Path) -> None:
    file = tmp_path / "heads.yaml"
    content = {
        "prediction": "more heads, less error",
        "changed": "once",
        "fixed": {"task": "ssm_teacher", "trainer": {"max_steps": 300}},
        "grid": {"mixer.n_heads": "1-3", "seed": [0, 1]},
        "tune": {"lr": [1e-3, 1e-2]},
        "settings": {
            "small": {"fixed": {"trainer.max_steps": 10}, "grid": {"seed": 0}, "changed": "twice"},
            "full": {"grids": [{"mixer.n_heads": [8]}, {"mixer": "lstm"}]},
        },
    }
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    small, full = read_experiment(file, "small"), read_experiment(file, "full")
    assert (small.name, small.setting, small.prediction) == ("heads", "small", "more heads, less error")
    assert (small.changed, full.changed) == ("twice", "once")
    assert small.fixed == {"task": "ssm_teacher", "trainer.max_steps": 10}
    assert small.grids == ({"mixer.n_heads": [1, 2, 3], "seed": [0]},)
    assert small.tune == {"lr": [1e-3, 1e-2]}
    assert full.grids == ({"mixer.n_heads": [8]}, {"mixer": ["lstm"]})
    # A flag replaces its values everywhere in the file.
    over = small.overridden({"mixer.n_heads": [5], "trainer.max_steps": [7], "lr": [0.1]})
    assert over.grids == ({"seed": [0], "mixer.n_heads": [5], "trainer.max_steps": [7], "lr": [0.1]},)
    assert over.fixed == {"task": "ssm_teacher"}
    assert over.tune == {}


def test_an_empty_key_of_an_experiments_file_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "heads.yaml"
    file.write_text("name:\nprediction:\nchanged:\ngrid: {seed: 0-2}\n", encoding="utf-8")
    read = read_experiment(file)
    assert (read.name, read.prediction, read.changed) == ("heads", "", "")


@pytest.mark.parametrize(
    ("content", "argv", "message"),
    [
        ("grdi: {mixer: [lstm]}", "", "unknown key 'grdi' (did you mean 'grid'?); choose from: name, prediction,"),
        ("grid: {}", "", "the grid is empty"),
        ("grid: {mixer: []}", "", "mixer has no values"),
        ("grids: []", "", "grids must be a list of mappings"),
        ("{grid: {seed: 0}, grids: [{seed: 0}]}", "", "seed has values in grid and in grids; leave one out"),
        ("{grid: {seed: 0}, score: acuracy}", "", "unknown score 'acuracy' (did you mean 'accuracy'?)"),
        ("{grid: {seed: 0}, settings: {small: {}}}", "--setting smal", "(did you mean 'small'?)"),
        ("{grid: {seed: 0}, settings: {small: {}}}", "", "has settings: give --setting small"),
        ("{grid: {seed: 0}, match: {parms: 1e6}}", "", "unknown quantity to match 'parms' (did you mean 'params'?)"),
        ("{grid: {seed: 0}, match: {params: -3}}", "", "expected a positive number such as 1e6, 1M or 64KiB, got -3"),
        ("{grid: {d_model: 8}, match: {params: 1e5}}", "", "--match params chooses d_model: leave it out of the grid"),
        ("{grid: {mixer: identity}, match: {state: 64KiB}}", "", "cannot match within 5%: at d_model="),
        ("grid: {seed: [a]}", "", "seed must be whole numbers"),
        ("grid: {mixer: [attention], mixer.n_heads: [3]}", "", "is not divisible by n_heads=3"),
        ("{grid: {seed: 0}, tune: {seed: [1, 2]}}", "", "--tune seed"),
        ("{grid: {lr: 0.1}, tune: {lr: [1, 2]}}", "", "lr has values in the grid already"),
        ("grid: {run_dir: [a, b]}", "", "--run_dir cannot be swept"),
        ("grid: [", "", "not valid YAML"),
        (None, "", "nothing to run"),
        (None, "--setting small", "--setting needs the file of an experiment"),
        (None, "nowhere.yaml", "nowhere.yaml: cannot be read"),
        (None, "attention", "attention is not the file of an experiment; give --mixer attention"),
        (None, "--mixer", "--mixer needs a value"),
        (None, "--mixer lstm --no_test", "--no_test cannot be swept"),
        (None, "--mixer lstm --tune stop_at=2,4", "--stop_at cannot be swept"),
        (None, "--mixer lstm --tune_seeds 100", "--tune_seeds has no effect without --tune"),
        (None, "--mixer lstm --rungs 1/2", "--rungs has no effect without --tune"),
        (None, "--mixer lstm --address host:1", "it needs --engine ray"),
        (None, "--trainer.callbacks+=Timer --trainer.callbacks+=Timer", "--trainer.callbacks+ may be given once; list"),
        (None, "--mixer lstm --engine ray --address host:1 --slots 2", "--slots and --address cannot be combined"),
        (
            None,
            f"{ROOT}/configs/experiment/mad.yaml {ROOT}/configs/experiment/sinks.yaml --setting small --name x",
            "2 experiments would share the folder runs/x/small: give each its own name",
        ),
        (None, "--mixer ,", "--mixer has no values"),
        (
            None,
            "--mixer lstm --tune_seeds a",
            "--tune_seeds must be whole numbers >= 0, such as 100,101 or 100-104, got 'a'",
        ),
        (None, "--slots 0", "--slots must be a whole number >= 1, got 0"),
        (None, "--tune lr=1e-300..1e300", "--tune lr: expected ascending ends above 0 and at least 2 values, such as"),
        (None, "--slots ²", "--slots must be a whole number >= 1, got ²"),
        (None, "--per_device 0.5", "--per_device must be a whole number >= 1, got 0.5"),
        (None, "--per_device 8 --slots 2", "--slots and --per_device cannot be combined"),
        (None, "--mixer lstm --engine ray", "ray is not installed: pip install ray, or "),
        (None, "--engine rya", "unknown engine 'rya' (did you mean 'ray'?)"),
        (None, "--tune lr", "--tune expects a name and values such as lr=1e-4..1e-2"),
        (None, "--tune weight_decay=0..0.1:3", "got 0..0.1:3"),
        (None, "--tune lr=1e-2..1e-4", "ends above 0 and at least 2 values, such as 1e-4..1e-2:5, got 1e-2..1e-4"),
        (None, "--mixer lstm --rungs 1/2,1/4", "--rungs: expected ascending shares of the steps such as 1/8,1/4,1/2"),
    ],
)
def test_bad_input_is_a_one_line_error_and_leaves_no_files(
    content: str | None,
    argv: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if not installed
    file = tmp_path / "x.yaml"
    file.write_text(content or "", encoding="utf-8")
    runs = [] if content is None else [str(file), "--run_dir", str(tmp_path / "runs")]
    assert sweep.main([*runs, *argv.split()]) == 2
    assert message in error_line(capsys, "sweep.py")
    assert not (tmp_path / "runs").exists()


def test_the_example_in_the_help_works_and_dry_run_prints_the_grid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert sweep.main(["--help"]) == 0
    example = next(line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("  sweep.py "))
    assert example[:4] == ["--mixer", "attention,hybrid", "--mixer.n_heads", "1,2,4"]
    assert go(tmp_path / "runs", *example, "--mixer", "attention,lstm", "--dry_run") == 0
    printed = capsys.readouterr().out
    assert "20 runs of 4 configurations" in printed
    assert re.search(r"attention +2 +0-4", printed)
    assert re.search(r"lstm +0-4", printed)
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_of_another_configuration_is_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"mixer": ["lstm"], "seed": [0, 1]}
    ((configuration, _),) = expand(Experiment("named", (axes,)), tmp_path / "named")
    folder = configuration.folder(1).path
    folder.mkdir(parents=True)
    held = yaml.safe_dump(configuration.command.config | {"seed": 1, "lr": 0.25})
    (folder / "config.yaml").write_text(held, encoding="utf-8")
    argv = ["--mixer", "lstm", "--seed", "0,1", "--name", "named", "--run_dir", str(tmp_path)]
    assert sweep.main(argv) == 2
    assert "lr is 0.25 there, 0.005 here" in error_line(capsys, "sweep.py")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["config.yaml"]
    assert (folder / "config.yaml").read_text(encoding="utf-8") == held


# Failures and interrupts


def test_a_failed_run_is_reported_and_the_others_continue(tmp_path: Path, stand_in: Any) -> None:
    stand_in(lambda job: job.name)
    (tmp_path / "file").touch()
    good = json.dumps(FOUND)
    names = [good, "raises", "is killed", "segfaults", "leaves nothing", good, good]
    jobs = [Job(name, (), tmp_path / str(i)) for i, name in enumerate(names)]
    jobs += [Job(good, (), tmp_path / "file" / "run"), Job(good, (), tmp_path / "sized", expected={"params": 11})]
    outcomes = {outcome.job.folder.name: outcome for outcome in run_local(jobs, TWO_SLOTS, Stop())}
    assert [outcomes[str(i)].state for i in range(7)] == ["done" if name == good else "failed" for name in names]
    assert outcomes["1"].message == "exit status 1"
    assert outcomes["1"].tail[-1] == "RuntimeError: the reason"
    assert outcomes["2"].message == "killed by SIGKILL (out of memory?)"
    assert outcomes["3"].message == "killed by SIGSEGV"
    assert outcomes["4"].message == "ended without metrics.json"
    assert f"cannot write {tmp_path / 'file' / 'run'}" in outcomes["run"].message
    assert outcomes["sized"].message == "params is 1, but 11 was planned"
    assert [job.folder.name for job in jobs if job.is_done] == ["0", "5", "6"]
    assert reason(75).startswith("stopped by a signal")


def test_a_run_is_done_if_it_has_both_done_json_and_its_metrics(tmp_path: Path) -> None:
    job, trial = Job("x", (), tmp_path), Job("x", (), tmp_path, stop_at=0.5)
    (tmp_path / "rungs.json").write_text(json.dumps([{"stop_at": 0.25, "val": {}}]), encoding="utf-8")
    assert not trial.is_done
    (tmp_path / "rungs.json").write_text(json.dumps([{"stop_at": 0.5, "val": {}}]), encoding="utf-8")
    assert trial.is_done
    (tmp_path / "metrics.json").write_text(json.dumps(FOUND), encoding="utf-8")
    assert not job.is_done
    (tmp_path / "done.json").write_text("{}", encoding="utf-8")
    assert job.is_done
    (tmp_path / "metrics.json").write_text(json.dumps({"val": {"loss": 1.0}, "params": 1}), encoding="utf-8")
    assert not job.is_done
    (tmp_path / "metrics.json").write_text("{", encoding="utf-8")
    assert not job.is_done


@pytest.mark.slow
def test_the_same_command_resumes_a_sweep(tmp_path: Path, stand_in: Any, capsys: pytest.CaptureFixture[str]) -> None:
    argv = shlex.split("--mixer gru,lstm --seed 0,1 --name grid --slots 2")
    broken = True
    stand_in(lambda job: "raises" if "lstm" in job.name and broken else json.dumps(FOUND | dict(job.expected)))
    assert go(tmp_path, *argv) == 1
    printed = capsys.readouterr().out
    assert "runs: 4 to do, 0 done already, 2 at a time" in printed
    assert printed.count("RuntimeError: the reason") == 2
    assert re.search(r"gru +2/2 +accuracy 0\.7500 ± 0 ", printed)
    found = [(each["options"]["mixer"], each["seed"], each["state"]) for each in runs_of(tmp_path / "grid")]
    assert found == [("gru", 0, "done"), ("gru", 1, "done"), ("lstm", 0, "failed"), ("lstm", 1, "failed")]
    broken = False
    assert go(tmp_path, *argv) == 0
    assert "runs: 2 to do, 2 done already" in capsys.readouterr().out
    assert go(tmp_path, *argv) == 0
    assert "runs: all 4 are done already" in capsys.readouterr().out
    # Each run was started once.
    assert [file.read_text(encoding="utf-8") for file in tmp_path.rglob("starts")] == ["x"] * 4
    assert go(tmp_path, *argv, "--overwrite") == 0
    assert [file.read_text(encoding="utf-8") for file in tmp_path.rglob("starts")] == ["xx"] * 4


def when(condition: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """A thread that calls `then` as soon as the condition holds."""

    def wait() -> None:
        try:
            wait_until(condition, 300)
        finally:
            then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def waiting(path: Path, n: int) -> bool:
    """Whether n stand-ins below the folder wait for their signal."""
    return len(list(path.rglob("ready"))) >= n


def test_ctrl_c_lets_the_runs_save_and_prints_the_command_that_resumes(
    tmp_path: Path, stand_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(lambda job: "waits")
    argv = shlex.split("--mixer lstm --seed 0-4 --name stopped --slots 2 --overwrite")
    before = signal.getsignal(signal.SIGINT)
    asked = when(lambda: waiting(tmp_path, 2), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert go(tmp_path, *argv) == 130
    asked.join()
    assert len(list(tmp_path.rglob("saved"))) == 2
    assert signal.getsignal(signal.SIGINT) is before
    err = capsys.readouterr().err
    assert "to resume: python sweep.py --mixer lstm --seed 0-4 --name stopped" in err
    assert "--overwrite" not in err
    assert [run["state"] for run in runs_of(tmp_path / "stopped")] == ["stopped"] * 5
    stand_in(lambda job: json.dumps(FOUND | dict(job.expected)))
    assert go(tmp_path, *argv[:-1]) == 0


def test_a_second_ctrl_c_kills_the_runs(tmp_path: Path, stand_in: Any) -> None:
    stand_in(lambda job: "holds out")
    stop = Stop()
    asked = when(lambda: waiting(tmp_path, 1), stop.ask)
    again = when(stop.soft.is_set, stop.ask)
    (outcome,) = run_local([Job("x", (), tmp_path)], ONE_SLOT, stop)
    asked.join()
    again.join()
    assert outcome.state == "stopped"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process when its parent dies")
def test_runs_of_a_killed_sweep_are_stopped_and_save(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from lab.sweep.engine import *;"
        "folder, script = map(Path, sys.argv[1:]);"
        "list(run_local([Job('x', (str(folder), 'waits'), folder, program=script)], [{}], Stop()))"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / "stand_in.py")]
    process = subprocess.Popen(argv, cwd=ROOT)
    when(lambda: waiting(tmp_path, 1), process.kill).join()
    process.wait()
    when(lambda: (tmp_path / "run" / "saved").exists(), lambda: None).join()
    assert (tmp_path / "run" / "saved").exists()


@pytest.mark.parametrize(
    ("n_slots", "per_device", "use_gpus", "visible", "devices"),
    [
        (3, None, True, None, ["0", "1", "0"]),
        (None, None, True, "5,7", ["5", "7"]),
        (2, None, False, None, [None, None]),
        (None, 2, True, None, ["0", "1", "0", "1"]),
        (None, 3, False, None, [None] * 3),
    ],
)
def test_slots_share_gpus_and_cores(
    n_slots: int | None,
    per_device: int | None,
    use_gpus: bool,
    visible: str | None,
    devices: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("joblib.cpu_count", lambda: 12)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    slots = slot_environments(n_slots, use_gpus, per_device)
    assert [slot.get("CUDA_VISIBLE_DEVICES") for slot in slots] == devices
    assert {slot["OMP_NUM_THREADS"] for slot in slots} == {str(12 // len(devices))}


@pytest.mark.slow
def test_ray_isolates_failures_shares_a_gpu_and_restarts_jobs_of_a_lost_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", functools.partial(ray.init, num_gpus=1))  # a pretended GPU
    (tmp_path / "stand_in.py").write_text(STAND_IN, encoding="utf-8")

    def carry_out(stop: Stop, *names: str) -> dict[str, Outcome]:
        jobs = [
            Job(how, (str(tmp_path / str(i)), how), tmp_path / str(i), program=tmp_path / "stand_in.py")
            for i, how in enumerate(names)
        ]
        outcomes = run_ray(jobs, [{"OMP_NUM_THREADS": "1"}] * 2, stop, None, True, per_device=2)
        return {outcome.job.name: outcome for outcome in outcomes}

    hows = ("meets another", "meets another", "raises", "is killed", "loses its worker once", json.dumps(FOUND))
    outcomes = carry_out(Stop(), *hows)
    assert {how for how, outcome in outcomes.items() if outcome.state == "failed"} == {"raises", "is killed"}
    assert outcomes["raises"].tail[-1] == "RuntimeError: the reason"
    assert outcomes["is killed"].message == "killed by SIGKILL (out of memory?)"
    assert [(tmp_path / str(i) / "gpu").read_text() for i in range(2)] == ["0"] * 2
    assert (tmp_path / "4" / "lost").exists()
    stop = Stop()
    asked = when(lambda: waiting(tmp_path, 1), stop.ask)
    assert carry_out(stop, "waits")["waits"].state == "stopped"
    asked.join()
    assert (tmp_path / "0" / "saved").exists()


def test_an_unusable_ray_cluster_is_a_one_line_error_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    for answer, message in (
        (raising(ray.exceptions.AuthenticationError("wrong token")), "RAY_AUTH_TOKEN_PATH"),
        (raising(RuntimeError("gone")), "no Ray cluster at host:1: gone"),
        (lambda **options: None, "--per_device 2: the Ray cluster at host:1 has no GPUs"),
    ):
        monkeypatch.setattr("ray._raylet.GcsClient", answer)
        argv = shlex.split("--mixer lstm --engine ray --address host:1 --per_device 2 --run_dir")
        assert sweep.main([*argv, str(tmp_path / "runs")]) == 2
        assert message in error_line(capsys, sweep.PROGRAM)
    assert not (tmp_path / "runs").exists()


# Learning rate tuning


def test_a_learning_rate_is_picked_by_validation_and_the_others_are_never_tested(
    tmp_path: Path, stand_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # The best rate on the test split is not the best on validation; text is judged by perplexity, not accuracy.
    judged = {0.001: (8.0, 0.8), 0.01: (7.0, 0.1), 0.1: (9.0, 0.9)}
    states = []

    def found(job: Job) -> str:
        if job.stop_at is None:
            states.append([run["state"] for run in runs_of(tmp_path / "tuned") if run["kind"] == "run"])
        perplexity, accuracy = judged[rate(job)]
        val = {"loss": 0.5, "perplexity": perplexity, "accuracy": accuracy}
        return json.dumps(FOUND | dict(job.expected) | {"val": val, "test": {**val, "perplexity": 16 - perplexity}})

    stand_in(found)
    argv = shlex.split("--mixer gru --seed 3,4 --tune lr=1e-3,1e-2,1e-1 --name tuned")
    assert go(tmp_path, *argv) == 0
    printed = capsys.readouterr().out
    assert "3 trials on seed 3, halved after 0.25, 0.5 of the steps, then 2 runs with the picked values" in printed
    picked = "picked lr=0.01 by validation on seed 3 after 0.5 of the steps among 3: perplexity 7, loss 0.5; window "
    assert picked in printed
    assert states[0] == ["waiting"] * 2  # the first seed stopped at the last rung and is not done
    runs = runs_of(tmp_path / "tuned")
    for run in runs:
        tested = (tmp_path / "tuned" / run["folder"] / "metrics.json").is_file()
        assert tested == (run["kind"] == "run") == (run["options"]["lr"] == 0.01)
    assert sorted((run["kind"], run["seed"]) for run in runs) == [("run", 3), ("run", 4), ("trial", 3), ("trial", 3)]
    assert go(tmp_path, *argv) == 0
    assert "runs: all 2 are done already" in capsys.readouterr().out
    assert [run["seconds"] for run in runs_of(tmp_path / "tuned") if run["kind"] == "trial"] == [FOUND["seconds"]] * 2


def test_adding_trials_that_would_change_the_rungs_is_refused(
    tmp_path: Path, stand_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = {0.001: 0.4, 0.002: 0.8, 0.004: 0.5, 0.008: 0.4}

    def found(job: Job) -> str:
        scores_ = {"accuracy": judged[rate(job)], "loss": 1.0}
        return json.dumps(FOUND | dict(job.expected) | {"val": scores_, "test": scores_, "chance": 0.125})

    stand_in(found)
    argv = ["--mixer", "gru", "--name", "tuned", "--tune"]
    assert go(tmp_path, *argv, "lr=1e-3,2e-3") == 0  # one rung
    index = (tmp_path / "tuned" / "sweep.json").read_bytes()
    assert json.loads(index)["rungs"] == [0.5]  # three trials, with the rate beyond the grid
    assert go(tmp_path, *argv, "lr=1e-3,2e-3,4e-3,8e-3") == 2  # would need two rungs, at 0.25 and 0.5
    assert "has no score at 0.25 of its steps, where trials are compared, but has reached " in error_line(
        capsys, "sweep.py"
    )
    assert (tmp_path / "tuned" / "sweep.json").read_bytes() == index
    assert go(tmp_path, *argv, "lr=1e-3,2e-3,4e-3,8e-3", "--rungs", "1/2") == 0
    assert [run["options"]["lr"] for run in runs_of(tmp_path / "tuned") if run["kind"] == "run"] == [0.002]
    assert (tmp_path / "tuned" / runs_of(tmp_path / "tuned")[-1]["folder"] / "starts").read_text() == "xx"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_and_resumed_tuned_sweep_equals_an_undisturbed_one(tmp_path: Path) -> None:
    argv = shlex.split("--mixer gru --seed 0,1 --tune lr=1e-3,1e-2 --trainer.max_steps 8 --slots 1 --name x")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert go(whole, *argv) == 0
    # Kill it after two trials at the first rung and one at the second.
    process = subprocess.Popen([sys.executable, "sweep.py", *argv, *SMALL, "--run_dir", str(killed)], cwd=ROOT)
    when(lambda: sum(len(read_rungs(f.parent)) for f in killed.rglob("rungs.json")) >= 3, process.kill).join()
    assert process.wait() == -signal.SIGKILL
    # At first a run may still be saving, with its folder locked.
    assert any(go(killed, *argv) == 0 for _ in range(3))
    found = []
    for run_dir in (whole, killed):
        metrics = {str(f.relative_to(run_dir)): json.loads(f.read_text()) for f in run_dir.rglob("metrics.json")}
        for each in metrics.values():
            for name in ("seconds", "tokens_per_second", "crc32", "files_crc32"):  # the files contain the command
                del each[name]
        found.append((metrics, [{**run, "seconds": None} for run in runs_of(run_dir / "x")]))
    assert len(found[0][0]) == 3  # in 8 steps no trial beats guessing, so both train to the end, then another seed
    assert found[0] == found[1]


@pytest.mark.slow
def test_halving_trains_each_trial_once_and_stops_diverged_ones(
    tmp_path: Path, stand_in: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(job: Job) -> str:
        lr = rate(job)
        if "lstm" in job.name or ("gru" in job.name and lr > 0.02):
            return json.dumps({"diverged": "the loss is nan", "step": 3})
        if "rnn" in job.name:  # up to the last rung no better than guessing one of two values read; chance is 0.125
            accuracy = 0.5 + lr if job.stop_at in (0.25, 0.5) else 0.9 - lr
        elif lr < 1e-3:  # the rate beyond the grid
            accuracy = 0.3
        else:  # the order reverses at the last rung
            accuracy = 0.9 - lr if job.stop_at == 0.5 else 0.6 + lr
        scores_ = {"accuracy": accuracy, "loss": 1.0}
        return json.dumps(FOUND | dict(job.expected) | {"val": scores_, "test": scores_, "step": 1, "chance": 0.125})

    stand_in(found)
    task = "--task mqar --task.seq_len 16 --task.n_pairs 2"
    argv = shlex.split(f"--mixer gru,lstm,rnn {task} --seed 0,1 --tune lr=1e-3,1e-2,3e-2 --name halved --slots 2")
    assert go(tmp_path, *argv) == 1
    printed = capsys.readouterr().out
    assert "lstm: every trial failed or diverged, nothing to pick" in printed
    assert "gru: picked lr=0.001 by validation on seed 0 after 0.5 of the steps among 4" in printed
    assert "rnn: picked lr=0.001 by validation on seed 0 after 1 of the steps among 3" in printed
    assert "no trial beats guessing in 1 of 3 configurations" in printed
    runs = runs_of(tmp_path / "halved")
    (unpicked,) = json.loads((tmp_path / "halved" / "sweep.json").read_text(encoding="utf-8"))["unpicked"]
    assert unpicked.startswith("lstm ")
    reached = {(run["options"]["mixer"], run["options"]["lr"]): [at["rung"] for at in run["rungs"]] for run in runs}
    assert [reached["gru", lr] for lr in (0.0001, 0.001, 0.01, 0.03)] == [[0.5], [0.25, 0.5], [0.25, 0.5], [0.25]]
    assert [reached["rnn", lr] for lr in (0.001, 0.01, 0.03)] == [[0.25, 0.5, 1.0]] * 3
    octaves = {run["options"]["mixer"]: run["window"]["octaves"] for run in runs if run["kind"] == "run"}
    assert octaves == {"gru": pytest.approx(math.log2(10)), "rnn": pytest.approx(math.log2(30))}
    # Every rung is a start; so are the rest of the winner's first seed, and its second seed.
    starts = {file.parent: file.read_text(encoding="utf-8") for file in tmp_path.rglob("starts")}
    assert sorted(map(len, starts.values())) == [1] * 7 + [2, 3, 3, 3, 4]
    assert go(tmp_path, *argv) == 1
    assert starts == {file.parent: file.read_text(encoding="utf-8") for file in tmp_path.rglob("starts")}


def test_tune_seeds_are_judged_by_their_mean_and_are_not_counted_as_runs(tmp_path: Path, stand_in: Any) -> None:
    def found(job: Job) -> str:
        seed = int(re.findall(r"--seed=(\d+)", " ".join(job.arguments))[0])
        accuracy = {(0.1, 100): 1.0, (0.1, 101): 0.0, (0.01, 100): 0.7, (0.01, 101): 0.6}.get((rate(job), seed), 0.5)
        scores_ = {"accuracy": accuracy, "loss": 1.0}
        return json.dumps(FOUND | dict(job.expected) | {"val": scores_, "test": scores_, "step": 1, "chance": 0.125})

    stand_in(found)
    argv = shlex.split("--mixer gru --seed 0,1 --tune lr=1e-3,1e-2,1e-1 --tune_seeds 100-101,100 --name own")
    assert go(tmp_path, *argv) == 0
    runs = runs_of(tmp_path / "own")
    assert [(run["seed"], run["options"]["lr"]) for run in runs if run["kind"] == "run"] == [(0, 0.01), (1, 0.01)]
    assert sorted(run["seed"] for run in runs if run["kind"] == "trial") == [100] * 3 + [101] * 3
    assert go(tmp_path, *argv, "--seed", "100") == 2


@pytest.mark.slow
def test_a_sweeps_run_equals_train_py_and_waits_for_another_process_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "WAIT_FOR_OTHERS", 0.1)
    alone = shlex.split("--mixer gru --trainer.max_steps 4")
    argv = [*alone, "--name", "x"]
    assert go(tmp_path, *argv) == 0
    (run,) = runs_of(tmp_path / "x")
    folder = tmp_path / "x" / run["folder"]
    assert train.main([*SMALL, *alone, "--run_dir", str(tmp_path / "alone")]) == 0
    (single,) = (tmp_path / "alone").rglob("metrics.json")
    assert results(folder) == results(single.parent)
    for name in ("done.json", "metrics.json"):
        (folder / name).unlink()
    log = folder / "log.txt"
    with locked(folder):
        again = threading.Thread(target=go, args=(tmp_path, *argv))
        again.start()
        wait_until(lambda: "is in use by" in log.read_text(encoding="utf-8"), 60)
    again.join()
    assert [run["state"] for run in runs_of(tmp_path / "x")] == ["done"]


def test_there_is_no_rate_beyond_one_next_to_zero_or_to_a_close_neighbour() -> None:
    assert [beyond([0.0, 1e-3, 2e-3], best) for best in (0.0, 1e-3, 2e-3)] == [None, None, 4e-3]
    assert [beyond(rates, rates[-1]) for rates in ([0.0, 1e-3], [1e-3, 1.01e-3], [1e-3])] == [None] * 3


def test_the_better_half_of_the_trials_is_promoted_and_ties_go_to_the_first() -> None:
    found = [{"val": {"accuracy": a, "loss": 1.0}} for a in (0.2, 0.5, 0.5, 0.1)] + [{"diverged": "nan"}, None]
    assert promoted(found, "accuracy", 0.25, 0.5) == [1, 2, 0]
    assert promoted(found, "accuracy", 0.5, 0.5) == [1]
    assert promoted(found[3:], "accuracy", 0.25, 0.5) == [0]
    assert promoted(found[4:], "accuracy", 0.25, 0.5) == []


@pytest.mark.parametrize(
    ("score", "chance", "guess", "values", "beaten"),
    [
        ("accuracy", 0.5, None, [0.52, 0.549, 0.4], False),  # a tenth of the way from chance to 1 is 0.55
        ("accuracy", 0.5, None, [0.52, 0.551, 0.4], True),
        ("accuracy", 1 / 32, 0.25, [0.25, 0.31, 0.3], False),  # no better than guessing one of the values read
        ("relative_squared_error", None, None, [1.1, 0.91, 1.0], False),
        ("relative_squared_error", None, None, [1.1, 0.89, 1.0], True),
        ("perplexity", 0.1, None, [50.0, 40.0, 60.0], True),
    ],
)
def test_all_trials_are_promoted_while_none_beats_guessing_except_at_the_end(
    score: str, chance: float | None, guess: float | None, values: list[float], beaten: bool
) -> None:
    found = [{"val": {score: value, "loss": 1.0}, "chance": chance} for value in values]
    assert len(promoted([*found, {"diverged": "nan"}], score, 0.25, 0.5, guess)) == (2 if beaten else 3)
    halved = promoted(found, score, 0.5, 0.5, guess)
    assert len(halved) == (1 if beaten else 3)
    assert promoted(found, score, 1.0, 0.5, guess) == promoted(found, score, 1.0, 1.0, guess) == halved[:1]
    rates = window({lr: {0.5: each} for lr, each in enumerate(found, 1)}, 2, score, guess)["rates"]
    assert all((rate["good"] is None) != beaten for rate in rates)


@pytest.mark.parametrize(
    ("score", "chance", "by_rung", "octaves", "at_least", "good"),
    [
        # 90 % of the way from chance to the best: 0.2 + 0.9 * 0.7 = 0.83.
        ("accuracy", 0.2, {1: [0.2, 0.831, 0.9, 0.829, 0.2]}, 1, False, [False, True, True, False, False]),
        ("accuracy", 0.2, {1: [0.2, 0.84, 0.9, 0.89, 0.9]}, 3, True, [False, True, True, True, True]),
        # A dropped rate is compared with the best at the rung where it was dropped.
        ("accuracy", 0.0, {0.25: [0.1, 0.5, 0.5, 0.2, 0.1], 1: [None, None, 0.9, None, None]}, 1, False, None),
        # At a rung where no rate beats chance, nothing is known.
        ("accuracy", 0.5, {0.25: [0.5] * 5, 1: [None, 0.6, 0.9, None, None]}, 0, True, [None, False, True, None, None]),
        ("relative_squared_error", None, {1: [1, 0.36, 0.3, 0.38, None]}, 1, False, [False, True, True, False, False]),
        # A good rate that is not contiguous with the best one is outside the window.
        ("accuracy", 0.0, {1: [0.9, 0.1, 0.9, 0.1, 0.9]}, 0, False, [True, False, True, False, True]),
    ],
)
def test_the_window_of_good_rates(
    score: str,
    chance: float | None,
    by_rung: dict[float, list[float | None]],
    octaves: float,
    at_least: bool,
    good: list[bool | None] | None,
) -> None:
    found = {
        lr: {
            rung: {"val": {score: values[i]}, "chance": chance}
            for rung, values in by_rung.items()
            if values[i] is not None or rung == min(by_rung)
        }
        for i, lr in enumerate([0.001, 0.002, 0.004, 0.008, 0.016])
    }
    measured = window(found, 0.004, score)
    assert (measured["octaves"], measured["at_least"]) == (pytest.approx(octaves), at_least)
    assert good is None or [rate["good"] for rate in measured["rates"]] == good
    assert window_text(measured) == f"{'≥ ' * at_least}{octaves:.1f}"


@pytest.mark.parametrize(("losses", "octaves"), [([1.05, 1.0, 1.1, 9.0], 1), ([1.0, 9.0, 9.0, 9.0], 0)])
def test_a_window_that_reaches_a_rate_of_zero_has_the_octaves_of_the_others(losses: list[float], octaves: int) -> None:
    rates = [0.0, 1e-3, 2e-3, 4e-3]
    found = {lr: {1.0: {"val": {"loss": loss}}} for lr, loss in zip(rates, losses, strict=True)}
    measured = window(found, rates[losses.index(min(losses))], "loss")
    assert (measured["octaves"], measured["at_least"]) == (pytest.approx(octaves), True)


# One score over several tasks


def point(task: str, accuracy: float | None, **options: Any) -> Point:
    found = [] if accuracy is None else [{"test": {"accuracy": accuracy, "accuracy_macro": accuracy / 2}}]
    return Point(task, {"task": task, **options}, 1, found)


def test_a_score_is_the_mean_over_tasks_of_the_mean_over_each_tasks_grid() -> None:
    points = [
        point("mqar", 0.9, mixer="lstm", **{"task.seq_len": 16}),
        point("mqar", 0.5, mixer="lstm", **{"task.seq_len": 32}),
        point("mqar", 0.1, mixer="lstm", **{"task.seq_len": 64}),
        point("parity", 1.0, mixer="lstm"),
        point("mqar", 0.2, mixer="ssd"),
        point("parity", 0.4, mixer="ssd"),
    ]
    lstm, ssd = scores(points, ["accuracy", "accuracy_macro"])
    assert (lstm["model"], ssd["model"]) == ({"mixer": "lstm"}, {"mixer": "ssd"})
    # The mean over runs, in which mqar counts three times, would be 0.625.
    assert lstm["accuracy"]["score"] == pytest.approx(0.75)
    assert lstm["accuracy_macro"]["score"] == pytest.approx(0.375)
    assert ssd["accuracy"]["score"] == pytest.approx(0.3)
    mqar = {"done": 3, "planned": 3, "mean": pytest.approx(0.5), "window_octaves": None}
    assert lstm["accuracy"]["tasks"]["mqar"] == mqar
    wide = [replace(each, window={"octaves": octaves}) for octaves, each in enumerate(points[:3])]
    assert scores(wide, ["accuracy"])[0]["accuracy"]["tasks"]["mqar"]["window_octaves"] == 1
    heads, rows = score_table([lstm, ssd], ["accuracy_macro", "accuracy"])
    assert heads == ["mixer", "mqar", "parity", "accuracy macro", "accuracy"]
    assert rows == [["lstm", "0.2500", "0.5000", "0.3750", "0.7500"], ["ssd", "0.1000", "0.2000", "0.1500", "0.3000"]]


def test_models_differ_by_the_options_that_differ_at_one_grid_point() -> None:
    points = [point("mqar", 0.5, d_model=8), point("mqar", 0.7, d_model=16), point("parity", 1.0, d_model=8)]
    assert model_flags(points) == ["d_model"]
    # An option that changes only with the task or its grid point does not distinguish models.
    assert model_flags([point("mqar", 0.5, lr=1, d_conv=4), point("parity", 1.0, lr=2, d_conv=0)]) == []
    grid = [point("mqar", 0.5, decode_from=n, mixer="lstm", **{"task.seq_len": 2 * n}) for n in (8, 16)]
    assert model_flags(grid) == []
    assert model_flags([*grid, point("mqar", 0.5, decode_from=8, mixer="ssd", **{"task.seq_len": 16})]) == ["mixer"]


def test_there_is_no_score_until_every_grid_point_is_done() -> None:
    seeds = Point("mqar", {"task": "mqar"}, 2, [{"test": {"accuracy": 0.5}}])
    for points in ([point("mqar", 0.5), point("mqar", None)], [point("mqar", 0.5), seeds], [point("mqar", None)]):
        (score,) = scores(points, ["accuracy"])
        assert score["accuracy"]["score"] is None
        cell = score_table([score], ["accuracy"])[1][0][0]
        assert cell == ("(0 of 1)" if len(points) == 1 else "0.5000 (1 of 2)")


@pytest.mark.slow
def test_a_scored_sweep_writes_one_score_per_mixer(tmp_path: Path, stand_in: Any) -> None:
    file = tmp_path / "suite.yaml"
    content = {
        "score": ["accuracy_macro", "accuracy"],
        "fixed": {"d_model": 16},
        "grid": {"mixer": ["identity", "conv"]},
        "grids": [{"task": "mqar", "task.seq_len": [16, 32], "task.n_pairs": 2}, {"task": "parity"}],
        "tune": {"lr": [0.1, 0.2]},
        "settings": {"small": {"fixed": {"batch_size": 8}}},
        "setting": "small",
    }
    file.write_text(yaml.safe_dump(content), encoding="utf-8")

    def found(job: Job) -> str:
        arguments = dict(each.removeprefix("--").split("=") for each in job.arguments if "=" in each)
        value = 0.6 if arguments["mixer"] == "conv" else 0.2
        better = arguments["lr"] == "0.2"
        # Macro and micro accuracy rank the trials differently; the first metric of the score decides.
        scores_ = {"accuracy_macro": value * (1.0 if better else 0.5), "accuracy": 0.4 if better else 0.9, "loss": 1.0}
        return json.dumps({"val": scores_, "test": scores_, **job.expected})

    stand_in(found)
    assert sweep.main([str(file), "--run_dir", str(tmp_path / "runs")]) == 0
    folder = tmp_path / "runs" / "suite" / "small"
    models = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["models"]
    assert [each["model"] for each in models] == [{"mixer": "identity"}, {"mixer": "conv"}]
    assert [each["accuracy_macro"]["score"] for each in models] == pytest.approx([0.2, 0.6])
    assert [each["accuracy"]["score"] for each in models] == pytest.approx([0.4, 0.4])
    mqar = {"done": 2, "planned": 2, "mean": pytest.approx(0.2), "window_octaves": 0.0}  # lr 0.1 has half the score
    assert models[0]["accuracy_macro"]["tasks"]["mqar"] == mqar
    assert "| conv | 0.6000 | 0.6000 | 0.6000 | 0.4000 |" in (folder / "scores.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_exit_status_of_a_fork_is_kept_while_another_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reading, delays = forkserver.read_signed, threading.Event(), [0.0, 1.0]

    def slowly(sentinel: int) -> int:
        reading.set()
        time.sleep(delays.pop(0) if delays else 0.0)
        return read(sentinel)

    def start() -> Fork:
        return Fork(["--mixer", "none"], tmp_path, tmp_path / "log.txt", {})

    monkeypatch.setattr(forkserver, "read_signed", slowly)  # reads a fork's process id first, its status at the end
    first = start()
    reading.clear()
    with ThreadPoolExecutor() as threads:
        ended = threads.submit(first.wait)
        assert reading.wait(60)
        assert start().wait(60) == 2
        assert ended.result(60) == 2
