"""Tiny runs of train.py for the tests: start them, find their folders, read their metrics."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import config as cli
from lab import training as train
from lab.run.folder import RunFolder
from lab.run.record import read_metrics

MEASURED = {"tokens_per_second", "seconds"}
TINY = (
    "--d_model 16 --batch_size 8 --task.n_train 64 --task.n_val 16 --task.n_test 16 --task.seq_len 16 --task.n_pairs 2 "
    "--task.vocab_size 32 --trainer.accelerator cpu --figures_every 0"
)
"""Options that keep a run short."""


class TinyRuns:
    """Runs with shared options; each call adds a folder and further flags.

    Args:
        options: flags of train.py, as on the command line.
    """

    def __init__(self, options: str) -> None:
        self.options = shlex.split(options)

    def command(self, run_dir: Path, *argv: str) -> list[str]:
        """The arguments after `python train.py`."""
        return [*self.options, "--run_dir", str(run_dir), *argv]

    def go(self, run_dir: Path, *argv: str) -> int:
        """Train in this process, and return the exit status."""
        return train.main(self.command(run_dir, *argv))

    def trained(self, run_dir: Path, *argv: str) -> Path:
        """Train in this process, assert success, and return the run's folder."""
        assert self.go(run_dir, *argv) == 0
        return self.folder(run_dir, *argv)

    def without(self, *flags: str) -> TinyRuns:
        """A copy without these flags and their values."""
        pairs = zip(self.options[::2], self.options[1::2], strict=True)
        return TinyRuns(shlex.join(word for pair in pairs if pair[0] not in flags for word in pair))

    def folder(self, run_dir: Path, *argv: str) -> Path:
        """The run's folder."""
        return RunFolder.of(cli.parse(self.command(run_dir, *argv))).path


def metrics(path: Path) -> dict[str, Any]:
    """Read metrics.json from a run's folder."""
    found = read_metrics(path)
    assert found is not None
    return found


def results(path: Path) -> dict[str, Any]:
    """Metrics without timings, which differ from run to run."""
    return {key: value for key, value in metrics(path).items() if key not in MEASURED}


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until the condition holds; fail after `seconds`."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not so after {seconds} s"
        time.sleep(0.02)


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Output of flags that print something and exit, such as --help."""
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.parse(argv)
    return capsys.readouterr().out
