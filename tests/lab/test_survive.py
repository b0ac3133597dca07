"""What a run survives, and what it says of the rest: two processes on a folder, damage, signals, full disks, kills."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from lab import config as cli
from lab import train
from lab.run import folder as run_folder
from tests import ROOT, python, slow
from tests.lab import kills
from tests.lab.runs import MEASURED, TINY, TinyRuns, error_line, results, wait_until
from tests.tolerances import tolerance
from tests.training import small
from tests.training.small import assert_identical
from zoo.loading.saved import is_whole
from zoo.signals import SCHEDULER, handled
from zoo.training import SequenceModule, Throughput

RUNS = TinyRuns(
    f"--mixer lstm --n_layers 1 {TINY} --trainer.max_steps 8 --trainer.val_check_interval 2 "
    "--trainer.log_every_n_steps 1 --trainer.enable_progress_bar false"
)
command, go, folder, trained = RUNS.command, RUNS.go, RUNS.folder, RUNS.trained


# Two processes on one folder

HOLDER = """
import sys
from pathlib import Path
from lab.run.folder import RunFolder
from lab.run.record import read_rungs
with RunFolder(Path(sys.argv[1]), sys.argv[2], 0).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder of our run."""
    name = str(folder(tmp_path).parent.relative_to(tmp_path))
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), name]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_refused_until_its_holder_ends(
    tmp_path: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"{folder(tmp_path)} is in use by process {holder.pid} on {os.uname().nodename}; wait"
    for switch in ((), ("--overwrite",)):
        assert go(tmp_path, *switch) == 2
        assert said in error_line(capsys)
    holder.kill()  # SIGKILL: nothing of ours can tidy up
    holder.wait()
    assert (folder(tmp_path) / "lock").exists()
    assert go(tmp_path) == 0
    assert not (folder(tmp_path) / "lock").exists()


def test_a_holder_that_ends_leaves_no_trace(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.communicate()
    assert holder.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_in_use_is_still_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go(tmp_path) == 0
    with run_folder.RunFolder.of(cli.parse(command(tmp_path))).lock():
        assert go(tmp_path) == 0
        assert go(tmp_path, "--test_only") == 0
    assert "this run is finished" in capsys.readouterr().out


# Damaged checkpoints


def cut(file: Path) -> None:
    """As a full disk or a lost node leaves what was never synced."""
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def zero(file: Path) -> None:
    """As some file systems do after a crash: the length is there, the last blocks were never written."""
    weight = max(torch.load(file, weights_only=True)["state_dict"].values(), key=torch.numel)
    data = bytearray(file.read_bytes())
    at = data.index(weight.numpy().tobytes())
    data[at : at + 64] = bytes(64)
    file.write_bytes(data)


def weights(path: Path, checkpoint: str) -> dict[str, torch.Tensor]:
    return torch.load(path / "checkpoints" / f"{checkpoint}.ckpt", weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    return trained(tmp_path_factory.mktemp("whole"))


def curves(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve but the one that a clock draws, as TensorBoard reads it."""
    read = small.curves(path)
    for tag, points in read.items():
        steps = [step for step, _ in points]
        # Lightning writes the epoch along with whatever it logs: twice where a step is validated.
        assert steps == sorted(steps if tag == "epoch" else set(steps)), f"{tag} overlaps: {steps}"
    return {tag: points for tag, points in read.items() if tag not in MEASURED}


def assert_same_run(path: Path, expected: Path) -> None:
    assert results(path) == results(expected)
    for checkpoint in ("best", "last"):
        assert_identical(weights(path, checkpoint), weights(expected, checkpoint))
    found, usual = curves(path), curves(expected)
    assert found.keys() == usual.keys() >= {"train/loss", "val/loss", "test/loss"}
    for tag in usual:
        assert found[tag] == usual[tag], tag


def at_step(step: int, act: Callable[[], None]) -> AbstractContextManager[Any]:
    """Runs inside do something after an optimizer step."""
    after = Throughput.on_train_batch_end

    def acting(self: Throughput, trainer: Any, *rest: Any) -> None:
        after(self, trainer, *rest)
        if trainer.global_step == step:
            act()

    return patch.object(Throughput, "on_train_batch_end", acting)


def stopped(run_dir: Path, *argv: str) -> Path:
    """The folder of a run that was asked to stop after its fifth step."""
    with at_step(5, lambda: signal.raise_signal(signal.SIGINT)):
        assert go(run_dir, *argv) == 130
    return folder(run_dir, *argv)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "names", "source"),
    [(cut, ["last"], "previous"), (zero, ["last"], "previous"), (cut, ["last", "previous"], "best")],
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path,
    whole: Path,
    damage: Callable[[Path], None],
    names: list[str],
    source: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = stopped(tmp_path)
    capsys.readouterr()
    for name in names:
        damage(path / "checkpoints" / f"{name}.ckpt")
    assert go(tmp_path) == 0
    out, err = capsys.readouterr()
    checkpoints = path / "checkpoints"
    good = checkpoints / f"{source}.ckpt"
    said = "train.py: {0}.ckpt is damaged and now {1}/{0}.ckpt.damaged; the run resumes from {2}"
    assert err.splitlines() == [said.format(name, checkpoints, good) for name in names]
    assert re.search(rf"resumed from step [24] \({re.escape(str(good))}\)", out)
    assert_same_run(path, whole)


@pytest.mark.slow
def test_a_run_in_float64_goes_on_in_float64(tmp_path: Path) -> None:
    double = ("--trainer.precision", "64-true")
    stopped(tmp_path / "run", *double)
    assert_same_run(trained(tmp_path / "run", *double), trained(tmp_path / "whole", *double))


def test_a_kill_between_the_renames_of_a_save_loses_nothing(tmp_path: Path, whole: Path) -> None:
    path = stopped(tmp_path)
    checkpoints = path / "checkpoints"
    (checkpoints / "last.ckpt").replace(checkpoints / "previous.ckpt")
    (checkpoints / ".last.ckpt.tmp").write_bytes(b"half")
    assert go(tmp_path) == 0
    assert_same_run(path, whole)
    assert not (checkpoints / ".last.ckpt.tmp").exists()


@pytest.mark.parametrize("names", [["best"], ["last", "previous", "best"]])
def test_where_no_checkpoint_brings_the_run_back_it_is_refused(
    tmp_path: Path, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = stopped(tmp_path)
    capsys.readouterr()
    files = [path / "checkpoints" / f"{name}.ckpt" for name in names]
    for file in files:
        cut(file)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert go(tmp_path) == 2
    assert f"damaged: {', '.join(map(str, files))}; --overwrite starts the run anew" in error_line(capsys)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.name != "lock"} == before
    assert go(tmp_path, "--overwrite") == 0


def test_the_previous_checkpoint_is_the_last_but_one(whole: Path) -> None:
    steps = {
        name: torch.load(whole / "checkpoints" / f"{name}.ckpt", weights_only=True)["global_step"]
        for name in ("last", "previous")
    }
    assert steps == {"last": 8, "previous": 6}
    assert all(is_whole(file) for file in (whole / "checkpoints").iterdir())


# A scheduler's signals


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a job step of SLURM finds, and a `scontrol` that notes in the file returned how it was called."""
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


@pytest.mark.parametrize("where", ["at step 3", "outside training"])
@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGUSR1)])
def test_a_scheduler_that_asks_finds_a_checkpoint_and_a_status_of_its_own(
    tmp_path: Path,
    whole: Path,
    slurm: Path,
    number: int,
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, before = tmp_path / "runs", signal.getsignal(number)
    last = folder(run_dir) / "checkpoints" / "last.ckpt"

    def ask(*_: Any) -> None:
        signal.raise_signal(number)

    with at_step(3, ask) if where == "at step 3" else patch.object(SequenceModule, "test_step", ask):
        assert go(run_dir) == train.REQUEUE
    assert signal.getsignal(number) == before
    assert capsys.readouterr().err == (
        f"train.py: stopped by {signal.Signals(number).name} {where}"
        f"{f': resume from {last}' if where == 'at step 3' else ''}\n"
        f"to resume: {train.resume_command(command(run_dir))}\n"
    )
    assert go(run_dir) == 0
    assert f"resumed from step {3 if where == 'at step 3' else 8}" in capsys.readouterr().out
    assert_same_run(folder(run_dir), whole)
    # Lightning would have put the job back by itself, with a checkpoint of its own next to the runs.
    assert not slurm.exists()
    assert not list(tmp_path.rglob("hpc_ckpt*"))


# Trains as where there is neither SIGUSR1 nor fork, as far as our modules see it, and asks the process to stop.
ELSEWHERE = """
import os, signal, sys
import lightning, numba
taken = (signal, "SIGUSR1", signal.SIGUSR1), (os, "register_at_fork", os.register_at_fork)
for owner, name, _ in taken:
    delattr(owner, name)
import zoo.ops.scan_numba
from lab import train
from zoo.training import Interrupt, Throughput
for owner, name, what in taken:
    setattr(owner, name, what)
step, act = Throughput.on_train_batch_end, sys.argv.pop(1) == "stop"
def acting(self, trainer, *rest):
    step(self, trainer, *rest)
    if act and trainer.global_step == 3:
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)
Throughput.on_train_batch_end = acting
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_platform_without_sigusr1_trains_and_stops(tmp_path: Path) -> None:
    python("-c", ELSEWHERE, "stop", *command(tmp_path), status=train.REQUEUE)
    done = python("-c", ELSEWHERE, "go on", *command(tmp_path))
    assert "resumed from step 3" in done.stdout


def test_handlers_are_for_a_while_and_for_the_main_thread_alone() -> None:
    seen: list[int] = []
    before = [signal.getsignal(number) for number in SCHEDULER]
    with handled(SCHEDULER, lambda number, _: seen.append(number)):
        for number in SCHEDULER:
            signal.raise_signal(number)
    assert seen == list(SCHEDULER) == [signal.SIGTERM, signal.SIGUSR1]
    assert [signal.getsignal(number) for number in SCHEDULER] == before
    found: list[Any] = []

    def elsewhere() -> None:
        with handled(SCHEDULER, lambda *_: None):
            found.extend(signal.getsignal(number) for number in SCHEDULER)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == before


def test_a_signal_while_the_command_line_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "parse", lambda _: signal.raise_signal(signal.SIGTERM))
    assert train.main(command(tmp_path)) == train.REQUEUE
    assert capsys.readouterr().err.startswith("train.py: stopped by SIGTERM outside training\n")
    assert list(tmp_path.iterdir()) == []


# Full disks and folders that cannot be written


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Let no file grow beyond so many bytes: what a full disk does to those who write, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def events(path: Path) -> Path:
    return next(path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("full_for", "room"),
    [("checkpoints", lambda path: 20_000), ("curves", lambda path: events(path).stat().st_size + 30)],
)
def test_a_full_disk_ends_the_run_in_one_line_and_the_checkpoint_before_stays(
    tmp_path: Path,
    whole: Path,
    full_for: str,
    room: Callable[[Path], int],
    limit: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = folder(tmp_path)
    with at_step(5, lambda: limit(room(path))):
        assert go(tmp_path) == 1
    limit(resource.RLIM_INFINITY)
    line = error_line(capsys)
    assert "File too large" in line
    assert "unexpected pos" not in line
    assert str(path) in line
    assert is_whole(path / "checkpoints" / "last.ckpt")
    assert not (path / "checkpoints" / ".last.ckpt.tmp").exists()
    assert go(tmp_path) == 0
    assert_same_run(path, whole)


@pytest.mark.slow
def test_a_full_disk_at_the_very_end_costs_the_table_alone(
    tmp_path: Path, whole: Path, limit: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write, path = run_folder.RunFolder.write_metrics, folder(tmp_path)

    def full(self: run_folder.RunFolder, metrics: Any) -> None:
        limit(100)
        write(self, metrics)

    with patch.object(run_folder.RunFolder, "write_metrics", full):
        assert go(tmp_path) == 1
    limit(resource.RLIM_INFINITY)
    assert error_line(capsys) == f"train.py: error: cannot write to {path}: File too large\n"
    assert not [file for file in path.iterdir() if "metrics" in file.name]
    assert go(tmp_path) == 0
    assert_same_run(path, whole)


@pytest.fixture
def obey_permissions() -> Iterator[None]:
    """Root writes where it has no permission to; take that power (CAP_DAC_OVERRIDE) from this thread for a test."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for capabilities below 32 and above
    assert libc.capget(header, data) == 0
    effective = data[0]
    data[0] &= ~(1 << 1)
    assert libc.capset(header, data) == 0
    yield
    data[0] = effective
    assert libc.capset(header, data) == 0


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Take the permission to write from a folder, until the test ends."""
    taken = []

    def take(path: Path) -> None:
        taken.append(path)
        path.chmod(0o555)

    yield take
    for path in taken:
        path.chmod(0o755)


@pytest.mark.usefixtures("obey_permissions")
def test_a_read_only_folder_is_refused_before_the_run(
    tmp_path: Path, read_only: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    new, begun = tmp_path / "new", stopped(tmp_path / "begun")
    new.mkdir()
    capsys.readouterr()
    for run_dir, locked in ((new, new), (tmp_path / "begun", begun)):
        read_only(locked)
        assert go(run_dir) == 2
        line = error_line(capsys)
        assert f"cannot write the run folder {folder(run_dir)}: Permission denied" in line
    assert list(new.iterdir()) == []


@pytest.mark.usefixtures("obey_permissions")
def test_a_finished_run_in_a_read_only_folder_is_shown(
    whole: Path, read_only: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    read_only(whole)
    assert go(whole.parents[2]) == 0
    assert capsys.readouterr().out.startswith("this run is finished")


@pytest.mark.slow
@pytest.mark.usefixtures("obey_permissions")
def test_a_folder_that_becomes_read_only_keeps_its_checkpoint(
    tmp_path: Path, whole: Path, read_only: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = folder(tmp_path) / "checkpoints"
    with at_step(5, lambda: read_only(checkpoints)):
        assert go(tmp_path) == 1
    assert re.search(rf"cannot write checkpoint {checkpoints}/\w+\.ckpt: .*Permission denied", error_line(capsys))
    checkpoints.chmod(0o755)
    assert go(tmp_path) == 0
    assert_same_run(checkpoints.parent, whole)


# Kills

SCENARIOS = {
    "validation within the epoch": "--trainer.max_steps 400 --trainer.val_check_interval 7",
    "validation at the epoch's end": "--trainer.max_steps 400 --trainer.val_check_interval 8",
    "accumulation": "--trainer.max_steps 300 --trainer.val_check_interval 6 --trainer.accumulate_grad_batches 2",
    "fresh examples": "--trainer.max_steps 400 --trainer.val_check_interval 7 --task.fresh true",
}
MOST_KILLS, FEWEST_KILLS = 6, 4


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    """Processes that start with torch and Lightning imported; the imports take longer than the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        context = kills.fork_server()
        context.Process(target=abs, args=(0,)).start()
    return context


def next_second(path: Path) -> None:
    """Wait until a new file of events sorts after those there are: their names tell no moments within a second."""
    while any(int(file.name.split(".")[3]) >= int(time.time()) for file in path.glob("events.*")):
        time.sleep(0.02)


def kill_at_random(process: ForkServerProcess, last: Path, rng: np.random.Generator) -> None:
    """Send SIGKILL some saves later, anywhere between two of them, if the process is still there."""

    def saved() -> int:
        try:
            return last.stat().st_mtime_ns
        except FileNotFoundError:  # not yet, or between two renames
            return 0

    seen, times = saved(), [time.monotonic()]
    n_saves = rng.integers(1, 6)
    while len(times) <= n_saves and process.is_alive():
        if (now := saved()) > seen:
            seen = now
            times.append(time.monotonic())
        time.sleep(0.001)
    if len(times) > 2:
        time.sleep(rng.uniform(0, (times[-1] - times[1]) / (len(times) - 2)))
    process.kill()
    process.join()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_killed_again_and_again_ends_as_if_it_never_was(
    tmp_path: Path, scenario: str, forks: ForkServerContext, rng: np.random.Generator
) -> None:
    argv, log = SCENARIOS[scenario].split(), tmp_path / "log"
    undisturbed = kills.start(forks, command(tmp_path / "whole", *argv), log)
    path, n_kills = folder(tmp_path / "run", *argv), 0
    while not (path / "metrics.json").exists():
        next_second(path)
        process = kills.start(forks, command(tmp_path / "run", *argv), log)
        if n_kills < MOST_KILLS:
            kill_at_random(process, path / "checkpoints" / "last.ckpt", rng)
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), log.read_text()
        n_kills += process.exitcode != 0
    assert n_kills >= FEWEST_KILLS
    undisturbed.join()
    assert undisturbed.exitcode == 0, log.read_text()
    assert_same_run(path, folder(tmp_path / "whole", *argv))


@pytest.mark.slow
def test_a_run_that_stops_on_its_way_ends_as_if_it_never_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = trained(tmp_path / "whole")
    # In between validations, at one by its share of the steps, again where it has been.
    for stop_at in ("3", "0.5", "0.5", "6"):
        assert go(tmp_path / "stopped", "--stop_at", stop_at) == 0
    assert capsys.readouterr().out.count("has been at step 4 before") == 1
    assert go(tmp_path / "stopped", "--stop_at", "5") == 2
    assert "the run is at step 6 already and cannot stop at 5" in capsys.readouterr().err
    rungs = read_rungs(folder(tmp_path / "stopped"))
    assert {at: found["step"] for at, found in rungs.items()} == {"3": 3, "0.5": 4, "6": 6}
    path = trained(tmp_path / "stopped")
    assert results(path) == results(whole)
    for name in ("best", "last"):
        kept = [torch.load(each / "checkpoints" / f"{name}.ckpt", weights_only=True) for each in (path, whole)]
        assert_identical(*(each["state_dict"] for each in kept))
        assert_identical(*(each["optimizer_states"][0]["state"][0] for each in kept))
        assert kept[0]["loops"] == kept[1]["loops"]
    assert go(tmp_path / "stopped", "--stop_at", "0.75") == 2
    assert "finished without stopping at 0.75" in capsys.readouterr().err
    assert go(tmp_path / "stopped", "--stop_at", "1.0") == 0  # the end of a finished run is a stop too
    finished = json.loads((path / "metrics.json").read_text(encoding="utf-8"))
    assert read_rungs(path)["1.0"] == {key: each for key, each in finished.items() if key != "test"}
    assert go(tmp_path / "diverged", "--lr", "1e30", "--stop_at", "6") == 1
    (found,) = read_rungs(folder(tmp_path / "diverged", "--lr", "1e30")).values()
    assert "is not finite" in found["diverged"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", kills.MOMENTS)
def test_a_run_killed_at_an_awkward_moment_ends_as_if_it_never_was(
    tmp_path: Path, whole: Path, moment: str, forks: ForkServerContext
) -> None:
    path, log = folder(tmp_path), tmp_path / "log"
    for at, status in ((moment, -signal.SIGKILL), (None, 0)):
        next_second(path)
        process = kills.start(forks, command(tmp_path), log, at)
        process.join()
        assert process.exitcode == status, log.read_text()
    assert_same_run(path, whole)


# Several processes on one run

ALIKE = shlex.split(
    "--mixer hybrid --n_layers 2 --trainer.max_steps 60 --trainer.val_check_interval 4 --trainer.precision 64-true "
    "--task.n_pairs 4 --task.min_pairs 1 --task.n_val 18 --task.n_test 18"  # unequal numbers of labels and of rows
)


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def leaves(metrics: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers of nested metrics, each with where it stands."""
    if not isinstance(metrics, dict | list):
        yield path, metrics
        return
    for name, value in metrics.items() if isinstance(metrics, dict) else enumerate(metrics):
        yield from leaves(value, f"{path}/{name}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_train_as_one_with_their_batches_together_and_survive_the_same(tmp_path: Path) -> None:
    """Stopped by a signal to one of them, then killed: in the end the metrics and curves of the one process."""
    whole = [*ALIKE, "--batch_size", "16"]
    split = [*ALIKE, "--batch_size", "8", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    alone = trained(tmp_path, *whole)
    path, log = folder(tmp_path, *split), tmp_path / "log"
    last = path / "checkpoints" / "last.ckpt"
    for number, status in ((signal.SIGTERM, train.REQUEUE), (signal.SIGKILL, -signal.SIGKILL), (None, 0)):
        before = last.stat().st_mtime_ns if last.exists() else 0
        argv = [sys.executable, "train.py", *command(tmp_path, *split)]
        with log.open("a") as output:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        if number is not None:
            while process.poll() is None and not (last.exists() and last.stat().st_mtime_ns > before):
                time.sleep(0.002)
            process.send_signal(number)
        assert process.wait() == status, log.read_text()
        wait_until(lambda group=process.pid: gone(group))  # the other process too
    found, expected = dict(leaves(results(path))), dict(leaves(results(alone)))
    absent = [name for name, value in expected.items() if value is None]  # not learned: no steps to 90 %
    assert [found.pop(name) for name in absent] == [expected.pop(name) for name in absent]
    assert found == pytest.approx(expected, rel=tolerance(torch.float64)["rtol"], abs=tolerance(torch.float64)["atol"])
    assert curves(path).keys() == curves(alone).keys()
    for tag, points in curves(alone).items():
        np.testing.assert_allclose(curves(path)[tag], points, **tolerance(torch.float32), err_msg=tag)
    assert log.read_text().count("to resume: ") == 1
