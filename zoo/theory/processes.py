"""Run measurements in several processes; threads would not do, because coefficients are recorded per process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

import torch

Progress = Callable[[str, str], None]
"""Called with the row and the quantity that is measured next."""

Result = TypeVar("Result")
Measure = Callable[[int, Progress], Result]
"""Measures item k, and reports its row and each quantity to the given function."""

_EVERY = 0.2  # seconds between two reports of progress
_work: tuple[Measure[Any], Progress] | None = None  # set in worker processes


def unreported(row: str, quantity: str) -> None:
    """Ignore the progress of a measurement: the default `Progress`."""


def cores() -> int:
    """Return the number of cores that this process may use; 1 if processes cannot fork (not on Linux)."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def measured(measure: Measure[Result], count: int, processes: int, progress: Progress) -> list[Result]:
    """Return `measure(k, progress)` for k from 0 to `count` - 1, computed by several processes of one thread each.

    The processes are forks and share memory. With `processes=1`, this process does the work with all of its threads.

    Raises:
        MemoryError: a process was killed, which the system does if memory runs out.
    """
    processes = min(processes, count)
    if processes <= 1:
        return [measure(k, progress) for k in range(count)]
    context = multiprocessing.get_context("fork")
    reports: SimpleQueue[tuple[str, str]] = context.SimpleQueue()
    given = (measure, lambda *of: reports.put(of))
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=given) as pool:
        results = [pool.submit(_measure, k) for k in range(count)]
        try:
            waiting = set(results)
            while waiting:
                done, waiting = wait(waiting, _EVERY, FIRST_EXCEPTION)
                for result in done:
                    result.result()  # raise its error without waiting for the others
                while not reports.empty():
                    progress(*reports.get())
            return [result.result() for result in results]
        except BrokenProcessPool as error:
            raise MemoryError("a worker process was killed, probably because memory ran out") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(measure: Measure[Any], progress: Progress) -> None:
    global _work
    torch.set_num_threads(1)
    _work = measure, progress


def _measure(k: int) -> Any:
    assert _work is not None
    return _work[0](k, _work[1])
