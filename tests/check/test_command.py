"""The command `zoo check`: its output and files, its exit status, its one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import python
from zoo.__main__ import main
from zoo.check.command import EXAMPLE

FAST = ["--d_model", "8", "--only", "causality", "chunked", "parameters_trained"]

MIXER = """\
import torch
from torch import nn

class Mixer(nn.Module):
    def __init__(self, d_model, n_dead=0):
        super().__init__()
        self.inner = nn.GRU(d_model, d_model, batch_first=True)
        self.dead = nn.Parameter(torch.ones(n_dead)) if n_dead else None

    def forward(self, x, *, memory=None, return_memory=False):
        y, memory = self.inner(x, memory)
        return (y, memory) if return_memory else y

module = Mixer(8)
number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "strangers_mixer.py"
    path.write_text(MIXER)
    return path


def test_a_registered_mixer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "lstm", "--d_model", "8", "--only", "causality,chunked", "--only", "lengths"]) == 0
    out = capsys.readouterr().out
    assert "0 failed, 3 passed, 0 not applicable" in out
    assert "stream(x, state)" in out


def test_an_importable_class_and_a_module_in_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "torch.nn:GRU", *FAST, "--option", "hidden_size=8", "--option", "batch_first=true"]) == 0
    assert "3 passed" in capsys.readouterr().out
    assert main(["check", f"{file}:module", *FAST]) == 0


def test_a_failure_shows_the_command_that_reproduces_it_and_exits_with_1(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "found.json"
    assert main(["check", f"{file}:Mixer", *FAST, "--option", "n_dead=2", "--json", str(written)]) == 1
    out = capsys.readouterr().out
    assert "1 failed, 1 passed, 1 not applicable" in out
    assert f"zoo check {file}:Mixer --only parameters_trained --d_model 8 --option n_dead=2" in out
    found = {f["property"]: f for f in json.loads(written.read_text())["findings"]}
    assert found["parameters_trained"]["verdict"] == "failed"
    assert "no gradient for dead" in found["parameters_trained"]["detail"]


def test_an_adapter_from_a_file_adds_a_protocol(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The adapter is the example in the --help."""
    adapter = tmp_path / "adapter.py"
    adapter.write_text(EXAMPLE)
    assert len(EXAMPLE.strip().splitlines()) <= 12
    assert main(["check", f"{file}:Mixer", *FAST, "one_by_one"]) == 0
    assert "0 failed, 2 passed, 2 not applicable" in capsys.readouterr().out
    assert main(["check", f"{file}:Mixer", *FAST, "one_by_one", "--adapter", f"{adapter}:MyAdapter"]) == 0
    assert "4 passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attentoin"], "did you mean 'attention'"),
        (["torch.nn:LTSM"], "did you mean 'LSTM'"),
        (["lstm", "--option", "d_inner"], "--option needs NAME=VALUE, got 'd_inner'"),
        (["attention", "--option", "n_heads=3"], "attention cannot be built"),
        (["lstm", "--dtype", "int8"], "--dtype must be one of float32"),
        (["lstm", "--device", "nowhere"], "device 'nowhere' cannot be used"),
        (["lstm", "--device", "meta"], "device 'meta' cannot be used"),
        (["lstm", "--only", "causalty,lengths"], "did you mean 'causality'"),
        (["lstm", "--only", ","], "choose from: causality, rows_independent"),
        (["lstm", "--d_model", "0"], "d_model must be a positive integer"),
        (["lstm", "--seq_len", "3"], "seq_len must be at least 8"),
        (["lstm", "--seed", str(2**64)], "seed must lie in 0..9223372036854775807, got 18446744073709551616"),
        (["lstm", "--json", "no_such_folder/found.json"], "there is no folder no_such_folder"),
        (["lstm", "--json", "tests"], "tests is a folder"),
        (["lstm", "--html", "no_such_folder/found.html"], "there is no folder no_such_folder"),
        (["lstm", "--adapter", "torch.nn:LSTM"], "not a subclass of zoo.check.Adapter"),
        (["torch.nn:LSTM", "--option", "hidden_size=16"], "--option batch_first=true"),
        (["torch:pi"], "torch:pi is float"),
        (["torch.nn:LSTM", "--option", "hiden_size=16"], "unknown option 'hiden_size' (did you mean 'hidden_size'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line_errors(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_html_writes_a_page_with_plots(tmp_path: Path) -> None:
    file = tmp_path / "found.html"
    assert main(["check", "linear_attention", "--only", "rank", "--d_model", "8", "--html", str(file)]) == 0
    assert file.read_text().count("data:image/png") == 1


def test_the_help_needs_no_torch_and_shows_an_adapter() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from zoo.__main__ import main\n"
        "try:\n    main(['check', '--help'])\nexcept SystemExit as done:\n    assert done.code == 0"
    )
    text = python("-c", code).stdout
    assert "class MyAdapter(Adapter):" in text
    assert "past_key_values" in text
