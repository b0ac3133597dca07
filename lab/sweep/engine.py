"""Run the jobs of a sweep, each as a process of train.py, in slots of this machine or as tasks of Ray.

A run's output goes to `log.txt` in its folder, which also shows its progress and the reason of a failure. `done.json`
marks a complete run. If a process fails, is killed or runs out of memory, the other runs continue.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Literal, cast

from lab.run.files import DONE, LOG, METRICS
from lab.run.lock import IN_USE
from lab.run.metrics import Metrics, is_tested
from lab.run.record import read_metrics, rung_at
from lab.sweep.forks import Fork, can_fork
from lab.training import REQUEUE
from zoo.errors import UsageError
from zoo.extras import require_extra
from zoo.report.files import as_json, write_atomically

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "train.py"
COLUMNS = "120"  # width of the progress bar in a log; a narrower one has no room for the metrics
TAIL_LINES = 8
NOT_STARTED = "not started"
RAY_RETRIES = 3
RAY_UNITS = 10_000  # Ray allots GPUs in ten-thousandths
WAIT_FOR_OTHERS = 2.0  # seconds between attempts to start a run that another process trains
State = Literal["done", "failed", "stopped"]


@dataclass(frozen=True)
class Job:
    """A run to start or continue, to its end or up to a rung.

    Attributes:
        name: displayed name.
        arguments: command line of the program.
        folder: the run's folder, as an absolute path, so that it is the same on every node.
        stop_at: share of the steps at which to stop; None trains to the end and tests.
        expected: numbers that the metrics must contain, such as the planned number of parameters.
        cwd: working directory, for relative paths among the arguments.
        program: train.py, or a program that writes the same metrics to the folder.
    """

    name: str
    arguments: tuple[str, ...]
    folder: Path
    stop_at: float | None = None
    expected: Mapping[str, int] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path.cwd)
    program: Path = TRAIN

    @property
    def command(self) -> list[str]:
        """The command to start, as a list of words."""
        switch = [] if self.stop_at is None else [f"--stop_at={self.stop_at}"]
        return [sys.executable, str(self.program), *self.arguments, *switch]

    def metrics(self) -> Metrics | None:
        """Return the metrics at `stop_at`, or of the finished run; None if it has not come so far."""
        try:
            return read_metrics(self.folder) if self.stop_at is None else rung_at(self.folder, self.stop_at)
        except ValueError:
            return None

    def touched_since(self, moment: float) -> bool:
        """Return whether the run has started since `moment`, a value of `time.time()`: it has logged something."""
        try:
            return (self.folder / LOG).stat().st_mtime >= moment
        except OSError:
            return False

    @property
    def is_done(self) -> bool:
        """Whether the run has reached `stop_at`; without it, whether it is tested and marked by `done.json`."""
        if self.stop_at is not None:
            return self.metrics() is not None
        metrics = self.metrics() if (self.folder / DONE).is_file() else None
        return metrics is not None and is_tested(metrics)


@dataclass(frozen=True)
class Outcome:
    """How a job ended; a trial that diverged counts as done.

    Attributes:
        job: the job.
        state: "done", "failed" or "stopped".
        seconds: wall time of this attempt.
        message: reason; empty for a run that is done as planned.
        tail: last lines of the log; empty for a run that is done.
    """

    job: Job
    state: State
    seconds: float
    message: str = ""
    tail: tuple[str, ...] = ()


class Stop:
    """Requests to end the sweep: after the first, runs save and stop; after the second, they are killed."""

    def __init__(self) -> None:
        self.soft, self.hard = threading.Event(), threading.Event()

    def ask(self) -> None:
        """Add a request."""
        (self.hard if self.soft.is_set() else self.soft).set()


def run_job(job: Job, environment: Mapping[str, str], stop: Stop | None = None) -> Outcome:
    """Run a job in a separate process, and mark the run when it is done.

    Args:
        job: the run.
        environment: environment variables added to this process's own.
        stop: requests for an early end; an exception in this thread (a cancelled Ray task) also stops the run.
    """
    stop = stop or Stop()
    if stop.soft.is_set():
        return Outcome(job, "stopped", 0.0, NOT_STARTED)
    start = time.monotonic()
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        with (job.folder / LOG).open("ab") as log:
            while True:
                log.write(f"$ {shlex.join(job.command)}\n".encode())
                log.flush()
                begin = log.tell()
                status = _wait(_start(job, {"COLUMNS": COLUMNS, **environment}, log), stop)
                in_use = status == 2 and IN_USE in "".join(tail_lines(job.folder / LOG, begin))
                # Another process trains this run: try again until it has ended, then use its result.
                if not in_use or stop.soft.wait(WAIT_FOR_OTHERS):
                    break
        seconds = time.monotonic() - start
        if (metrics := job.metrics()) is not None and (status == 0 or "diverged" in metrics):
            for name, planned in job.expected.items():
                if "diverged" not in metrics and metrics.get(name) != planned:
                    return Outcome(job, "failed", seconds, f"{name} is {metrics.get(name)}, but {planned} was planned")
            if job.stop_at is not None:
                return Outcome(job, "done", seconds, str(metrics.get("diverged", "")))
            done = {"command": shlex.join(job.command), "seconds": seconds, "metrics": METRICS}
            done |= {"tested": is_tested(metrics), "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            write_atomically(job.folder / DONE, as_json(done))
            return Outcome(job, "done", seconds)
    except OSError as error:
        return Outcome(job, "failed", time.monotonic() - start, f"cannot write {job.folder}: {error.strerror}")
    tail = tuple(tail_lines(job.folder / LOG, begin))
    if stop.soft.is_set():
        return Outcome(job, "stopped", seconds, "stopped", tail)
    return Outcome(job, "failed", seconds, reason(status), tail)


def _start(job: Job, environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes] | Fork:
    _, program, *argv = job.command
    if Path(program) == TRAIN and can_fork(environment):
        return Fork(argv, job.cwd, job.folder / LOG, environment)
    # In a new session, so that a Ctrl-C in the terminal reaches only the sweep, which then asks each run to save.
    return subprocess.Popen(
        job.command,
        cwd=job.cwd,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,
        preexec_fn=_END_WITH_PARENT,
    )


_PR_SET_PDEATHSIG = 1
# A sweep (or a Ray worker) that is killed cannot stop its runs; on Linux the kernel does it instead, so that the same
# command finds no run still training in its folder. Windows allows no preexec_fn.
_END_WITH_PARENT = (
    functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if sys.platform == "linux"
    else None
)


def _wait(process: subprocess.Popen[bytes] | Fork, stop: Stop) -> int:
    asked = False
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.2)
            if stop.hard.is_set():
                process.kill()
            elif stop.soft.is_set() and not asked:
                process.terminate()
                asked = True
    except BaseException:
        process.terminate()
        process.wait()
        raise


def reason(status: int) -> str:
    """Return in words why a job whose process ended with this exit status failed."""
    if status == 0:
        return f"ended without {METRICS}"
    if status == REQUEUE:
        return "stopped by a signal from outside the sweep; its checkpoint is saved"
    number = -status if status < 0 else status - 128
    if number not in set(signal.Signals):
        return f"exit status {status}"
    name = signal.Signals(number).name
    memory = " (out of memory?)" if name == "SIGKILL" else ""
    return f"killed by {name}{memory}"


def tail_lines(log: Path, begin: int = 0) -> list[str]:
    """Return the last lines of a log from byte `begin`, with only the last state of a redrawn progress bar."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = (line.rstrip().rsplit("\r", 1)[-1] for line in text.split("\n"))
    return [line for line in lines if line.strip()][-TAIL_LINES:]


_BAR = re.compile(r"training: .*?(\d+)/(\d+) \[[\d:]+<([\d:?]+), [^,\]]*(?:, ([^\]]*))?")


def progress(job: Job) -> tuple[str, str, str]:
    """Return step, metrics and time left from the progress bar in a job's log; empty before training."""
    for line in reversed(tail_lines(job.folder / LOG)):
        if found := _BAR.search(line):
            step, steps, left, metrics = found.groups("")
            return f"{int(step):,}/{int(steps):,}", metrics, left
        if line.startswith("$ "):
            break
    return "", "", ""


# Engines


def slot_environments(n_slots: int | None, use_gpus: bool, per_device: int | None = None) -> list[dict[str, str]]:
    """Return one set of environment variables per slot: its share of the cores, and a GPU if there are any.

    torch's number of threads is an option of the run (--threads, default one). OMP_NUM_THREADS is for other libraries;
    a value that is set already is kept.

    Args:
        n_slots: number of slots; default the number of GPUs, or of cores. If there are more slots than GPUs, slots
            share a GPU.
        use_gpus: whether the runs use a GPU if there is one.
        per_device: instead of n_slots, number of slots per GPU; without a GPU, on the CPU.
    """
    import joblib
    import torch

    listed, n_gpus = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count() if use_gpus else 0
    gpus = (listed.split(",") if listed else [str(i) for i in range(n_gpus)])[:n_gpus]
    cores = joblib.cpu_count()
    n_slots = n_slots or (per_device or 1) * len(gpus) or per_device or cores
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // n_slots))}
    return [threads | ({"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {}) for i in range(n_slots)]


def run_local(jobs: Sequence[Job], slots: Sequence[Mapping[str, str]], stop: Stop) -> Iterator[Outcome]:
    """Run jobs on this machine, one per slot at a time; yield outcomes as they come.

    Threads wait for the processes, because a pool of processes would break as soon as one is killed.
    """
    from joblib import Parallel, delayed

    free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for slot in slots:
        free.put(slot)

    def in_a_slot(job: Job) -> Outcome:
        slot = free.get()
        try:
            return run_job(job, slot, stop)
        finally:
            free.put(slot)

    pool = Parallel(n_jobs=len(slots), backend="threading", return_as="generator_unordered")
    # joblib annotates the items of its generator as Any or None.
    yield from cast(Iterator[Outcome], pool(delayed(in_a_slot)(job) for job in jobs))


def check_cluster(address: str, use_gpus: bool, per_device: int | None = None) -> None:
    """Check that the Ray cluster at an address answers, accepts the token, and has GPUs if runs are to share them.

    Args:
        address: address of the cluster.
        use_gpus: whether the runs use a GPU if there is one.
        per_device: number of runs that share a GPU; default one.

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: no cluster answers, or it refuses the token; per_device is given, but there are no GPUs.
    """
    ray = require_extra("ray", "ray")
    is_host_and_port = ":" in address and "://" not in address
    try:
        if is_host_and_port:
            require_extra("ray._raylet", "ray").GcsClient(address=address)  # ray.init retries a wrong token for 30 s
    except ray.exceptions.AuthenticationError:
        raise UsageError(
            f"the Ray cluster at {address} refuses the token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the "
            "token file with which its head node was started"
        ) from None
    except Exception as error:  # noqa: BLE001 - Ray raises a plain one if it does not start in time
        raise UsageError(f"no Ray cluster at {address}: {error}") from None
    if is_host_and_port and not per_device:
        return
    with _connected(ray, address):
        if per_device and not (use_gpus and ray.cluster_resources().get("GPU")):
            raise UsageError(
                f"--per_device {per_device}: the Ray cluster at {address} has no GPUs that runs could share"
            )


@contextmanager
def _connected(ray: Any, address: str | None, n_cpus: int | None = None) -> Iterator[None]:
    """Connect to a cluster, or start Ray on this machine, until the context ends."""
    # Without an address start a new Ray: one that already runs here may have other resources.
    options = {"address": address or "local", "logging_level": "ERROR", "log_to_driver": False}
    options |= {} if address else {"num_cpus": n_cpus, "include_dashboard": False}
    try:
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, **options)
    except Exception as error:  # noqa: BLE001 - Ray raises a plain one if it does not start in time
        raise UsageError(f"no Ray cluster at {address or 'this machine'}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def run_ray(
    jobs: Sequence[Job],
    slots: Sequence[Mapping[str, str]],
    stop: Stop,
    address: str | None,
    use_gpus: bool,
    per_device: int | None = None,
) -> Iterator[Outcome]:
    """Run jobs as tasks of Ray: on a cluster, or on this machine with one per slot at a time.

    A run reserves a GPU, or its share of one, if the cluster has any, and one core per thread. The runs of a lost node
    restart on another, up to `RAY_RETRIES` times, and resume from their last checkpoints. Every node must see this
    checkout and the run folders under the same paths.

    Args:
        jobs: the runs.
        slots: see `slot_environments`.
        stop: requests for an early end.
        address: address of a cluster; None starts Ray here.
        use_gpus: whether the runs use a GPU if there is one.
        per_device: number of runs that share a GPU; default one.

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: Ray does not start, or the cluster does not answer.
    """
    ray = require_extra("ray", "ray")
    threads = 1 if address else int(slots[0]["OMP_NUM_THREADS"])
    with _connected(ray, address, threads * len(slots)):
        n_gpus = ray.cluster_resources().get("GPU") if use_gpus else 0
        gpus = math.floor(RAY_UNITS / (per_device or 1)) / RAY_UNITS if n_gpus else 0.0
        task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RAY_RETRIES)(run_job)
        pending = {task.remote(job, {"OMP_NUM_THREADS": str(threads)}): job for job in jobs}
        cancelled = 0
        while pending:
            asked = stop.soft.is_set() + stop.hard.is_set()
            if asked > cancelled:
                for reference in pending:
                    ray.cancel(reference, force=stop.hard.is_set())
                cancelled = asked
            ready, _ = ray.wait(list(pending), timeout=0.5)
            for reference in ready:
                yield _outcome(ray, reference, pending.pop(reference))


def _outcome(ray: Any, reference: Any, job: Job) -> Outcome:
    try:
        return ray.get(reference)
    except (ray.exceptions.TaskCancelledError, KeyboardInterrupt):
        state, why = "stopped", "stopped"
    except ray.exceptions.RayError as error:
        state, why = "failed", f"lost by Ray: {str(error).strip().splitlines()[-1]}"
    return Outcome(job, state, 0.0, why, tuple(tail_lines(job.folder / LOG)))
