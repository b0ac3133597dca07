"""Following CONTRIBUTING's steps is enough to add a mixer and a task: a copy of the project with both passes its tests.

A mixer needs a reference, an op (here an existing one), a class and a line in the registry. A task needs a class, a
line in the registry and a case. Pages and digests are generated; no other file of the copy changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT, python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ADDITIONS = ROOT / "tests" / "project" / "additions"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with the additions."""
    root = tmp_path
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    reference = (ADDITIONS / "retention_reference.py").read_text().partition("silu\n")[2]
    with (root / "tests" / "reference.py").open("a") as file:
        file.write(reference)
    shutil.copy(ADDITIONS / "retention.py", root / "zoo" / "mixers")
    shutil.copy(ADDITIONS / "sorting.py", root / "tasks" / "generators" / "structure")
    shutil.copy(ADDITIONS / "cases_sorting.py", root / "tests" / "tasks")
    mixer = 'retention=Mixer("Retention", "fixed decays", 2023, "2307.08621"),'
    _insert(root / "zoo" / "registry.py", '"linear attention",\n', mixer)
    task = '"structure.sorting:Sorting": "say a list of numbers again, the smallest first",'
    _insert(root / "tasks" / "registry.py", "GENERATORS = {\n", task)
    return root


def _insert(path: Path, behind: str, line: str) -> None:
    text = path.read_text()
    assert text.count(behind) == 1, path
    path.write_text(text.replace(behind, f"{behind}        {line}\n"))


def run(project: Path, *command: str) -> str:
    """Run Python in the copy, assert success, and return its output."""
    return python(*command, cwd=project, env=os.environ | {"PYTHONPATH": str(project)}).stdout


def test_a_copy_with_an_added_mixer_and_task_passes_its_tests(project: Path) -> None:
    pytest_ = ("-m", "pytest", "-q", "-p", "no:xdist")
    run(project, *pytest_, "tests/tasks/test_tasks.py", "-k", "digests and sorting", "--write-digests")
    assert (project / "tests" / "tasks" / "digests.json").read_text().count('"sorting"') == 1
    rooms = ("tests/contract", "tests/tasks", "tests/project/test_pages.py", "tasks/generators/structure/sorting.py")
    ran = run(project, *pytest_, "--doctest-modules", "-k", "retention or sorting", *rooms)
    assert int(ran.split(" passed")[0].split()[-1]) > 30
    assert "fixed decays" in run(project, "-m", "zoo", "mixers")
    assert "the smallest first" in run(project, "-m", "tasks", "show", "sorting")
    flags = ("--mixer", "retention", "--mixer.n_heads", "4", "--task", "sorting", "--task.seq_len", "8")
    numbers = ("--task.n_train", "64", "--task.n_val", "32", "--task.n_test", "32")
    small = ("--d_model", "16", "--n_layers", "1", "--trainer.max_steps", "3", "--run_dir", "runs")
    assert "retention" in run(project, "train.py", *flags, *numbers, *small)
