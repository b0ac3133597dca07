"""train.py as the tests run it: tiny runs, where they are kept, what they found."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lab import config as cli
from lab import run as run_folder
from lab import train

MEASURED = {"tokens_per_second", "seconds"}


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

    def folder(self, run_dir: Path, *argv: str) -> Path:
        """Where the run is kept."""
        return run_folder.RunFolder.of(cli.parse(self.command(run_dir, *argv))).path


def metrics(path: Path) -> dict[str, Any]:
    """metrics.json of a run's folder."""
    return json.loads((path / "metrics.json").read_text(encoding="utf-8"))


def results(path: Path) -> dict[str, Any]:
    """Metrics without those that a clock decides."""
    return {key: value for key, value in metrics(path).items() if key not in MEASURED}


def error_line(capsys: pytest.CaptureFixture[str], program: str = "train.py") -> str:
    """The one line on stderr."""
    text = capsys.readouterr().err
    assert re.fullmatch(rf"{re.escape(program)}: error: [^\n]+\n", text), text
    return text
