"""zoo.training where its packages are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import zoo.training
try:
    from zoo.training import SequenceModule
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize("package", ["lightning", pytest.param("torchmetrics", marks=pytest.mark.slow)])
def test_what_to_install_is_said_in_one_line(package: str) -> None:
    code = ABSENT.format(package=package)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"zoo.training needs {package}: pip install 'mixer-zoo[train]'\n"


@pytest.mark.slow
def test_any_other_missing_module_is_named_itself() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ABSENT.format(package="jaxtyping")], capture_output=True, text=True, check=True
    )
    assert run.stdout == "No module named 'jaxtyping'\n"
