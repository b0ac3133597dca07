"""Targets such as `package.module:Class` or `path/file.py:Class` are loaded, or refused in one line."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from torch import nn

from tests import refused
from zoo.errors import UsageError
from zoo.targets import absolute, is_target, load


def test_a_class_of_a_package_or_a_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 3\n")
    (tmp_path / "torch.py").write_text("from neighbour import VALUE\nclass Mine:\n    value = VALUE\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = load("torch.py:Mine")
    assert mine.value == 3
    assert load("torch.nn:LSTM") is nn.LSTM, "a file's name hides no package"
    assert load(f"{tmp_path}/torch.py:Mine") is mine, "a file is run once"
    assert pickle.loads(pickle.dumps(mine())).value == 3
    assert load("neighbour:VALUE") == 3, "packages of the current folder"
    for value in ("first", "other"):  # a change of the same length within a second
        (tmp_path / "torch.py").write_text(f"class Mine:\n    value = '{value}'\n")
        assert load("torch.py:Mine").value == value
    assert absolute("torch.py:Mine") == f"{tmp_path}/torch.py:Mine"
    assert absolute("torch.nn:LSTM") == "torch.nn:LSTM"
    assert is_target("a:B")
    assert not is_target("lstm")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("lstm", "'lstm' is not a target: give package.module:Class or path/file.py:Class"),
        ("torch.nn:", "is not a target"),
        ("no_such_package.sub:Mixer", "there is no module no_such_package.sub to import; give package"),
        ("no-such:Mixer", "no-such is not the dotted name of a module"),
        ("missing.py:Mixer", r"there is no file /.*/missing\.py: put missing\.py there, or give"),
        ("raises.py:Mixer", r"/raises\.py cannot be run in line 2: ZeroDivisionError: division by zero$"),
        ("exits.py:Mixer", r"/exits\.py cannot be run in line 1: SystemExit: 3$"),
        ("syntax.py:Mixer", r"/syntax\.py cannot be run: SyntaxError: .*line 2"),
        ("raises:Mixer", "^raises cannot be imported: ZeroDivisionError"),
        ("torch.nn:Lstm", r"^unknown name in torch\.nn 'Lstm' \(did you mean 'LSTM'\?\); .* and \d+ more$"),
        (
            "fine.py:mixer",
            r"unknown name in /.*/fine\.py 'mixer' \(did you mean 'Mixer'\?\); choose from: Mixer, other$",
        ),
    ],
)
def test_a_wrong_target_is_a_one_line_error(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text("def f():\n    1 / 0\nf()\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "syntax.py").write_text("x = 1\ny = (\n")
    (tmp_path / "fine.py").write_text("from pathlib import Path\n_no = 1\nclass Mixer: pass\ndef other(): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with refused(message, UsageError):
        load(target)
