"""Runs of `train.py` in forked processes, which start fast enough that tests can kill many of them.

Importing torch and Lightning takes longer than a run. multiprocessing's fork server imports this module once and forks
a process per run.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich.table  # noqa: F401 (these imports are for the fork server)
import torch.utils.tensorboard  # noqa: F401

import tasks.datamodule  # noqa: F401
import zoo.training.checkpoints
from lab import training as train
from zoo.training import AtomicCheckpointIO, Interrupt, SequenceModule, Throughput  # noqa: F401


def run(argv: list[str], log: Path, moment: str | None) -> None:
    """Run train.py with these arguments; if `moment`, a key of `MOMENTS`, is given, kill the process there."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if moment is not None:
        MOMENTS[moment]()
    sys.exit(train.main(argv))


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Kill the process before the first call of `owner.name` whose arguments satisfy `when`."""
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            _die()
        return function(*args, **kwargs)

    setattr(owner, name, call)


def _nth(n: int) -> Callable[..., bool]:
    """A predicate that is true at its n-th call."""
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


# {moment: patch that kills the process there}, in the order in which a run reaches them.
MOMENTS: dict[str, Callable[[], None]] = {
    "in a training step": lambda: _before(SequenceModule, "training_step", _nth(6)),
    "with half a checkpoint written": _half_written,
    "between the renames of a checkpoint": lambda: _before(
        Path, "replace", lambda file, _: file.name == ".last.ckpt.tmp"
    ),
    "in the test": lambda: _before(SequenceModule, "test_step", _nth(2)),
    "while its metrics are written": lambda: _before(os, "replace", lambda _, to: Path(to).name == "metrics.json"),
}
