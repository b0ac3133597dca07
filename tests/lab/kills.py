"""Runs of `train.py` in processes of their own that start at once, so that tests can kill many of them.

Importing torch and Lightning takes longer than the runs. multiprocessing's fork server imports this module once, and
each run is a fork of it: a process like any other to whoever kills it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich.table  # noqa: F401 (as the following: imported before the fork)
import torch.utils.tensorboard  # noqa: F401

import tasks.datamodule  # noqa: F401
import zoo.training.checkpoints
from lab import training as train
from zoo.training import AtomicCheckpointIO, Interrupt, SequenceModule, Throughput  # noqa: F401


def run(argv: list[str], log: Path, moment: str | None) -> None:
    """Run a command line of train.py; with a moment of `MOMENTS`, kill it there."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if moment is not None:
        MOMENTS[moment]()
    sys.exit(train.main(argv))


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Die before the first call of a function for which `when` says so."""
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            _die()
        return function(*args, **kwargs)

    setattr(owner, name, call)


def _nth(n: int) -> Callable[..., bool]:
    """True at the n-th call."""
    calls = itertools.count(1)
    return lambda *_: next(calls) == n


def _half_written() -> None:
    save = zoo.training.checkpoints.torch.save

    def half(content: Any, file: Any) -> None:
        save(content, file)
        if Path(file.name).name == ".last.ckpt.tmp":
            file.flush()
            file.truncate(file.tell() // 2)
            _die()

    zoo.training.checkpoints.torch.save = half


# Moments of a run at which it is killed, in the order in which a run meets them.
MOMENTS: dict[str, Callable[[], None]] = {
    "in a training step": lambda: _before(SequenceModule, "training_step", _nth(6)),
    "with half a checkpoint written": _half_written,
    "between the renames of a checkpoint": lambda: _before(
        Path, "replace", lambda file, _: file.name == ".last.ckpt.tmp"
    ),
    "in the test": lambda: _before(SequenceModule, "test_step", _nth(2)),
    "while its metrics are written": lambda: _before(os, "replace", lambda _, to: Path(to).name == "metrics.json"),
}
