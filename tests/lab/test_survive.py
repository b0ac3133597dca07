"""Failures that a run survives: two processes in a folder, damaged files, signals, full disks, kills; several ranks."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import resource
import runpy
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from lab import config as cli
from lab import training as train
from lab.run.files import FIRST_LOSS
from lab.run.folder import RunFolder
from lab.run.metrics import by_heading
from lab.run.record import read_rungs, rung_at
from tests import ROOT, error_line, python, raising, slow
from tests.lab import kills
from tests.lab.runs import MEASURED, TINY, TinyRuns, metrics, results, wait_until
from tests.tolerances import tolerance
from tests.training import small
from tests.training.small import assert_identical
from zoo import signals
from zoo.loading.saved import is_whole
from zoo.ops import numba_loops
from zoo.training import SequenceModule, Throughput

RUNS = TinyRuns(
    f"--mixer lstm --n_layers 1 {TINY} --trainer.max_steps 8 --trainer.val_check_interval 2 "
    "--trainer.log_every_n_steps 1 --trainer.enable_progress_bar false"
)
command, go, folder, trained = RUNS.command, RUNS.go, RUNS.folder, RUNS.trained


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    return trained(tmp_path_factory.mktemp("whole"))


def saved(path: Path, checkpoint: str) -> dict[str, Any]:
    return torch.load(path / "checkpoints" / f"{checkpoint}.ckpt", weights_only=True)


def curves(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve that TensorBoard reads, except timings."""
    read = small.curves(path)
    for tag, points in read.items():
        steps = [step for step, _ in points]
        # Lightning logs the epoch with everything else, hence twice at a step with validation.
        assert steps == sorted(steps if tag == "epoch" else set(steps)), f"{tag} overlaps: {steps}"
    return {tag: points for tag, points in read.items() if tag not in MEASURED}


def assert_same_run(path: Path, expected: Path) -> None:
    assert results(path) == results(expected)
    for checkpoint in ("best", "last"):
        assert_identical(*(saved(each, checkpoint)["state_dict"] for each in (path, expected)))
    found, usual = curves(path), curves(expected)
    assert found.keys() == usual.keys() >= {FIRST_LOSS, "val/loss", "test/loss"}
    for tag in usual:
        assert found[tag] == usual[tag], tag


def at_step(step: int, act: Callable[[], None]) -> AbstractContextManager[Any]:
    """In this context runs call `act` after an optimizer step."""
    after = Throughput.on_train_batch_end

    def acting(self: Throughput, trainer: Any, *rest: Any) -> None:
        after(self, trainer, *rest)
        if trainer.global_step == step:
            act()

    return patch.object(Throughput, "on_train_batch_end", acting)


def stopped(run_dir: Path, *argv: str) -> Path:
    """The folder of a run that SIGINT stopped after its fifth step."""
    with at_step(5, lambda: signal.raise_signal(signal.SIGINT)):
        assert go(run_dir, *argv) == 130
    return folder(run_dir, *argv)


# Two processes on one folder

HOLDER = """
import sys
from pathlib import Path
from lab.run.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_until_its_holder_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [sys.executable, "-c", HOLDER, str(folder(tmp_path))]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        for switch in ((), ("--overwrite",)):
            assert go(tmp_path, *switch) == 2
            assert f"{folder(tmp_path)} is in use by process {holder.pid}" in error_line(capsys)
        holder.kill()
    assert (folder(tmp_path) / "lock").exists()
    assert go(tmp_path) == 0
    assert not (folder(tmp_path) / "lock").exists()


def test_a_locked_finished_run_can_be_shown_and_a_lock_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path, "task/mixer", 0).lock():
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
    assert go(tmp_path) == 0
    with RunFolder.of(cli.parse(command(tmp_path))).lock():
        assert go(tmp_path) == 0
        assert go(tmp_path, "--test_only") == 0
    assert "this run is finished" in capsys.readouterr().out


# Damaged checkpoints


def cut(file: Path) -> None:
    """Cut the file in half, as a full disk or a lost node may."""
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def zero(file: Path) -> None:
    """Zero a part of the file: after a crash some file systems keep the length but lose blocks."""
    weight = max(torch.load(file, weights_only=True)["state_dict"].values(), key=torch.numel)
    data = bytearray(file.read_bytes())
    at = data.index(weight.numpy().tobytes())
    data[at : at + 64] = bytes(64)
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "names", "source"),
    [(zero, ["last"], "previous"), slow(cut, ["last", "previous"], "best")],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_previous_one_used(
    tmp_path: Path, whole: Path, damage: Any, names: list[str], source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stopped(tmp_path)
    checkpoints = path / "checkpoints"
    for name in names:
        damage(checkpoints / f"{name}.ckpt")
    capsys.readouterr()
    with patch.object(zipfile.ZipFile, "testzip", autospec=True, side_effect=zipfile.ZipFile.testzip) as reading:
        assert go(tmp_path) == 0
    read = [call.args[0].filename for call in reading.call_args_list]
    # Each is read once; a new best checkpoint, written meanwhile, is read at the end.
    assert read.count(str(checkpoints / f"{source}.ckpt")) == (2 if source == "best" else 1)
    out, err = capsys.readouterr()
    for name, line in zip(names, err.splitlines(), strict=True):
        assert f"{checkpoints / name}.ckpt.damaged" in line
    assert re.search(rf"resumed from step [24] \({re.escape(str(checkpoints / source))}\.ckpt\)", out)
    assert_same_run(path, whole)


@pytest.mark.parametrize("names", [["best"], slow(["last", "previous", "best"])])
def test_a_run_without_an_intact_checkpoint_is_refused(
    tmp_path: Path, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = stopped(tmp_path)
    files = [path / "checkpoints" / f"{name}.ckpt" for name in names]
    for file in files:
        cut(file)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    capsys.readouterr()
    assert go(tmp_path) == 2
    assert f"damaged: {', '.join(map(str, files))}; use --overwrite" in error_line(capsys)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.name != "lock"} == before
    assert go(tmp_path, "--overwrite") == 0


# Signals


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a SLURM job step, with a `scontrol` that logs its calls to the returned file."""
    step = {"JOB_ID": 7, "JOB_NAME": "train", "NTASKS": 1, "PROCID": 0, "LOCALID": 0, "NODEID": 0, "NODELIST": "n0"}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    log = tmp_path / "called"
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho $* >> {log}\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(scontrol.parent), prepend=os.pathsep)
    return log


@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGTERM, "at step 3"),
        (signal.SIGINT, "outside training"),
        slow(signal.SIGTERM, "outside training"),
        slow(signal.SIGINT, "at step 3"),
        slow(signal.SIGUSR1, "at step 3"),
    ],
)
def test_a_signal_leaves_a_checkpoint_an_exit_status_and_the_command_to_resume(
    tmp_path: Path, whole: Path, slurm: Path, number: int, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, before = tmp_path / "runs", signal.getsignal(number)

    def ask(*_: Any) -> None:
        signal.raise_signal(number)

    with at_step(3, ask) if where == "at step 3" else patch.object(SequenceModule, "test_step", ask):
        assert go(run_dir) == (130 if number == signal.SIGINT else train.REQUEUE)
    assert signal.getsignal(number) == before
    report, resume = capsys.readouterr().err.splitlines()
    interrupted = (number, where) == (signal.SIGINT, "outside training")
    assert f"{'interrupted' if interrupted else signal.Signals(number).name} {where}" in report
    assert resume.endswith(train.resume_command(command(run_dir)))
    assert go(run_dir) == 0
    assert f"resumed from step {3 if where == 'at step 3' else 8}" in capsys.readouterr().out
    assert_same_run(folder(run_dir), whole)
    # Lightning's own SLURM support, which requeues the job and writes another checkpoint, must stay off.
    assert not slurm.exists()
    assert not list(tmp_path.rglob("hpc_ckpt*"))


def test_without_sigusr1_and_fork_only_sigterm_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGUSR1")
    monkeypatch.delattr(os, "register_at_fork")
    assert runpy.run_path(signals.__file__)["SCHEDULER"] == (signal.SIGTERM,)
    runpy.run_path(numba_loops.__file__)


def test_a_signal_while_the_command_line_is_parsed_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "parse", lambda _: signal.raise_signal(signal.SIGTERM))
    assert train.main(command(tmp_path)) == train.REQUEUE
    assert list(tmp_path.iterdir()) == []


# Full disks and folders that cannot be written


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """A function that limits the size of files, which simulates a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("full_for", ["checkpoints", slow("curves"), slow("metrics")])
def test_a_full_disk_is_a_one_line_error_and_keeps_the_previous_checkpoint(
    tmp_path: Path, whole: Path, full_for: str, limit: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path, write = folder(tmp_path), RunFolder.write_metrics

    def full(self: RunFolder, metrics: Any) -> None:
        limit(100)
        write(self, metrics)

    if full_for == "metrics":
        failing = patch.object(RunFolder, "write_metrics", full)
    else:
        failing = at_step(
            5, lambda: limit(20_000 if full_for == "checkpoints" else next(path.glob("events.*")).stat().st_size + 30)
        )
    with failing:
        assert go(tmp_path) == 1
    limit(resource.RLIM_INFINITY)
    line = error_line(capsys)
    assert "File too large" in line
    assert str(path) in line
    assert is_whole(path / "checkpoints" / "last.ckpt")
    assert not [file for file in path.rglob("*") if file.name == "metrics.json" or file.name.endswith(".tmp")]
    assert go(tmp_path) == 0
    assert_same_run(path, whole)


@pytest.fixture
def obey_permissions() -> Iterator[None]:
    """Make root obey file permissions: drop CAP_DAC_OVERRIDE from this thread for one test."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; for capabilities below 32, then above
    assert libc.capget(header, data) == 0
    effective = data[0]
    data[0] &= ~(1 << 1)
    assert libc.capset(header, data) == 0
    yield
    data[0] = effective
    assert libc.capset(header, data) == 0


@pytest.mark.usefixtures("obey_permissions")
def test_a_read_only_folder_is_refused_before_the_run_but_a_finished_run_is_shown(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    stopped(tmp_path / "begun")
    capsys.readouterr()
    for run_dir, locked in ((new, new), (tmp_path / "begun", folder(tmp_path / "begun"))):
        locked.chmod(0o555)
        assert go(run_dir) == 2
        assert f"cannot write the run folder {folder(run_dir)}: Permission denied" in error_line(capsys)
        locked.chmod(0o755)
    assert list(new.iterdir()) == []
    whole.chmod(0o555)
    assert go(whole.parents[2]) == 0
    whole.chmod(0o755)


# Kills

SCENARIOS = {
    "accumulation": "--trainer.max_steps 12 --trainer.val_check_interval 2 --trainer.accumulate_grad_batches 2",
    "fresh examples": "--trainer.max_steps 12 --trainer.val_check_interval 5 --task.fresh true",
}


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    """A fork server with torch and Lightning imported, since the imports take longer than the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([kills.__name__])
        context.Process(target=abs, args=(0,)).start()
    return context


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_that_is_killed_and_resumed_equals_an_undisturbed_one(
    tmp_path: Path, scenario: str, forks: ForkServerContext
) -> None:
    argv, log = SCENARIOS[scenario].split(), tmp_path / "log"
    path = folder(tmp_path / "run", *argv)
    expected = trained(tmp_path / "whole", *argv)
    for moment in (*kills.MOMENTS, None):
        small.next_second(path)
        process = forks.Process(target=kills.run, args=(command(tmp_path / "run", *argv), log, moment))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if moment else 0), log.read_text()
    assert_same_run(path, expected)


@pytest.mark.slow
def test_a_run_with_pauses_equals_one_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = trained(tmp_path / "whole")
    # Between validations; at a validation, by its share of the steps; at the same step again; between validations.
    for stop_at in ("3", "0.5", "0.5", "6"):
        assert go(tmp_path / "stopped", "--stop_at", stop_at) == 0
    assert capsys.readouterr().out.count("has stopped at step 4 before") == 1
    assert go(tmp_path / "stopped", "--stop_at", "5") == 2
    assert "the run is already at step 6 and cannot stop at 5" in capsys.readouterr().err
    rungs = read_rungs(folder(tmp_path / "stopped"))
    assert {each["stop_at"]: each["step"] for each in rungs} == {3: 3, 0.5: 4, 6: 6}
    path = trained(tmp_path / "stopped")
    assert results(path) == results(whole)
    for name in ("best", "last"):
        kept = [saved(each, name) for each in (path, whole)]
        assert_identical(*(each["state_dict"] for each in kept))
        assert_identical(*(each["optimizer_states"][0]["state"][0] for each in kept))
        assert kept[0]["loops"] == kept[1]["loops"]
    assert go(tmp_path / "stopped", "--stop_at", "0.75") == 2
    assert "finished without stopping at 0.75" in capsys.readouterr().err
    assert go(tmp_path / "stopped", "--stop_at", "1.0") == 0  # a finished run has stopped at its end
    finished = {key: each for key, each in metrics(path).items() if key != "test"}
    assert rung_at(path, 1.0) == {"stop_at": 1.0, **finished}
    assert rung_at(path, 1) is None  # the integer 1 is the first step
    assert go(tmp_path / "diverged", "--lr", "1e30", "--stop_at", "6") == 1
    (found,) = read_rungs(folder(tmp_path / "diverged", "--lr", "1e30"))
    assert "is not finite" in found["diverged"]


# Several processes on one run

ALIKE = shlex.split(
    "--mixer hybrid --n_layers 2 --trainer.max_steps 60 --trainer.val_check_interval 4 --trainer.precision 64-true "
    "--task.n_pairs 4 --task.min_pairs 1 --task.n_val 18 --task.n_test 18"  # ranks differ in labels and rows
)


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


WHOLE = [*ALIKE, "--batch_size", "16"]


def split_by(strategy: str) -> list[str]:
    return [*ALIKE, "--batch_size", "8", "--trainer.devices", "2", "--trainer.strategy", strategy]


def assert_same_numbers(path: Path, alone: Path) -> None:
    """Assert equal metrics, up to rounding."""
    found, expected = by_heading(results(path)), by_heading(results(alone))
    absent = [name for name, value in expected.items() if value is None]  # such as the steps to 90 %
    assert [found.pop(name) for name in absent] == [expected.pop(name) for name in absent]
    logged, points = ({k: each.pop(k) for k in [*each] if k.startswith("curve/")} for each in (found, expected))
    assert logged == pytest.approx(points, rel=tolerance(torch.float32)["rtol"])  # TensorBoard's curves are float32
    assert found == pytest.approx(expected, rel=tolerance(torch.float64)["rtol"], abs=tolerance(torch.float64)["atol"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run in one process."""
    return trained(tmp_path_factory.mktemp("alone"), *WHOLE)


@pytest.mark.parametrize(("joined", "status"), [(False, 75), (True, 0)])
def test_a_rank_exits_with_an_error_only_if_it_is_stopped_before_joining(
    joined: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before joining, the error ends the first process, which would wait; after joining, Lightning reports a crash."""
    from lightning.pytorch.utilities import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: joined)
    monkeypatch.setattr(train, "run", raising(train.Terminated(signal.SIGTERM)))
    assert go(tmp_path) == status


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("strategy", "signals"), [("ddp", [signal.SIGTERM, signal.SIGKILL]), ("fsdp", [signal.SIGTERM])]
)
def test_two_processes_train_and_survive_signals_like_one(
    strategy: str, signals: list[int], alone: Path, tmp_path: Path
) -> None:
    """After a signal to one of them and a kill, metrics and curves are those of one process with the joint batch."""
    split = split_by(strategy)
    path, log = folder(tmp_path, *split), tmp_path / "log"
    last = path / "checkpoints" / "last.ckpt"
    statuses = {signal.SIGTERM: train.REQUEUE, signal.SIGKILL: -signal.SIGKILL, None: 0}
    for number in (*signals, None):
        before = last.stat().st_mtime_ns if last.exists() else 0
        argv = [sys.executable, "train.py", *command(tmp_path, *split)]
        with log.open("a") as output:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        if number is not None:
            while process.poll() is None and not (last.exists() and last.stat().st_mtime_ns > before):
                time.sleep(0.002)
            process.send_signal(number)
        assert process.wait() == statuses[number], log.read_text()
        wait_until(lambda group=process.pid: gone(group))  # the other process ends too
    assert_same_numbers(path, alone)
    assert curves(path).keys() == curves(alone).keys()
    for tag, points in curves(alone).items():
        np.testing.assert_allclose(curves(path)[tag], points, **tolerance(torch.float32), err_msg=tag)
    assert log.read_text().count("to resume: ") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sharded_run_continues_in_one_process_and_vice_versa(alone: Path, tmp_path: Path) -> None:
    shards = split_by("model_parallel")

    def train_in(run_dir: Path, *argv: str) -> Path:
        if argv[: len(WHOLE)] == (*WHOLE,):
            assert go(run_dir, *argv) == 0
        else:
            python("train.py", *command(run_dir, *argv))
        return folder(run_dir, *argv)

    for first, then in ((WHOLE, shards), (shards, WHOLE)):
        begun = train_in(tmp_path / "begun" / first[-1], *first, "--stop_at", "20")
        last = str(begun / "checkpoints" / "last.ckpt")
        assert_same_numbers(train_in(tmp_path / "ended" / first[-1], *then, "--ckpt_path", last), alone)
