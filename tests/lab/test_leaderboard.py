"""The leaderboard: missing cells and their order, merging of records, pages, and whole commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from lab import __main__ as application
from lab.build import build
from lab.config import parse
from lab.run.identity import deciding_options
from lab.sweep.experiment import read_experiment
from lab.sweep.grid import arguments
from lab.view import leaderboard
from lab.view.cells import ALL, FILE, in_order, read_cells, task_names
from lab.view.leaderboard import PICTURE, SORTABLE, STORED, Leaderboard, groups_of, overview
from tests import error_line, refused
from zoo.registry import MIXERS
from zoo.report.numbers import NOTHING
from zoo.report.page import as_markdown


def record(mixer: str, task: str, *scores: float, metric: str = "accuracy", **other: Any) -> dict[str, Any]:
    """The record of a cell with these scores, one per seed."""
    facts = {"metric": metric, "chance": 0.1, "lr": 0.01, "window": {"octaves": 1.7, "at_least": True}}
    sizes = {"params": 50_000, "state_bytes": 320, "shape": read_experiment(FILE, task).shape, "digest": ""}
    of_each = {"steps_to_90": 100, "tokens_per_second": 1e4, "seconds": 2.0, "converged": True, "stopped_early": True}
    of_each |= {"curve": {"300": 0.25, "600": 0.75, "700": 0.8}}
    runs = [{"seed": seed, "score": score, **of_each} for seed, score in enumerate(scores)]
    machine = {"runs": runs, "commits": ["abc"], "machines": ["two cores"]}
    return {"mixer": mixer, "task": task, **facts, **sizes, **machine, **other}


def test_a_cell_is_rerun_only_if_its_configuration_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = read_cells(["lstm"], ["mqar"], 3)
    assert cell.missing(None) == [0, 1, 2]
    assert cell.missing(record("lstm", "mqar", 0.5, 0.6, digest=cell.digest)) == [2]
    assert cell.missing(record("lstm", "mqar", 0.5, 0.6, digest="of another day")) == [0, 1, 2]
    (more,) = read_cells(["lstm"], ["mqar"], 5)
    assert more.digest == cell.digest
    changed = tmp_path / "changed.yaml"
    changed.write_text(FILE.read_text(encoding="utf-8").replace("n_pairs: 16", "n_pairs: 8"), encoding="utf-8")
    (other,) = read_cells(["lstm"], ["mqar"], 3, changed)
    assert (other.digest != cell.digest, other.experiment.shape != cell.experiment.shape) == (True, True)
    for value, same in ((None, True), ("", False), (0, False)):  # an option that a later version adds
        later = {"task.later": value}
        monkeypatch.setattr(
            "lab.view.cells.deciding_options", lambda config, later=later: deciding_options(config) | later
        )
        assert (read_cells(["lstm"], ["mqar"], 3)[0].digest == cell.digest) is same


def test_the_committed_cells_are_not_rerun(tmp_path: Path) -> None:
    board = Leaderboard(tmp_path / "new")  # starts with the records in docs
    for mixer, task in sorted(board.records)[::30]:
        (cell,) = read_cells([mixer], [task], None)
        assert cell.missing(board.records[mixer, task]) == []


def test_sequences_of_every_cell_are_long_enough_for_top_k_mixers() -> None:
    for cell in read_cells(["moba", "nsa", "dsa"], [], 1):
        experiment = cell.experiment
        options = experiment.fixed | {key: values[0] for key, values in experiment.grids[0].items()}
        with torch.device("meta"):
            task, model = build(parse(arguments({key: value for key, value in options.items() if key != "lr"})).config)
        model.require_choice(task.spec.seq_len)


def test_a_mixer_has_the_options_of_the_grid_that_lists_it_or_of_the_first(tmp_path: Path) -> None:
    cells = {cell.mixer: cell.experiment.grids[0] for cell in read_cells(["attention", "ssd", "gru"], ["mqar"], None)}
    assert (cells["attention"]["mixer.d_conv"], cells["attention"]["canon"]) == ([0], ["A"])
    assert ("canon" in cells["ssd"], cells["gru"]["canon"], cells["gru"]["mixer"]) == (False, ["A"], ["gru"])


def test_the_digest_of_a_users_mixer_depends_on_the_text_of_its_file(tmp_path: Path) -> None:
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
    with refused("the row mine.Mine"):
        read_cells([f"{tmp_path / folder / 'mine.py'}:Mine" for folder in ("a", "b")], ["mqar"], 1)


def test_a_cell_that_is_given_twice_is_run_once() -> None:
    cells = read_cells(["lstm", ALL, "lstm"], ["mqar", "mqar"], 2)
    assert sorted(cell.mixer for cell in cells) == sorted(MIXERS)


def test_rows_and_columns_fill_evenly_and_empty_cells_come_first() -> None:
    cells = read_cells(("lstm", "gru"), ("mqar", "parity"), 2)
    order = [(cell.mixer, cell.task) for cell in in_order(cells, {})]
    assert order == [("lstm", "mqar"), ("gru", "parity"), ("gru", "mqar"), ("lstm", "parity")]
    done = {("lstm", "mqar"): (0.5,), ("gru", "mqar"): (0.5, 0.6)}  # the first lacks a seed, the second is complete
    digests = {(cell.mixer, cell.task): cell.digest for cell in cells}
    records = {place: record(*place, *scores, digest=digests[place]) for place, scores in done.items()}
    found = [(cell.mixer, cell.task) for cell in in_order(cells, records)]
    assert found == [("gru", "parity"), ("lstm", "parity"), ("lstm", "mqar")]


def test_numbers_are_medians_and_the_interval_needs_five_seeds() -> None:
    def cells(
        *scores: float, steps: tuple[int | None, ...] = (), converged: tuple[bool | None, ...] = ()
    ) -> dict[str, str]:
        found = record("lstm", "mqar", *scores)
        for run, each in zip(found["runs"], converged, strict=False):
            run["converged"] = each
        for run, each in zip(found["runs"], steps, strict=False):
            run["steps_to_90"] = each
        (group,) = groups_of([found], ["mqar"])
        section = leaderboard.section_of(group)
        return {column.heading: column.cell(section.rows[0]) for column in section.columns}

    assert cells(0.5, 0.7, 0.6)["accuracy"] == "0.60"
    five = cells(0.5, 0.7, 0.65, 0.8, 0.9, steps=(None, 100, 100, 200, 300))
    assert (five["accuracy"], five["seeds"], five["steps to 90 %"]) == ("0.70 [0.50, 0.90]", "5", "200")
    assert (five["window (octaves)"], five["lr"], five["time of the runs"]) == ("≥ 1.7", "0.01", "10 s")
    assert (five["guess without order"], five["solved"], five["converged"]) == ("0.06", "0 of 5", "5 of 5")
    assert five["at 1,200"] == "0.80"
    assert cells(0.5, 0.7, converged=(True, False))["converged"] == "1 of 2"
    assert cells(0.5, 0.7, converged=(None, None))["converged"] == NOTHING  # perplexities
    assert "steps to 90 %" not in cells(0.5, 0.7, 0.6, steps=(None, None, 100))  # an empty column


def test_the_pages_show_the_records_and_leave_other_cells_empty() -> None:
    records = [
        record("lstm", "mqar", *[0.5] * 5),
        record("gru", "mqar", 0.7),
        record("slstm", "mqar", 0.7),
        record("gru", "parity", 0.2, metric="relative_squared_error"),
        record("lstm", "parity", 0.3, metric="relative_squared_error"),
        record("<b>", "mqar", 0.1),
    ]
    groups = groups_of(records, ["mqar", "parity", "text"])
    sections = [overview(groups), *map(leaderboard.section_of, groups)]
    page = as_markdown("title", "about", sections, [])
    assert "| lstm | 0.50 (0 of 5) | 0.30 (0 of 1) |" in page
    assert "| gru | **0.70 (0 of 1)** | **0.20 (0 of 1)** |" in page
    assert "| guessing | 0.10 | 1 |" in page
    assert "## text" not in page


@pytest.mark.slow
def test_the_sortable_page_shows_any_budget(tmp_path: Path, browser: Any) -> None:
    (tmp_path / STORED).write_text("[]")
    board = Leaderboard(tmp_path)
    for each in (record("attention", "mqar", 0.5, 0.96), record("<b>", "mqar", 0.1, 0.2), record("lstm", "k_hop", 1.0)):
        board.merge(each)
    browser.get((tmp_path / SORTABLE).as_uri())

    def shown(selector: str) -> list[str]:
        return [each.text for each in browser.find_elements("css selector", selector)]

    assert shown("thead button") == ["mixer", "mqar", "k_hop"]
    assert (shown("tbody th"), shown("tbody td")) == (
        ["attention", "lstm", "<b>"],
        ["0.73 1/2\n≥ 1.7", "", "", "1.00 1/1\n≥ 1.7", "0.15 0/2\n≥ 1.7", ""],  # the second line is the lr window
    )
    browser.find_element("css selector", "td.cell").click()
    assert "0.73" in shown("#said")[0]
    browser.find_elements("css selector", "thead button")[1].click()
    assert shown("tbody th") == ["attention", "<b>", "lstm"]  # empty cells sort last
    slider = browser.find_element("name", "budget")
    slider.send_keys(Keys.HOME)
    assert shown("tbody td")[0] == "0.25"  # the validation score after 300 steps
    browser.find_element("css selector", "td.cell").click()
    assert "300 steps" in shown("#said")[0]
    assert "0.25" in shown("#said")[0]
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_two_commands_can_merge_records_and_the_pages_omit_other_shapes(tmp_path: Path) -> None:
    (tmp_path / STORED).write_text("[]")
    assert PICTURE not in {str(file.relative_to(tmp_path)) for file in Leaderboard(tmp_path).write()}
    one, other = Leaderboard(tmp_path), Leaderboard(tmp_path)
    one.merge(record("lstm", "mqar", 0.5))
    other.merge(record("gru", "mqar", 0.7, shape="of another day"))
    stored = json.loads((tmp_path / STORED).read_text(encoding="utf-8"))
    assert [each["mixer"] for each in stored] == ["lstm", "gru"]
    page = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    assert ("| lstm |" in page, "| gru |" in page, f"]({PICTURE})" in page) == (True, False, True)
    assert "In 0 of them" in page
    assert re.search(r"No cell yet: attention, .*\bgru\b.*\.", page)
    one.merge(record("attention", "mqar", 0.5, lr=0.045))
    page = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    assert "In 1 of them tuning picked the largest rate of the grid, or one beyond it." in page
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_wrong_arguments_are_one_line_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / STORED
    broken.write_text("{")
    for argv, message in (
        (["--mixers", "lstn"], "'lstn' (did you mean 'lstm'?)"),
        (["--tasks", "mqr"], "'mqr' (did you mean 'mqar'?)"),
        (["--mixers", "absent.py:Mine"], "there is no file"),
        (["--mixers", "lstm", "--out", str(broken)], str(broken)),
        (["--mixers", "lstm", "--out", str(tmp_path)], str(broken)),
        (["--seeds", "0"], "--seeds"),
        (["--fast"], "--fast"),
    ):
        assert application.main(["leaderboard", *argv, "--dry_run"]) == 2
        assert message in error_line(capsys, "lab leaderboard")


@pytest.mark.slow
def test_cells_are_run_once_and_more_seeds_reuse_the_tuned_learning_rate(
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
    (tmp_path / STORED).write_text("[]")
    monkeypatch.setattr(leaderboard, "FILE", file)
    monkeypatch.setattr(leaderboard, "task_names", lambda: task_names(file))
    monkeypatch.setattr(leaderboard, "read_cells", lambda *given: read_cells(*given, file))

    def go(*argv: str) -> str:
        assert leaderboard.main(["--out", str(tmp_path), "--run_dir", str(tmp_path / "runs"), *argv]) == 0
        return capsys.readouterr().out

    def stored() -> dict[str, dict[str, Any]]:
        return {each["mixer"]: each for each in json.loads((tmp_path / STORED).read_text(encoding="utf-8"))}

    assert "0 cells done, 2 to do" in go()
    first = stored()
    assert list(first) == ["lstm", "gru"]
    for each in first.values():
        assert [run["seed"] for run in each["runs"]] == [0]
        assert (each["metric"], each["chance"], each["lr"] in (1e-3, 1e-2)) == ("accuracy", 0.5, True)
        assert round(each["window"]["octaves"], 2) in (0, 3.32)
        assert each["params"] > 0 < each["state_bytes"]
        assert each["machines"]
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert "2 cells done, 0 to do" in go()
    assert not (tmp_path / "runs").exists()
    go("--seeds", "2", "--mixers", "gru")
    more = stored()["gru"]
    assert [run["seed"] for run in more["runs"]] == [0, 1]
    assert (more["runs"][0], more["lr"]) == (first["gru"]["runs"][0], first["gru"]["lr"])
    assert len(list((tmp_path / "runs").rglob("metrics.json"))) == 1
