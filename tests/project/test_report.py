"""What results look like, and that each part of it is written in one place."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests import ROOT
from tests.project.test_doors import parsed
from zoo.report import markdown, plots, terminal
from zoo.report.files import as_json, read_json, write_atomically
from zoo.report.numbers import NOTHING, number, plain, size

# Files


@pytest.mark.parametrize("content", ["τ\n", b"\x89PNG\r\n"])
def test_text_and_bytes_arrive_as_they_are(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before, and longer")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        write_atomically(tmp_path / "absent" / "model.ckpt", b"")
    assert refused.value.filename == str(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as refused:
        write_atomically(tmp_path / "file" / "model.ckpt", b"")
    assert refused.value.filename == str(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        write_atomically(tmp_path / "folder", "")
    assert refused.value.filename == str(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_what_is_not_finite_is_null_in_json_both_ways(tmp_path: Path) -> None:
    content = {1: math.nan, "a": [math.inf, (1, 2.5)], "b": {"c": -math.inf, "d": True, "e": "NaN"}}
    plain_data = {"1": None, "a": [None, [1, 2.5]], "b": {"c": None, "d": True, "e": "NaN"}}
    assert json.loads(as_json(content)) == plain_data
    file = tmp_path / "foreign.json"
    file.write_text('{"x": NaN, "y": [Infinity, 1e999, 3]}')
    assert read_json(file) == {"x": None, "y": [None, None, 3]}


# Numbers, Markdown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (7.0, "7"),
        (1_234_567, "1,234,567"),
        (999_999.5, "1,000,000"),
        (1_234_567.8, "1.235e+06"),
        (1e300, "1e+300"),
        (0.997, "0.997"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (None, NOTHING),
    ],
)
def test_a_number_is_as_long_as_it_says_something(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("n_bytes", "text"), [(0, "0 B"), (1023, "1,023 B"), (2**40, "1 TiB"), (2**52, "4,096 TiB")])
def test_bytes_have_the_largest_unit_that_they_fill(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


def test_an_options_value_is_told_without_brackets() -> None:
    assert plain([["lstm", "lstm"], 2, 0.1 + 0.2]) == "2×lstm+2+0.3"


def test_a_cell_keeps_its_bar() -> None:
    assert markdown.table(("a", ""), [("x|y", "")], "rl") == ["| a | |", "|---:|---|", "| x\\|y | |"]


def test_a_part_of_a_page_is_replaced_where_it_stands() -> None:
    page = "before\n<!-- part -->\nold\n<!-- /part -->\nafter\n"
    assert markdown.replace_part(page, "part", "new\n") == page.replace("old", "new")
    assert markdown.replace_part(page, "another", "new\n") == page


# Plots


def test_a_picture_has_one_style_and_the_same_bytes_whatever_the_users_settings_are() -> None:
    import matplotlib

    @plots.styled
    def picture() -> bytes:
        figure, (axes,) = plots.new_figure()
        axes.plot([1, 2], [3, 4], label="a")
        axes.set_title("title")
        axes.legend()
        return plots.as_png(figure)

    before = picture()
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "figure.dpi": 30}):
        assert picture() == before
        assert matplotlib.rcParams["font.size"] == 20


def test_a_mixer_keeps_its_colour() -> None:
    assert plots.colours(["ssd", "lstm", "ssd"]) == {"lstm": plots.COLOURS[0], "ssd": plots.COLOURS[1]}


# The terminal


def test_cells_are_shown_as_they_are() -> None:
    console = Console(width=60)
    with console.capture() as captured:
        console.print(terminal.make_table(("[a]", "b"), [("[red]x[/]", "1")], "lr", title="[bold]"))
    assert [line.rstrip() for line in captured.get().splitlines() if line.strip(" ─")] == [
        "[bold]",
        " [a]        b",
        " [red]x[/]  1",
    ]


@pytest.mark.parametrize("ends", [lambda: 0, lambda: terminal.fail("zoo", BrokenPipeError(), 1)])
def test_a_command_that_nobody_reads_ends_in_silence(
    ends: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    @terminal.ends_unread
    def main() -> int:
        sys.stdout.write("read this")
        return ends()

    with open(writer, "w", encoding="utf-8") as unread:  # noqa: PTH123 (it is no path)
        monkeypatch.setattr("sys.stdout", unread)
        assert main() == terminal.NOBODY_READS
    assert capfd.readouterr().err == ""


def test_another_broken_pipe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @terminal.ends_unread
    def main() -> int:
        raise BrokenPipeError("a worker's")

    with Path(os.devnull).open("w") as read:
        monkeypatch.setattr("sys.stdout", read)
        with pytest.raises(BrokenPipeError, match="a worker's"):
            main()


# One place each

Finder = Callable[[ast.AST], bool]


def _named(*names: str) -> Finder:
    """An attribute or a name; `module.name` is the attribute of a module."""

    def is_one(node: ast.AST) -> bool:
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in names:
                return True
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name in names
        return False

    return is_one


def _spelt(pattern: str) -> Finder:
    found = re.compile(pattern)

    def is_one(node: ast.AST) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(found.search(node.value))

    return is_one


def _given(*names: str) -> Finder:
    return lambda node: isinstance(node, ast.keyword) and node.arg in names


def _defined(*names: str) -> Finder:
    return lambda node: isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names


def _renamed(node: ast.AST) -> bool:
    """`os.replace(a, b)`, and `a.replace(b)` of paths: in a text one thing is replaced by another."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="replace" | "rename")):
            return True
        case ast.Call(func=ast.Attribute(attr="replace" | "rename"), args=[_], keywords=[]):
            return True
    return False


def _emptied(node: ast.AST) -> bool:
    """`None if math.isnan(x) else x`, or the other way round."""
    if not isinstance(node, ast.IfExp) or "None" not in (ends := {ast.unparse(node.body), ast.unparse(node.orelse)}):
        return False
    asked = re.search(r"\bis(?:nan|finite)\((.+?)\)", ast.unparse(node.test))
    return asked is not None and asked[1] in ends


MUTANTS = "tests/mutants.py"
"""Its process must import nothing of the project: no mutant would reach what a forked one has from it."""

SUBJECTS: dict[str, tuple[Finder, set[str], str]] = {
    "the rule of a Markdown table": (_spelt(r"\|\s*:?---|^-+:$"), {"zoo/report/markdown.py"}, "x = '|---|---:|'"),
    "the row of a Markdown table": (_spelt(r"^\| "), set(), "x = f'| {a} | {b} |'"),
    "the bar in a cell": (_spelt(r"^\\\|$"), {"zoo/report/markdown.py"}, r"x.replace('|', '\\|')"),
    "a part of a page": (_spelt("<!-- /"), {"zoo/report/markdown.py"}, "x = '<!-- /part -->'"),
    "the style of pictures": (
        _named("savefig", "rcParams", "rc_context", "rcdefaults", "style.context"),
        {"zoo/report/plots.py"},
        "figure.savefig('x.png')",
    ),
    "the size of text in a picture": (
        _given("fontsize", "title_fontsize", "labelsize", "dpi"),
        set(),
        "axes.set_title('x', fontsize=11)",
    ),
    "the style of a terminal's table": (
        _spelt(r"^rich\.box$"),
        {"zoo/report/terminal.py"},
        "require_extra('rich.box')",
    ),
    "a file put in its place": (
        _renamed,
        # A checkpoint is streamed; a damaged one is set aside; a folder of the cache comes with all its files.
        {"zoo/report/files.py", "zoo/training/checkpoints.py", "lab/run.py", "tasks/cache.py", MUTANTS},
        "y = temporary.replace(path)",
    ),
    "null for what is not finite": (_emptied, {"zoo/report/files.py"}, "x = None if math.isnan(x) else x"),
    "JSON without what is not finite": (_given("allow_nan"), {"zoo/report/files.py"}, "dumps(x, allow_nan=False)"),
    "a command line that cannot be followed": (_defined("UsageError"), {"zoo/naming.py"}, "class UsageError: ..."),
    "the order of scores": (_defined("merit", "merits", "score_of"), {"lab/score.py"}, "def merit(score): ..."),
    "handlers of signals": (
        _named("signal.signal"),
        {"zoo/signals.py", "lab/train.py", MUTANTS},  # the second signal ends a run at once
        "signal.signal(2, f)",
    ),
    "an output that nobody reads": (_named("os.devnull"), {"zoo/report/terminal.py"}, "os.open(os.devnull, 1)"),
}
"""What it is, how it is found, where alone it stands, an example. The names in a run's folder: `test_doors.py`."""


KINDS = ast.Expr, ast.Constant, ast.Attribute, ast.Name, ast.keyword, ast.ClassDef, ast.FunctionDef, ast.Call, ast.IfExp
"""What the finders look at."""


def _nodes(text: str) -> list[ast.AST]:
    """All but docstrings, which may speak of anything."""
    nodes = [node for node in ast.walk(parsed(text)) if isinstance(node, KINDS)]
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    return [node for node in nodes if id(node) not in said and not isinstance(node, ast.Expr)]


@pytest.fixture(scope="module")
def sources() -> dict[str, list[ast.AST]]:
    folders = ("zoo", "tasks", "lab", "benchmarks")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    paths += [path for name in ("train.py", "sweep.py", MUTANTS) if (path := ROOT / name).is_file()]
    return {path.relative_to(ROOT).as_posix(): _nodes(path.read_text(encoding="utf-8")) for path in paths}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_subject_has_one_place(subject: str, sources: dict[str, list[ast.AST]]) -> None:
    is_one, homes, example = SUBJECTS[subject]
    assert any(map(is_one, _nodes(example)))
    found = {
        name: sorted({getattr(node, "lineno", 0) for node in nodes if is_one(node)}) for name, nodes in sources.items()
    }
    assert {name: lines for name, lines in found.items() if lines and name not in homes} == {}
    assert [home for home in homes if home in found and not found[home]] == []
