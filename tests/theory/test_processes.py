"""Measurements distributed over processes: order, progress, errors."""

from __future__ import annotations

import os
import signal

import pytest

from zoo.theory import processes
from zoo.theory.processes import Progress, cores, measured

several = pytest.mark.skipif(cores() == 1 and not hasattr(os, "fork"), reason="processes do not fork here")


@pytest.mark.parametrize("n_processes", [1, pytest.param(2, marks=several)])
def test_results_are_in_order_and_progress_is_reported(n_processes: int) -> None:
    reports: list[tuple[str, str]] = []

    def measure(k: int, progress: Progress) -> tuple[int, bool]:
        progress(str(k), "square")
        return k * k, processes._work is None

    found = measured(measure, 5, n_processes, lambda *report: reports.append(report))
    assert found == [(k * k, n_processes == 1) for k in range(5)]
    assert sorted(reports) == [(str(k), "square") for k in range(5)]


@several
def test_errors_are_raised_and_a_killed_process_is_reported() -> None:
    def refuse(k: int, progress: Progress) -> int:
        if k == 1:
            raise ValueError("number 1")
        return k

    def die(k: int, progress: Progress) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return k

    with pytest.raises(ValueError, match="number 1"):
        measured(refuse, 3, 2, lambda *_: None)
    with pytest.raises(MemoryError, match="was killed, probably"):
        measured(die, 3, 2, lambda *_: None)
