"""Measuring side by side: candidates take turns in one process, and what is kept are medians."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SPIN = "while True: pass"


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int, patience: float = 1.0) -> dict[str, float]:
    """Return the median seconds of each candidate; each has its turn in every round, so that a disturbance meets all.

    Each runs once beforehand, unmeasured. One that took longer than `patience` seconds then sits out all rounds but
    the first three.
    """
    slow = {name for name, run in candidates.items() if _seconds(run) > patience}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(max(rounds, 1)):
        for name, run in candidates.items():
            if turn < 3 or name not in slow:
                seconds[name].append(_seconds(run))
    return {name: statistics.median(each) for name, each in seconds.items()}


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def forward_only(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], None]:
    """Return a forward pass of `form` that no gradient is kept for."""

    def run() -> None:
        with torch.no_grad():
            form(*inputs)

    return run


def forward_and_backward(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], None]:
    """Return a forward pass of `form`, and the gradients of all inputs for a fixed random cotangent."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    with torch.no_grad():
        shape = form(*inputs).shape
    cotangent = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=inputs[0].dtype)

    def run() -> None:
        torch.autograd.grad(form(*leaves), leaves, cotangent)

    return run


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many intra-op threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy with processes that do nothing else."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def isolated(task: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `task(*arguments)`, run in a process forked from one that has run nothing yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", task.__module__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(task, *arguments).result()


def peak_bytes(run: Callable[[], object]) -> int:
    """Return how far the resident memory of this process rises above what it was while `run` runs, in bytes.

    Linux: the kernel's own high-water mark, set back before the run. `run` should have run once before, so that what
    loads or compiles once is there already. What the allocator keeps of that goes back to the system first: pages that
    are resident already would count for nothing.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"this system does not report {field}")
    return 1024 * int(found[1])


def all_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
