"""train.py as the tests run it: tiny runs, where they are kept, what they found."""

from __future__ import annotations

import re
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
"""What makes a run short."""


class TinyRuns:
    """Runs that share their options; each call names a folder and what else differs.

    Args:
        options: flags of train.py, as typed.
    """

    def __init__(self, options: str) -> None:
        self.options = shlex.split(options)

    def command(self, run_dir: Path, *argv: str) -> list[str]:
        """Everything behind `python train.py`."""
        return [*self.options, "--run_dir", str(run_dir), *argv]

    def go(self, run_dir: Path, *argv: str) -> int:
        """Train in this process; the exit status."""
        return train.main(self.command(run_dir, *argv))

    def trained(self, run_dir: Path, *argv: str) -> Path:
        """Train in this process, which must end well; the run's folder."""
        assert self.go(run_dir, *argv) == 0
        return self.folder(run_dir, *argv)

    def without(self, *flags: str) -> TinyRuns:
        """Runs without some of the flags and their values."""
        pairs = zip(self.options[::2], self.options[1::2], strict=True)
        return TinyRuns(shlex.join(word for pair in pairs if pair[0] not in flags for word in pair))

    def folder(self, run_dir: Path, *argv: str) -> Path:
        """Where the run is kept."""
        return RunFolder.of(cli.parse(self.command(run_dir, *argv))).path


def metrics(path: Path) -> dict[str, Any]:
    """metrics.json of a run's folder."""
    found = read_metrics(path)
    assert found is not None
    return found


def results(path: Path) -> dict[str, Any]:
    """Metrics without those that a clock decides."""
    return {key: value for key, value in metrics(path).items() if key not in MEASURED}


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that must come about."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What is printed in place of a run."""
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.parse(argv)
    return capsys.readouterr().out


def error_line(capsys: pytest.CaptureFixture[str], program: str = "train.py") -> str:
    """The one line on stderr."""
    text = capsys.readouterr().err
    assert re.fullmatch(rf"{re.escape(program)}: error: [^\n]+\n", text), text
    return text
