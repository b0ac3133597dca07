"""Measure the wall time of `make train` in a fresh clone, from nothing to a trained model.

    python -m benchmarks.first_run            with pip, and with uv if it is on the PATH

Clones the checked-out commit into a temporary folder, without caches of packages, data or compiled code, sets up the
environment as `make train` does, then trains its default model. Packages come from the configured index of pip and uv,
so the time of the set-up includes the network. Writes `benchmarks/first_run.md` and the lines in the README.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import describe_machine
from benchmarks.timing import finished
from zoo.report.files import write_atomically
from zoo.report.markdown import replace_part, table

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "first_run.md"
README = ROOT / "README.md"
SET_UP = ".venv/.installed-train"
"""The Makefile target for the environment of `make train`."""


@dataclass(frozen=True)
class FirstRun:
    """Result of one first run with one installer; times are wall time in seconds."""

    installer: str
    set_up: float
    train: float
    accuracy: float

    @property
    def whole(self) -> float:
        return self.set_up + self.train


def measure(installer: str, uv: str) -> FirstRun:
    """Clone, set up and train in a temporary folder.

    Args:
        installer: name of the installer in the table.
        uv: path of uv; empty for pip.
    """
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch, "clone")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        fresh = {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "MIXER_ZOO_CACHE": f"{scratch}/tasks"}
        # The clone must not see the environment of this process.
        unwanted = {"VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "VENV", "ARGS", "UV", "NUMBA_CACHE_DIR"}
        environment = {name: value for name, value in os.environ.items() if name not in unwanted} | fresh
        set_up, train = (
            finished(["make", target, f"UV={uv}"], cwd=clone, env=environment) for target in (SET_UP, "train")
        )
        (metrics,) = clone.glob("runs/**/metrics.json")
        return FirstRun(installer, set_up, train, json.loads(metrics.read_text())["test"]["accuracy"])


def render(runs: list[FirstRun], measured: str) -> str:
    """Return the page in Markdown."""
    lines = ["# From nothing to a trained model", ""]
    lines += [f"Made by `python -m benchmarks.first_run` on {measured}: a fresh clone, no caches, `make train`.", ""]
    rows = [
        (run.installer, *(f"{seconds:.0f}" for seconds in (run.set_up, run.train, run.whole)), f"{run.accuracy:.4f}")
        for run in runs
    ]
    headings = ("packages by", "set-up s", "training s", "whole s", "test accuracy")
    return "\n".join([*lines, *table(headings, rows), ""])


def summary(runs: list[FirstRun], measured: str) -> str:
    """Return the lines for the README."""
    found = [f"{run.whole:.0f} s with {run.installer}, {run.set_up:.0f} s of it for set-up" for run in runs]
    lines = [f"From a fresh clone without caches to a trained model: {'; '.join(found)},"]
    return "\n".join([*lines, f"on {measured} ([first_run.md](benchmarks/first_run.md))."]) + "\n"


def main() -> None:
    """Measure each installer; write the page and the README."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    uv, load = shutil.which("uv"), os.getloadavg()[0]
    installers = {"pip": ""} | ({"uv": uv} if uv else {})
    runs = []
    for installer, program in installers.items():
        runs.append(measure(installer, program))
        print(f"{installer}: set-up {runs[-1].set_up:.0f} s, training {runs[-1].train:.0f} s", flush=True)
    # Other work makes the times too long, so the page shows the load before the runs.
    measured = describe_machine() + (f", beside other work at a load of {load:.1f}" if load > 0.5 else "")
    write_atomically(TABLE, render(runs, measured))
    write_atomically(README, replace_part(README.read_text(encoding="utf-8"), "first run", summary(runs, measured)))


if __name__ == "__main__":
    main()
