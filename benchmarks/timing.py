"""Measure time and memory: candidates take turns in one process, and medians are reported."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from zoo.threads import threads

ROOT = Path(__file__).resolve().parent.parent
SPIN = "while True: pass"

Run = Callable[[], object]


def seconds_of(run: Run) -> float:
    """Run once and return the elapsed seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(
    candidates: Mapping[str, Run], rounds: int, patience: float = 1.0, clock: Callable[[Run], float] = seconds_of
) -> dict[str, float]:
    """Return the median seconds of each candidate; all take turns in every round, so that a disturbance affects all.

    Each candidate runs once before as a warm-up. If that takes longer than `patience` seconds, it joins only the first
    three rounds.
    """
    slow = {name for name, run in candidates.items() if clock(run) > patience}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(max(rounds, 1)):
        for name, run in candidates.items():
            if turn < 3 or name not in slow:
                seconds[name].append(clock(run))
    return {name: statistics.median(each) for name, each in seconds.items()}


def compared(
    forms: Mapping[str, Callable[..., Tensor]], inputs: Sequence[Tensor], rounds: int, n_threads: int = 1
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name of each pass (forward; forward + backward), and the median seconds of the forms, in turns."""
    for title, wrap in (("forward", forward_only), ("forward + backward", forward_and_backward)):
        with threads(n_threads):
            seconds = interleaved({name: wrap(form, inputs) for name, form in forms.items()}, rounds)
        yield title, seconds


def repeated(step: Callable[..., tuple[Any, ...]], state: Sequence[Any], count: int) -> Run:
    """Return a run of `count` steps, each of which returns its output and the state of the next one."""

    def run() -> None:
        now = state
        for _ in range(count):
            _, *now = step(*now)

    return run


def trained(*flags: str) -> tuple[dict[str, Any], float]:
    """Run `train.py` in a temporary folder; return its metrics and the seconds of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", *flags]
        seconds = finished([*command, "--run_dir", f"{folder}/runs", "--task.cache_dir", f"{folder}/cache"], cwd=ROOT)
        (metrics,) = Path(folder).glob("runs/**/metrics.json")
        return json.loads(metrics.read_text()), seconds


def finished(command: Sequence[str], **options: Any) -> float:
    """Run a process and return its seconds; if it fails, exit with its output."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return seconds


def forward_only(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], None]:
    """Return a run of `form` without gradients."""

    def run() -> None:
        with torch.no_grad():
            form(*inputs)

    return run


def forward_and_backward(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], None]:
    """Return a run of `form` and of its backward pass to the inputs, for a fixed random cotangent."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    with torch.no_grad():
        shape = form(*inputs).shape
    cotangent = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=inputs[0].dtype)

    def run() -> None:
        torch.autograd.grad(form(*leaves), leaves, cotangent, allow_unused=True)

    return run


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy with spinning processes."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def isolated(task: Callable[..., Any], *arguments: Any) -> Any:
    """Return `task(*arguments)`, computed in a fresh process from a fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", task.__module__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(task, *arguments).result()


def peak_bytes(run: Callable[[], object]) -> int:
    """Return torch's peak allocation on the CPU during `run`, in bytes above its start.

    torch's profiler sees every tensor, also inside of operations, so the number is reproducible; resident memory is
    not. It does not see internal memory of oneDNN, MKL and numba's loops.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    assert found.profiler is not None
    assert found.profiler.kineto_results is not None
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(changes), default=0)


def all_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
