"""The command `python -m tasks` (list, show, stats, export, pages): its output, files and one-line errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest

import tasks
from tasks import __main__ as command
from tasks import pages
from tasks.data.splits import sample_split
from tests import ROOT, error_line, python

OWN = """
from tasks import Task, TaskSpec

class Own(Task):
    def __init__(self, n_tokens: int):
        self.n_tokens = n_tokens

    @property
    def spec(self):
        n = self.n_tokens
        return TaskSpec(input="tokens", seq_len=8, vocab_size=n, n_outputs=n, loss="cross_entropy", chance=1 / n)

    def sample(self, rng, n):
        tokens = rng.integers(0, self.n_tokens, (n, 8))
        return {"inputs": tokens, "labels": tokens}

class Untyped(Own):
    def __init__(self, n_tokens):
        super().__init__(n_tokens)

class Loses(Own):
    def __init__(self, size: int = 4):
        super().__init__(size)

class Abstract(Task):
    pass
"""
SMALL = ["--vocab_size", "20", "--seq_len", "12", "--n_pairs=2"]


def test_list_prints_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == tasks.list_tasks()


def test_listing_tasks_imports_no_heavy_packages() -> None:
    code = (
        "import sys\nfrom tasks.__main__ import main\nmain(['list'])\nmain([])\n"
        "assert not {'numpy', 'torch', 'rich', 'jsonargparse'} & set(sys.modules)\n"
        "import tasks\ntasks.task_class('ssm_teacher')()\n"
        "assert not {'torch', 'datasets', 'pyarrow', 'lightning'} & set(sys.modules)"
    )
    python("-c", code)


def test_show_prints_the_example_that_the_seed_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["show", "mqar", "--seed", "3", *SMALL]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.startswith(("input", "label"))}
    task = tasks.create_task("mqar", vocab_size=20, seq_len=12, n_pairs=2)
    # In a split the first example is drawn together with its shard; `show` draws it alone.
    again = task.sample(tasks.split_rng(3, "train", 0), 1)
    assert rows["input"] == [str(token) for token in again["inputs"][0]]
    assert rows["label"] == [str(label) for label in again["labels"][0] if label != -100]
    for part in ("prediction", "source", "chance", "n_pairs = 4", "recipe: configs/task/mqar.yaml"):
        assert part in shown


def test_the_table_lists_every_task_and_links_its_source() -> None:
    folder = ROOT / "docs" / "tasks"
    for text in (pages.index(), (folder / "README.md").read_text(encoding="utf-8")):
        links = dict(re.findall(r"^\| \[(\w+)\]\(([\w./]+)\)", text, re.MULTILINE))
        assert list(links) == tasks.list_tasks()
        assert all((folder / link).is_file() for link in links.values())


def test_pages_writes_a_page_per_task_and_prints_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main(["pages"]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [file.name for file in files] == ["README.md", *(f"{name}.md" for name in tasks.TASKS)]
    for name, file in zip(tasks.TASKS, files[1:], strict=True):
        text = file.read_text(encoding="utf-8")
        assert text.startswith(f"# {name}\n")
        assert tasks.task_class(name).prediction in text


def test_show_markdown_prints_the_page_for_the_given_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["show", "mqar", "--markdown", *SMALL]) == 0
    task = tasks.create_task("mqar", vocab_size=20, seq_len=12, n_pairs=2)
    assert capsys.readouterr().out == pages.markdown("mqar", 0, task) != pages.markdown("mqar")


def test_stats_prints_counts_and_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["stats", "needle", "--distance", "9", "--n", "500", "--split", "test"]) == 0
    shown = capsys.readouterr().out
    for part in ("500 of test", "8 of 8", "1 to 1", "(chance 0.1250)", "9 to 9"):
        assert part in shown
    assert command.main(["stats", "ssm_teacher", "--n", "50"]) == 0
    assert "variance" in capsys.readouterr().out
    # Training labels every token here, but only answers have a distance.
    assert command.main(["stats", "in_context_recall", "--seq_len", "6", "--n", "50"]) == 0
    assert "1 to 3, mean" in capsys.readouterr().out


def test_stats_list_only_classes_that_occur(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["stats", "needle", "--distance", "9", "--n", "1"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("label ")]) == 1


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("needle --distance x", "--distance: expected int, got x"),
        ("mqar --n_pairs x", "--n_pairs: expected int | None, got x"),
        ("text --unit x", "--unit: expected Literal['bytes', 'characters'], got x"),
    ],
)
def test_a_value_that_does_not_fit_is_one_line(argv: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["show", *argv.split()]) == 2
    assert capsys.readouterr().err == f"tasks: error: {expected}\n"


def test_an_exported_parquet_has_the_examples_and_their_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["export", "mqar", *SMALL, "--n", "7", "--seed", "2"]) == 0
    table = pq.read_table(tmp_path / "mqar-train-7-seed2.parquet")
    task = tasks.create_task("mqar", vocab_size=20, seq_len=12, n_pairs=2)
    for name, array in sample_split(task, "train", 7, 2).items():
        np.testing.assert_array_equal(np.array(table.column(name).to_pylist()), array)
    about = json.loads(table.schema.metadata[b"mixer-zoo"])
    assert (about["task"], about["options"]["n_pairs"], about["seed"]) == ("mqar", 2, 2)


def test_exported_json_lines_have_vectors_and_null_for_nan(tmp_path: Path) -> None:
    file = tmp_path / "teacher.jsonl"
    assert command.main(["export", "ssm_teacher", "--n", "3", "--format", "jsonl", "--out", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    expected = sample_split(tasks.create_task("ssm_teacher"), "train", 3, 0)
    np.testing.assert_allclose([row["inputs"] for row in rows], expected["inputs"])
    from tasks.data.export import write_jsonl

    write_jsonl(file, {"labels": np.array([[1.5, np.nan]])}, {})
    assert json.loads(file.read_text()) == {"labels": [1.5, None]}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show", "mqarr"], "unknown task 'mqarr' (did you mean 'mqar'?)"),
        (["show", "~nobody-here/data.npz"], "~nobody-here/data.npz: there is no home folder of ~nobody-here"),
        (["show", "~nobody-here/tasks.py:Mine"], "there is no home folder of ~nobody-here"),
        (["lst"], "invalid choice: 'lst'"),
        (["show", "mqar", "--n_pair", "3"], "unknown mqar option 'n_pair' (did you mean 'n_pairs'?)"),
        (["show", "mqar", "--n_pairs", "many"], "n_pairs"),
        (["show", "mqar", "extra"], "unexpected argument 'extra'"),
        (["show", "mqar", "--n_pairs"], "--n_pairs needs a value"),
        (["stats", "mqar", "--n", str(10**12)], "--n 1000000000000 needs about "),
        (["export", "mqar", "--out", "no/such/folder/x.parquet"], "no such folder: no/such/folder"),
        (["export", "mqar", "--format", "hub"], "needs the data set's name: --out USER/NAME"),
        (["list", "mqar"], "unexpected argument 'mqar'"),
        (["export", "mqar", "--private"], "--private is for a data set on the hub: it needs --format hub"),
    ],
)
def test_wrong_arguments_are_one_line_errors(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(argv) == 2
    assert message in error_line(capsys, "tasks")


def test_a_class_of_your_own_may_have_options_without_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for argv, message in (
        (["show", f"{tmp_path}/own.py:Own"], "missing 1 required positional argument: 'n_tokens'"),
        (["stats", f"{tmp_path}/own.py:Own"], "missing 1 required positional argument: 'n_tokens'"),
        (["show", f"{tmp_path}/own.py:Abstract"], "abstract method"),
        (["show", f"{tmp_path}/own.py:Loses"], "Loses must keep its argument size as an attribute: self.size"),
    ):
        assert command.main(argv) == 2
        assert message in error_line(capsys, "tasks")
    assert command.main(["stats", f"{tmp_path}/own.py:Untyped", "--n_tokens", "5", "--n", "9"]) == 0
    assert " of 5 " in capsys.readouterr().out
    argv = ["show", f"{tmp_path}/own.py:Own", "--n_tokens", "5"]
    assert command.main(argv) == 0
    shown = capsys.readouterr().out
    assert "with these options\n  inputs      tokens 0 ... 4, 8 positions" in shown
    assert "n_tokens = required" in shown
    assert command.main([*argv, "--markdown"]) == 0
    page = capsys.readouterr().out
    assert "## With these options\n\n- inputs: tokens 0 ... 4, 8 positions" in page
    assert "Made by" not in page  # a command without the options would make another page


def test_export_to_the_hub_uploads_one_split_and_reports_failures_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[datasets.Dataset] = []

    def take(self: datasets.Dataset, repository: str, private: bool) -> str:
        if private:
            raise OSError("no token\nand more lines")
        sent.append(self)
        return f"hub/{repository}"

    monkeypatch.setattr(datasets.Dataset, "push_to_hub", take)
    upload = ["export", "needle", "--n", "4", "--format", "hub", "--out", "me/needle", "--split=test"]
    assert command.main(upload) == 0
    assert capsys.readouterr().out == "hub/me/needle\n"
    assert sent[0].num_rows == 4
    assert str(sent[0].split) == "test"
    assert command.main([*upload, "--private"]) == 2
    assert re.search("'me/needle'.*no token", error_line(capsys, "tasks"))
