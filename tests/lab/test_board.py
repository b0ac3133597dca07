"""The live table of a sweep: states, steps, metrics and the time left of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from lab.run.files import LOG, METRICS
from lab.sweep import board as module
from lab.sweep.board import Board
from lab.sweep.engine import Job, Outcome
from zoo.report.terminal import progress

FOUND = {"test": {"accuracy": 0.75, "loss": 0.5}, "val": {"accuracy": 0.8, "loss": 0.4}, "params": 1}
EARLY = "training:   2%|      | 8/400 [00:01<00:14, 9it/s, loss=2]"
BAR = f"{EARLY}\rtraining:  30%|###   | 120/400 [00:06<00:14, 20.0it/s, loss=1.25]\n"


def test_the_table_shows_the_state_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "make_console", lambda: Console(width=140, height=30))
    # "begins" is a second attempt; its log still has the progress bar of the first.
    logs = {"waits": None, "begins": f"{BAR}$ train.py\n", "trains": BAR, "fails": "", "ends": "", "is stopped": ""}
    jobs = {name: Job(name, (), tmp_path / name) for name in logs}
    board = Board([*jobs.values()], n_slots=2)
    board.start -= 60  # so that the logs are newer
    for name, log in logs.items():
        if log is not None:
            jobs[name].folder.mkdir()
            (jobs[name].folder / LOG).write_text(log)
    (jobs["ends"].folder / METRICS).write_text(json.dumps(FOUND))
    board.take(Outcome(jobs["ends"], "done", 8.0))
    board.take(Outcome(jobs["fails"], "failed", 2.0, "exit status 1", ("Traceback", "ValueError: no")))
    board.take(Outcome(jobs["is stopped"], "stopped", 1.0, "stopped"))
    printed = capsys.readouterr().out
    for line in ("[1/6] done", "[2/6] failed", "ValueError: no", "[3/6] stopped", "test accuracy 0.7500"):
        assert line in printed
    assert board.time_left() == "about 16 s left"  # three runs in two slots, 8 s each like the finished one
    with board.live():
        shown = board.table()
    cells = [list(column.cells) for column in shown.columns]
    table = {run: (state, step, metric.strip(), left) for run, state, step, metric, left in zip(*cells, strict=True)}
    assert table["trains"] == ("running", "120/400", "loss=1.25", "00:14")
    assert table["begins"] == ("running", "", "", "")
    assert table["waits"] == ("waiting", "", "", "")
    assert table["fails"] == ("failed", "", "exit status 1", "took 2 s")
    assert table["ends"] == ("done", "", "test accuracy 0.7500", "took 8 s")


def test_force_color_alone_does_not_enable_the_live_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook sets FORCE_COLOR for commands, but cannot redraw: live tables would pile up there."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Board([Job("waits", (), tmp_path)], n_slots=1).live(), progress(2) as advance:
        advance("first")
    assert capsys.readouterr() == ("", "")
