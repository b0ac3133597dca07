"""The list of mutants cannot rot, and what runs it tells the killed from the rest; the run itself is on demand."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import ROOT, TABLE, read_list, read_results, render

MUTANTS = read_list(ROOT)


def test_every_mutant_fits_the_code() -> None:
    """Its text occurs once in the file, and changes it into another that Python reads."""
    planted = {mutant.name: mutant.planted((ROOT / mutant.file).read_text(encoding="utf-8")) for mutant in MUTANTS}
    assert [name for name, text in planted.items() if text is None] == []
    for text in planted.values():
        ast.parse(text)


def test_mutants_have_names_of_their_own_and_tests_that_exist() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    for mutant in MUTANTS:
        assert mutant.test_files, mutant.name
        for file in mutant.test_files:
            assert (ROOT / file).is_file(), f"{mutant.name}: {file}"
        for named in re.findall(r"(tests/\S+\.py)::(\w+)", mutant.tests):
            assert f"def {named[1]}(" in (ROOT / named[0]).read_text(encoding="utf-8"), f"{mutant.name}: {named}"


def test_every_room_has_mutants_and_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 120
    rooms = [mutant.room for mutant in MUTANTS]
    assert {room for room in rooms if rooms.count(room) < 5} == set()


def test_the_committed_table_is_what_the_verdicts_say() -> None:
    results = read_results(ROOT)
    known = {name for name, verdict in results["verdicts"].items() if verdict["state"] == "killed"}
    missed = {mutant.name for mutant in MUTANTS} - known
    text = (ROOT / TABLE).read_text(encoding="utf-8")
    assert text == render(MUTANTS, results)
    assert {name for name in missed if f"**{name}**" not in text} == set()


LIST = """
[room.adds_one_too_many]
file = "sums.py"
old = "a + b"
new = "a + b + 1"
tests = "tests/test_sums.py -k adds"

[room.a_default_that_nobody_tests]
file = "sums.py"
old = "b=2"
new = "b=3"
tests = "tests/test_sums.py -k adds"
means = "The default is free."

[room.never_ends]
file = "sums.py"
old = "return"
new = "while True: pass\\n    return"
tests = "tests/test_sums.py -k adds"

[room.is_blamed_for_a_test_that_always_fails]
file = "sums.py"
old = "def add"
new = "def  add"
tests = "tests/test_sums.py -k always"

[room.has_no_test]
file = "sums.py"
old = "def add"
new = "def  add"
tests = "tests/test_sums.py -k nothing"
"""


@pytest.mark.slow
def test_each_verdict_is_told_from_the_others_and_the_tree_is_left_alone(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "mutants.toml").write_text(LIST)
    (tests / "test_sums.py").write_text(
        "from sums import add\n\ndef test_adds():\n    assert add(1, 1) == 2\n\ndef test_always():\n    assert False\n"
    )
    code = tmp_path / "sums.py"
    code.write_text("def add(a, b=2):\n    return a + b\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = [sys.executable, str(ROOT / "tests/mutants.py"), "--root", str(tmp_path), "--jobs", "2", "--limit", "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": ""})
    assert done.returncode == 1, done.stderr
    verdicts = json.loads((tests / "mutants.json").read_text())["verdicts"]
    assert {name: verdict["state"] for name, verdict in verdicts.items()} == {
        "adds_one_too_many": "killed",
        "a_default_that_nobody_tests": "survived",
        "never_ends": "timeout",
        "is_blamed_for_a_test_that_always_fails": "broken",
        "has_no_test": "broken",
    }
    assert verdicts["adds_one_too_many"]["by"] == "tests/test_sums.py::test_adds"
    assert "| room | 5 | 1 | 1 | 1 | 20.0% |" in (tests / "mutants.md").read_text()
    assert "survived. The default is free." in (tests / "mutants.md").read_text()
    assert code.read_text() == "def add(a, b=2):\n    return a + b\n"

    code.write_text("def add(a, b=4):\n    return a + b\n")
    stale = subprocess.run([*command, "--only", "adds_one_too_many"], capture_output=True, text=True, check=False)
    assert "stale: a_default_that_nobody_tests" in stale.stderr


@pytest.mark.parametrize("argv", ["--only nobody", "--room nowhere", "--jobs 0", "--limit 0"])
def test_a_bad_command_is_refused(argv: str) -> None:
    from tests import mutants

    with pytest.raises(SystemExit, match="2"):
        mutants.main(argv.split())
