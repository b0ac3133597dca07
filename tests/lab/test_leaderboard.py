"""The leaderboard: which cells are missing and in which order they come, what is merged, what the pages show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.run.identity import deciding_options
from lab.sweep.grid import read_experiment
from lab.view.leaderboard import command
from lab.view.leaderboard.cells import in_order, merged, read_cells, task_names
from lab.view.leaderboard.pages import PICTURE, as_html, as_markdown, tables
from lab.view.leaderboard.picture import leaderboard_figure, share
from tests.lab.runs import error_line

MIXERS, TASKS = ("lstm", "gru"), ("mqar", "parity")


def record(mixer: str, task: str, *scores: float, metric: str = "accuracy", digest: str = "") -> dict[str, Any]:
    """A cell whose seeds have these scores."""
    shape = read_experiment(command.FILE, task).shape
    facts = {"metric": metric, "chance": 0.1, "lr": 0.01, "window_octaves": 1.7, "window_at_least": True}
    sizes = {"params": 50_000, "state_bytes": 320, "shape": shape, "digest": digest}
    begun = {"mixer": mixer, "task": task, **facts, **sizes, "runs": [], "commits": [], "machines": []}
    return merged(begun, [run(seed, score) for seed, score in enumerate(scores)], ["abc"], ["two cores"])


def run(seed: int, score: float, steps: int | None = 100) -> dict[str, Any]:
    return {"seed": seed, "score": score, "steps_to_90": steps, "tokens_per_second": 1e4, "seconds": 2.0}


def test_a_cell_is_run_again_only_where_its_configuration_has_changed(tmp_path: Path) -> None:
    (cell,) = read_cells(["lstm"], ["mqar"], 3)
    assert cell.missing(None) == [0, 1, 2]
    assert cell.missing(record("lstm", "mqar", 0.5, 0.6, digest=cell.digest)) == [2]
    assert cell.missing(record("lstm", "mqar", 0.5, 0.6, digest="of another day")) == [0, 1, 2]
    (more,) = read_cells(["lstm"], ["mqar"], 5)
    assert more.digest == cell.digest
    changed = tmp_path / "changed.yaml"
    changed.write_text(command.FILE.read_text(encoding="utf-8").replace("n_pairs: 4", "n_pairs: 2"), encoding="utf-8")
    (other,) = read_cells(["lstm"], ["mqar"], 3, changed)
    assert other.digest != cell.digest
    assert other.experiment.shape != cell.experiment.shape


@pytest.mark.parametrize(("value", "same"), [(None, True), ("", False), (0, False), (False, False)])
def test_a_cell_is_not_run_again_for_an_option_that_came_later_and_is_none(
    value: Any, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = read_cells(["lstm"], ["mqar"], 3)
    later = {"task.later": value}
    monkeypatch.setattr("lab.view.leaderboard.cells.deciding_options", lambda config: deciding_options(config) | later)
    (again,) = read_cells(["lstm"], ["mqar"], 3)
    assert (again.digest == cell.digest) is same


def test_a_mixer_of_ones_own_counts_by_what_its_file_says(tmp_path: Path) -> None:
    digests = []
    for folder, end in (("a", ""), ("b", ""), ("c", "\n# changed")):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(
            "import torch\n\n\nclass Mine(torch.nn.Linear):\n"
            f"    def __init__(self, d_model: int) -> None:\n        super().__init__(d_model, d_model)\n{end}",
            encoding="utf-8",
        )
        (cell,) = read_cells([f"{file}:Mine"], ["mqar"], 1)
        assert cell.mixer == "mine.Mine"
        digests.append(cell.digest)
    assert digests[0] == digests[1] != digests[2]


def test_rows_and_columns_fill_evenly_and_empty_cells_come_first() -> None:
    cells = read_cells(MIXERS, TASKS, 2)
    order = [(cell.mixer, cell.task) for cell in in_order(cells, {})]
    assert order == [("lstm", "mqar"), ("gru", "parity"), ("gru", "mqar"), ("lstm", "parity")]
    records = {}
    for cell, scores in zip(cells, ((0.5,), (0.5, 0.6), (), ()), strict=True):
        records[cell.mixer, cell.task] = record(cell.mixer, cell.task, *(scores or (0.1,)), digest=cell.digest)
    del records["lstm", "parity"], records["gru", "parity"]
    # gru on mqar is complete, lstm on mqar lacks a seed.
    found = [(cell.mixer, cell.task) for cell in in_order(cells, records)]
    assert found == [("lstm", "parity"), ("gru", "parity"), ("lstm", "mqar")]


def test_further_seeds_are_merged_and_the_interval_takes_five() -> None:
    three = record("lstm", "mqar", 0.5, 0.7, 0.6)
    assert (three["score"], three["interval"], three["seeds"]) == (0.6, None, [0, 1, 2])
    five = merged(three, [run(4, 0.9, None), run(3, 0.8), run(2, 0.65)], ["def"], ["two cores"])
    assert (five["score"], five["interval"], five["seeds"]) == (0.7, [0.5, 0.9], [0, 1, 2, 3, 4])
    assert (five["commits"], five["machines"], five["seconds"]) == (["abc", "def"], ["two cores"], 10.0)
    assert five["steps_to_90"] == 100
    assert merged(five, [run(seed, 0.5, None) for seed in (0, 1)], [], [])["steps_to_90"] is None


def test_the_pages_show_what_was_run_and_leave_the_rest_empty() -> None:
    records = [
        record("lstm", "mqar", *[0.5] * 5),
        record("gru", "mqar", 0.7),
        record("gru", "parity", 0.2, metric="relative_squared_error"),
        record("lstm", "parity", 0.3, metric="relative_squared_error"),
        record("<b>", "mqar", 0.1),
    ]
    found = tables(records, ["mqar", "parity", "text"], {"mqar": 0.25, "parity": None})
    page = as_markdown(found, "Here.")
    assert "| mixer | mqar | parity | text |" in page
    assert "| lstm | 0.5000 [0.5000, 0.5000] | 0.3 | |" in page
    assert "| gru | **0.7000** | **0.2** | |" in page
    assert "| guessing | 0.1000 | 0.1 | |" in page
    assert "| guess without order | 0.2500 | | |" in page
    sizes = r"50,000 \| 320 \| 10,000 \| 100 \|"
    assert re.search(rf"\| gru \| \*\*0.7000\*\* \| ≥ 1.7 \| 0.01 \| 1 \| 0.1000 \| 0.2500 \| {sizes}", page)
    assert "## text" not in page
    html = as_html(found, "Here.")
    assert html.count("<table>") == 3
    assert '<td class="right" data-value="0.7"><b>0.7000</b></td>' in html
    assert '<th class="right" data-first="ascending"><button>parity</button>' in html
    assert "&lt;b&gt;" in html
    assert "function sort(heading)" in html
    assert "http" not in html


def test_equally_good_mixers_are_all_bold() -> None:
    found = tables([record("lstm", "mqar", 1.0), record("gru", "mqar", 1.0)], ["mqar"], {})
    assert as_markdown(found, "Here.").count("**1.0000**") == 4  # in the table of all, and in that of the task


def test_a_share_counts_from_guessing_to_a_perfect_score() -> None:
    half = record("lstm", "mqar", 0.55)  # chance is 0.1
    assert share(half, half) == pytest.approx(0.5)
    assert share(half, half, 1.0) == 1
    assert share(half, half, 0.05) == 0
    error = record("lstm", "in_context_regression", 0.25, metric="relative_squared_error")
    assert share(error, error) == 0.75
    best, other = (record("lstm", "text", value, metric="perplexity") for value in (2.0, 4.0))
    assert (share(best, best), share(other, best)) == (1, pytest.approx(0.5))


def test_the_picture_has_the_scores_of_what_was_run_and_the_better_mixers_on_top() -> None:
    records = [record("lstm", "mqar", 0.2), record("gru", "mqar", 0.9), record("gru", "parity", 1.0)]
    axes, colours = leaderboard_figure(records, ["mqar", "parity", "text"], {"mqar": 0.25, "parity": None}).axes
    assert colours.get_ylabel() == "from guessing (0) to a perfect score (1)"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["mqar", "parity"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["gru", "lstm", "guess without order"]
    texts = {text.get_position(): (text.get_text(), text.get_weight()) for text in axes.texts}
    assert texts == {
        (0, 0): ("0.9000", "bold"),
        (1, 0): ("1.0000", "bold"),
        (0, 1): ("0.2000", "normal"),
        (0, 2): ("0.2500", "normal"),
    }
    text = record("gru", "text", 6.5, metric="perplexity")
    _, colours = leaderboard_figure([*records, text], ["mqar", "parity", "text"], {}).axes
    assert colours.get_ylabel().endswith("; perplexities: to the best one (1)")


def test_without_cells_there_is_no_picture(tmp_path: Path) -> None:
    assert {file.name for file in command.Board(tmp_path).write()} == {command.STORED, command.PAGE, command.SORTABLE}
    assert "![" not in (tmp_path / command.PAGE).read_text(encoding="utf-8")


def test_the_file_keeps_what_another_command_has_merged_and_the_pages_leave_other_shapes_out(tmp_path: Path) -> None:
    one, other = command.Board(tmp_path), command.Board(tmp_path)
    one.merge(record("lstm", "mqar", 0.5))
    other.merge(record("gru", "mqar", 0.7) | {"shape": "of another day"})
    stored = json.loads((tmp_path / "leaderboard.json").read_text(encoding="utf-8"))
    assert [each["mixer"] for each in stored] == ["lstm", "gru"]
    page = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    assert "| lstm |" in page
    assert "| gru |" not in page
    assert f"]({PICTURE})" in page
    assert "In 0 of them the largest rate of the grid was picked" in page
    assert re.search(r"No cell yet: attention, .*\bgru\b.*\.", page)
    one.merge(record("attention", "mqar", 0.5) | {"lr": 0.032})
    page = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    assert "In 1 of them the largest rate" in page
    assert "No cell yet: sliding_attention, " in page
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--mixers", "lstn"], "unknown mixer 'lstn' (did you mean 'lstm'?)"),
        (["--tasks", "mqr"], "unknown task of the leaderboard 'mqr' (did you mean 'mqar'?)"),
        (["--mixers", "absent.py:Mine"], "there is no file"),
        (["--mixers", "lstm", "--out", "absent"], "there is no folder absent"),
    ],
)
def test_a_bad_command_is_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*argv, "--dry_run"]) == 2
    assert said in error_line(capsys, "lab leaderboard")


def test_cells_are_run_once_and_further_seeds_take_the_rate_that_was_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.yaml"
    tiny = "trainer.max_steps: 4, trainer.val_check_interval: 2, trainer.accelerator: cpu, figures_every: 0"
    sizes = "task.n_train: 64, task.n_val: 16, task.n_test: 16, batch_size: 16"
    file.write_text(
        f"fixed: {{{tiny}, {sizes}}}\nmatch: {{params: 2.0e4}}\ntune: {{lr: [1.0e-3, 1.0e-2]}}\n"
        "grid: {mixer: [gru, lstm], seed: 0}\n"
        "settings: {parity: {fixed: {task: parity, task.seq_len: 8}}}\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(command, "FILE", file)
    monkeypatch.setattr(command, "task_names", lambda: task_names(file))
    monkeypatch.setattr(command, "read_cells", lambda *given: read_cells(*given, file))

    def go(*argv: str) -> str:
        assert command.main(["--out", str(tmp_path), "--run_dir", str(tmp_path / "runs"), *argv]) == 0
        return capsys.readouterr().out

    assert "0 cells done, 2 to do" in go()
    stored = json.loads((tmp_path / "leaderboard.json").read_text(encoding="utf-8"))
    found = [(each["mixer"], each["seeds"], each["metric"]) for each in stored]
    assert found == [("lstm", [0], "accuracy"), ("gru", [0], "accuracy")]
    for each in stored:
        assert each["window_octaves"] == pytest.approx(0) or each["window_octaves"] == pytest.approx(3.32, abs=0.01)
        assert (each["chance"], each["lr"] in (1e-3, 1e-2), each["params"] > 0) == (0.5, True, True)
        assert "steps_to_90" in each
        assert each["state_bytes"] > 0
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert "2 cells done, 0 to do" in go()
    assert not (tmp_path / "runs").exists()
    go("--seeds", "2", "--mixers", "gru")
    more = {each["mixer"]: each for each in json.loads((tmp_path / "leaderboard.json").read_text("utf-8"))}["gru"]
    assert more["seeds"] == [0, 1]
    assert more["runs"][0] == stored[1]["runs"][0]
    assert more["lr"] == stored[1]["lr"]
    assert len(list((tmp_path / "runs").rglob("metrics.json"))) == 1


def test_the_file_has_a_setting_for_each_task() -> None:
    assert len(task_names()) >= 8
