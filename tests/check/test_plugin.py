"""The pytest plugin and the GitHub action of `zoo check`, run in the folder of a small package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT

RIGHT = """\
from torch import nn


class Mixer(nn.Linear):
    def __init__(self, d_model: int, bias: bool = True) -> None:
        super().__init__(d_model, d_model, bias)
"""
WRONG = RIGHT + "\n    def forward(self, x):\n        return super().forward(x) + x.mean(dim=1, keepdim=True)\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a causal mixer and one that looks ahead."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    return tmp_path


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    there = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTEST_ADDOPTS": ""} | environment
    return subprocess.run(command, cwd=folder, env=there, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_package_is_checked_by_its_own_pytest(package: Path) -> None:
    pytest_of = (sys.executable, "-m", "pytest", "-q", "-p", "zoo.check.plugin", "-p", "no:cacheprovider")
    both = ("--zoo-check", "small.right:Mixer", "--zoo-check", "small.wrong:Mixer", "-k", "causality or chunks")
    done = run(package, *pytest_of, *both)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "small.wrong:Mixer: causality" in done.stdout
    assert "zoo check small.wrong:Mixer --only causality --d_model 16\n" in done.stdout  # the command to reproduce it
    assert "small.right" not in done.stdout
    options = ("--zoo-check-d-model", "8", "--zoo-check-option", "bias=false", "-k", "causality")
    assert run(package, *pytest_of, "--zoo-check", "small.right:Mixer", *options).returncode == 0
    absent = run(package, *pytest_of, "--zoo-check", "small.right:Mixxer", "-k", "causality")
    assert (absent.returncode, "Mixxer" in absent.stdout) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "status"), [("small.right:Mixer", 0), ("small.wrong:Mixer", 1)])
def test_the_action_runs_the_check(target: str, status: int, package: Path) -> None:
    action = yaml.safe_load((ROOT / ".github/actions/check/action.yml").read_text(encoding="utf-8"))
    *_, step = action["runs"]["steps"]
    given = {name: value["default"] for name, value in action["inputs"].items() if "default" in value}
    given |= {"target": target, "arguments": "--only causality"}
    environment = {name: given[text.split(".")[1].rstrip(" }")] for name, text in step["env"].items()}
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    assert run(package, step["shell"], "-c", step["run"], **environment, **path).returncode == status
