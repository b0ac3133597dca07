"""Users' mixers in the commands: flags, help, run folders, runs without streaming, and marks for looking ahead."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import zoo
from lab import __main__ as application
from lab import config
from lab import training as train
from lab.build import find_leak
from lab.run.files import HPARAMS
from lab.run.folder import RunFolder
from lab.sweep import sweep
from lab.view import read_runs
from lab.view.rows import group_runs
from tests import error_line, refused
from tests.lab.runs import TINY, results, shown
from zoo.__main__ import main
from zoo.errors import UsageError
from zoo.registry import MIXERS

PLAIN = '''
from torch import device, nn

class Patterned(nn.Linear):
    def __init__(self, d_model, pattern="ab"):
        super().__init__(d_model, d_model)

class Squashed(nn.Module):
    """A squashed running sum.

    Args:
        gain: factor of the map.
    """

    def __init__(self, width, gain=1.0, deep: bool = False, place: "device | None" = None, act=nn.Tanh()):
        super().__init__()
        self.map, self.gain, self.act = nn.Linear(width, width), gain, act

    def forward(self, x):
        return self.act(self.gain * self.map(x) * x.cumsum(1))
'''
PEEKING = """
from torch import nn

class Peeking(nn.Module):
    def __init__(self, d_model, shift=-1, at=None):
        super().__init__()
        self.map, self.shift, self.at = nn.Linear(d_model, d_model), shift, at

    def forward(self, x):
        return self.map(x.roll(self.shift, 1) if self.at in (None, x.shape[1]) else x)
"""
SHORT = f"{TINY} --figures_every null --trainer.max_steps 4".split()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return f"{tmp_path}/mine.py:Squashed"


def test_the_options_of_a_users_mixer_are_flags(mine: str, tmp_path: Path) -> None:
    command = config.parse(["--mixer", "mine.py:Squashed", "--mixer.gain", "2", "--mixer.deep", "true"])
    assert command.config["mixer"] == {"name": mine, "gain": 2, "deep": True}
    assert command.defaults["mixer"] == {"name": mine, "gain": 1.0, "deep": False}
    assert RunFolder.of(command).name.startswith("mqar/mine.Squashed-")
    patterned = config.parse(["--mixer", "mine.py:Patterned", "--mixer.pattern", "mamba"])
    assert (patterned.config["mixer"]["pattern"], patterned.defaults["mixer"]["pattern"]) == ("mamba", "ab")
    hybrid = ["--mixer", "hybrid", "--mixer.pattern", "[mine.py:Squashed, attention]"]
    command = config.parse([*hybrid, "--mixer.Squashed.gain", "3", "--mixer.n_heads", "2"])
    assert command.config["mixer"]["pattern"] == [mine, "attention"]
    assert command.config["mixer"]["Squashed"] == {"gain": 3, "deep": False}
    assert RunFolder.of(command).name.startswith("mqar/hybrid-")
    # Members with the same class name from two files have different run folders.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text(PLAIN)
    patterns = [f"[{folder}mine.py:Squashed, attention]" for folder in ("", "other/")]
    names = [RunFolder.of(config.parse(["--mixer.pattern", pattern])).name for pattern in patterns]
    assert names[0] != names[1]


@pytest.mark.parametrize("argv", ["--mixer {} --help", "--mixer.help {}"])
def test_the_help_of_a_users_mixer_has_its_docstring(argv: str, mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    end = "  --mixer.gain  Any; default 1.0\n      factor of the map.\n  --mixer.deep  bool; default false\n"
    assert shown(capsys, *argv.format(mine).split()).endswith(end)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--mixer json:JSONDecoder", "a mixer must be a subclass of torch.nn.Module"),
        ("--mixer mine.py:Squashed --mixer.gian 2", "did you mean --mixer.gain?); choose from: mixer.gain, mixer.deep"),
        ("--mixer mine.py:Squashed --mixer.deep 2", "mixer.deep: expected bool; got 2"),
        ("--mixer hybrid --mixer.pattern [mine.py:Nothing]", "unknown name in"),
    ],
)
def test_wrong_flags_are_one_line_errors(argv: str, message: str, mine: str) -> None:
    with refused(re.escape(message), UsageError):
        config.parse(argv.split())


@pytest.mark.slow
def test_a_users_mixer_trains_resumes_and_is_loaded(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], logged: list[str]
) -> None:
    argv = [*SHORT, "--mixer", "mine.py:Squashed"]
    assert train.main(argv) == 0
    assert "unknown: the mixer does not stream" in capsys.readouterr().out
    assert "layer 0: Squashed: no figures of its operator" in " ".join(logged)
    [folder] = (tmp_path / "runs").glob("*/*/seed0")
    assert folder.parent.name.startswith("mine.Squashed")
    first = results(folder)
    assert first["state_bytes"] is None

    (folder / "metrics.json").unlink()
    assert train.main(argv) == 0
    assert "resumed from step 4" in capsys.readouterr().out
    assert results(folder) == first
    assert [run.mixer for run in read_runs(tmp_path / "runs")] == ["mine.Squashed"]
    assert not zoo.load(folder).layers.streams
    assert main(["heads", str(folder)]) == 0
    assert "No operator could be read" in capsys.readouterr().out

    (folder / "metrics.json").unlink()
    (tmp_path / "mine.py").rename(tmp_path / "moved.py")
    assert train.main(argv) == 2
    assert "there is no file" in error_line(capsys)
    with pytest.raises(ValueError, match=r"there is no file .*mine\.py: put mine\.py there"):
        zoo.load(folder)


@pytest.mark.slow
def test_a_mixer_that_looks_ahead_is_marked_and_kept_off_the_leaderboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PEEKING + PLAIN)
    for name, flags, warned in (("Peeking", [], 1), ("Peeking", ["--looks_ahead", "true"], 0), ("Squashed", [], 0)):
        argv = ["--mixer", f"mine.py:{name}", *SHORT, "--seed", str(warned), *flags, "--run_dir", str(tmp_path)]
        assert train.main(argv) == 0
        assert capsys.readouterr().out.count("reads later positions") == warned
    runs = {(run.mixer, run.seed): bool(run.leak) for run in read_runs(tmp_path)}
    marked = {("mine.Peeking (looks ahead)", 0): True, ("mine.Peeking (looks ahead)", 1): True}
    assert runs == marked | {("mine.Squashed", 0): False}
    (group,) = group_runs(read_runs(tmp_path))
    assert not group.best & {row.label for row in group.rows if "Peeking" in row.label}
    assert any(b"(looks ahead)" in file.read_bytes() for file in tmp_path.rglob(HPARAMS))
    monkeypatch.setattr(MIXERS, "_own", {})
    zoo.register("peeking", "mine.py:Peeking")
    for name in ("mine.py:Peeking", "peeking"):
        assert application.main(["leaderboard", "--mixers", name, "--dry_run"]) == 2
        assert "causal mixers only" in error_line(capsys, "lab leaderboard")
    sweep.main(
        ["--mixer", "mine.py:Peeking,mine.py:Squashed", *SHORT, "--name", "swept", "--run_dir", str(tmp_path / "swept")]
    )
    printed = capsys.readouterr().out
    assert printed.count("reads later positions") == 1
    assert "mine.py:Peeking (looks ahead)" in printed


@pytest.mark.parametrize("shift", [0, -1])
def test_two_mixers_of_the_same_class_are_both_checked_for_looking_ahead(
    shift: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(PEEKING)
    monkeypatch.setattr(MIXERS, "_own", {})
    for name, each in (("first", shift), ("second", 0)):
        zoo.register(name, f"{tmp_path}/mine.py:Peeking", shift=each)
    mixer = {"name": "hybrid", "pattern": ["first", "second"]}
    leak = find_leak(zoo.Backbone(mixer, n_layers=2, d_model=8, vocab_size=8, n_outputs=8), 40)
    assert ("reads later positions" in leak) == (shift != 0)


@pytest.mark.parametrize(("at", "detected"), [(96, True), (97, False)])
def test_a_leak_at_only_the_tasks_length_is_detected(at: int, detected: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PEEKING)
    mixer = {"name": f"{tmp_path}/mine.py:Peeking", "at": at}
    leak = find_leak(zoo.Backbone(mixer, n_layers=1, d_model=8, vocab_size=8, n_outputs=8), 96)
    assert ("reads later positions" in leak) == detected


def test_a_mixer_with_non_finite_outputs_is_refused_for_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLAIN + "\nclass Log(Squashed):\n    def forward(self, x): return x.log()")
    assert train.main(["--mixer", "mine.py:Log", *SHORT, "--run_dir", str(tmp_path / "runs")]) == 2
    assert "Log is not finite: it maps finite inputs to nan or infinity" in error_line(capsys)
    assert not [file for file in (tmp_path / "runs").rglob("*") if file.name == "config.yaml"]
