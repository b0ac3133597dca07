"""Runs of `train.py` in processes of their own that start at once, so that tests can kill many of them.

Importing torch and Lightning takes longer than the runs. multiprocessing's fork server imports this module once, and
each run is a fork of it: a process like any other to whoever kills it.
"""

from __future__ import annotations

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
from lab.run.folder import RunFolder
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


def _before(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True, after: bool = False) -> None:
    """Die before (or after) the first call of a function for which `when` says so."""
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        doomed = when(*args)
        if doomed and not after:
            _die()
        result = function(*args, **kwargs)
        if doomed:
            _die()
        return result

    setattr(owner, name, call)


def _nth(n: int, when: Callable[..., bool] = lambda *_: True) -> Callable[..., bool]:
    """True at the n-th call for which `when` is."""
    count = 0

    def counted(*args: Any) -> bool:
        nonlocal count
        count += when(*args)
        return count == n

    return counted


def _half_written() -> None:
    save = zoo.training.checkpoints.torch.save

    def half(content: Any, file: Any) -> None:
        save(content, file)
        if Path(file.name).name == ".last.ckpt.tmp" and again():
            file.flush()
            file.truncate(file.tell() // 2)
            _die()

    again = _nth(2)
    zoo.training.checkpoints.torch.save = half


# Moments of a run at which it is killed, in the order in which a run meets them.
MOMENTS: dict[str, Callable[[], None]] = {
    "before the first checkpoint": lambda: _before(AtomicCheckpointIO, "save_checkpoint"),
    "with half a checkpoint written": _half_written,
    "between the renames of a checkpoint": lambda: _before(
        Path, "replace", _nth(2, lambda file, _: file.name == ".last.ckpt.tmp")
    ),
    "after the best checkpoint, before the last": lambda: _before(
        Path, "replace", _nth(2, lambda file, _: file.name == ".best.ckpt.tmp"), True
    ),
    "in a training step": lambda: _before(SequenceModule, "training_step", _nth(6)),
    "in a validation": lambda: _before(SequenceModule, "validation_step", _nth(4)),
    "at the end of training": lambda: _before(Interrupt, "on_fit_end"),
    "in the test": lambda: _before(SequenceModule, "test_step", _nth(2)),
    "before its metrics are written": lambda: _before(RunFolder, "write_metrics"),
    "while its metrics are written": lambda: _before(os, "replace", lambda _, to: Path(to).name == "metrics.json"),
}
