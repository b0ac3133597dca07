"""`zoo heads` on a run: its sequences and score come from the run's task; files and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import zoo
from lab import config
from lab.build import build
from lab.examples import examples
from tests import error_line
from zoo import __main__ as command
from zoo.theory.scores import accuracy

FLAGS = ("--task", "mqar", "--task.seq_len", "16", "--task.n_pairs", "2", "--task.vocab_size", "20", "--d_model", "8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with an untrained model."""
    given = config.parse([*FLAGS, "--mixer", "attention", "--mixer.n_heads", "2", "--n_layers", "1"]).config
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(given))
    zoo.save(build(given)[1], tmp_path / "run" / "checkpoints" / "best.ckpt")
    return tmp_path / "run"


def test_a_run_is_measured_and_scored_on_its_task(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, page = run.parent / "heads.json", run.parent / "heads.html"
    sizes = ("--sequences", "2", "--others", "3", "--json", str(data), "--html", str(page))
    assert command.main(["heads", str(run), *sizes]) == 0
    shown = capsys.readouterr().out
    found = json.loads(data.read_text())
    (layer,) = found["layers"]
    assert layer["name"] == "layer 0: attention"
    assert layer["n_heads"] == 2
    test = examples(run, "test", 3)
    with torch.no_grad():
        assert layer["score"] == pytest.approx(accuracy(test.labels)(zoo.load(run)(test.inputs)))
    assert str(layer["rank"]) in layer["score_by_heads"]
    assert all(rank > 0 for rank in layer["state_size"].values())
    for line in ("2 sequences of mqar.", f"the uncut model has {layer['score']:.3g}, chance {test.chance:.3g}"):
        assert line in shown
        assert line in page.read_text()
    assert "http" not in page.read_text()


def test_functional_never_skips_the_scores_of_truncated_layers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["heads", str(run), "--sequences", "1", "--others", "1", "--functional", "never"]) == 0
    shown = capsys.readouterr().out
    assert "at 1 sequence of mqar." in shown
    assert "Score" not in shown


def test_a_mixture_gives_sequences_of_its_longest_shape(run: Path) -> None:
    file = run / "config.yaml"
    given = yaml.safe_load(file.read_text())
    given["task"]["mixture"] = [{"n_pairs": 1}, {"seq_len": 18}]
    file.write_text(yaml.safe_dump(given))
    found = examples(run, "test", 2)
    assert (found.task, found.inputs.shape) == ("mqar, the longest of 2 shapes", (2, 18))


def test_wrong_arguments_are_one_line_errors(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in (
        ((str(run), "--seq_len", "8"), "the task of a run sets the length"),
        ((str(run), "--text", "missing"), "--text missing cannot be read"),
        ((str(run), "--json", str(run)), f"{run} is a folder"),
        ((str(run), "--html", "no_such_folder/heads.html"), "there is no folder no_such_folder"),
        (("nowhere",), "no run at nowhere"),
    ):
        assert command.main(["heads", *flags]) == 2
        assert message in error_line(capsys, "zoo")


def test_padded_rows_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Operators and scores use whole sequences, so padding would be taken for input."""
    inputs, file = np.random.default_rng(0).integers(20, size=(99, 5)), run.parent / "rows.npz"
    config_file = run / "config.yaml"
    given = yaml.safe_load(config_file.read_text()) | {"task": {"name": str(file), "vocab_size": 20, "n_classes": 20}}
    config_file.write_text(yaml.safe_dump(given))
    for shortest, status in ((5, 0), (3, 2)):
        lengths = np.resize([5, shortest], 99)
        np.savez(file, inputs=inputs, labels=inputs, lengths=lengths)
        assert command.main(["heads", str(run), "--sequences", "2", "--others", "2", "--processes", "1"]) == status
        assert "lengths" not in capsys.readouterr().out
