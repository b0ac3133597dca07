"""Start runs of train.py as forks of a process that has already imported everything, which saves seconds per run.

A fork gets SIGTERM, on which it saves, if the sweep that started it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

_ONE_AT_A_TIME = threading.Lock()
"""Held while a fork starts or its status is read. Starting one also collects the statuses of the others, and each can
be collected only once."""

PRELOADED = ("lab.training", "rich.table", "torch.utils.tensorboard", "tasks.datamodule", "zoo.training.module")


class Fork:
    """A run of train.py in a separate process, with the interface of `subprocess.Popen`.

    Args:
        argv: the arguments of train.py.
        cwd: working directory, for relative paths among the arguments.
        log: file to which the output is appended.
        environment: environment variables added to this process's own.
    """

    def __init__(self, argv: Sequence[str], cwd: Path, log: Path, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        # lab.training comes first: it sets an environment variable that torch reads on import.
        context.set_forkserver_preload(list(PRELOADED))
        settings = {**os.environ, **environment}
        self._process = context.Process(target=_run, args=(list(argv), str(cwd), str(log), settings))
        with _ONE_AT_A_TIME:
            self._process.start()
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status, negative for a signal.

        Raises:
            TimeoutExpired: the process has not ended in time.
        """
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired("train.py", timeout or 0.0)
        with _ONE_AT_A_TIME:
            self._process.join()
            status = self._process.exitcode
        assert status is not None
        return status


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a run may be a fork: not on Windows, and not on a GPU, because CUDA does not survive a fork."""
    return "forkserver" in multiprocessing.get_all_start_methods() and "CUDA_VISIBLE_DEVICES" not in environment


def _run(argv: list[str], cwd: str, log: str, settings: dict[str, str]) -> None:
    from lab import training as train

    os.setsid()  # a Ctrl-C in the terminal reaches the sweep only
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Path(log).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(settings)
    sys.argv = ["train.py", *argv]
    sys.exit(train.main(argv))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
