"""zoo.report: atomic files, number formats, Markdown, plots, terminal tables, closed pipes."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests import raising
from zoo.registry import MIXERS
from zoo.report import markdown, plots, terminal
from zoo.report.files import as_json, read_json, write_atomically
from zoo.report.numbers import NOTHING, number, size

# Files


@pytest.mark.parametrize("content", ["τ\n", b"\x89PNG\r\n"])
def test_text_and_bytes_are_written_unchanged(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before, and longer")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", raising(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_writing_has_the_path_that_was_given(tmp_path: Path) -> None:
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


def test_non_finite_numbers_are_null_in_written_and_read_json(tmp_path: Path) -> None:
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
def test_the_format_of_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("n_bytes", "text"), [(0, "0 B"), (1023, "1,023 B"), (2**40, "1 TiB"), (2**52, "4,096 TiB")])
def test_sizes_in_bytes_have_the_largest_fitting_unit(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


def test_replace_part_replaces_only_the_marked_part_of_a_page() -> None:
    page = "before\n<!-- part -->\nold\n<!-- /part -->\nafter\n"
    assert markdown.replace_part(page, "part", "new\n") == page.replace("old", "new")
    assert markdown.replace_part(page, "another", "new\n") == page


# Plots


def test_every_mixer_has_a_different_colour_and_marker() -> None:
    """If it fails, append the new mixer to plots._LISTED."""
    looks = [plots.look_of(mixer) for mixer in MIXERS]
    assert len({(look.colour, look.marker) for look in looks}) == len(looks)
    assert plots.look_of("attention") == ("#0072b2", "o", "circle", "●")
    assert plots.look_of("my_mixers.py:Mine").glyph == "●"


def test_labels_of_points_do_not_overlap_and_stay_in_the_frame(rng: np.random.Generator) -> None:
    figure, (axes,) = plots.new_figure()
    for at, (x, y) in enumerate(rng.uniform(0.0, 0.7, (20, 2))):
        axes.plot([x], [y], marker="o", label=f"point_{at}")
    axes.plot([0.0, 1.0], [0.0, 1.0], label="line")
    plots.name_lines(axes)
    figure.draw_without_rendering()
    assert {text.get_text() for text in axes.texts} == {*(f"point_{at}" for at in range(20)), "line"}
    within = [text.get_window_extent() for text in axes.texts if text.get_text() != "line"]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(within, 2))
    frame = axes.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 <= frame.y1 for box in within)


def test_a_styled_figure_does_not_depend_on_the_users_settings() -> None:
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


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 2)])
def test_several_figures_become_one_image_with_two_per_row(count: int, rows: int, columns: int) -> None:
    figures = [plots.new_figure()[0] for _ in range(count)]
    height, width, channels = plots.as_pixels(figures[0]).shape
    pixels = plots.as_pixels(*figures)
    assert (pixels.shape, channels) == ((rows * height, columns * width, 3), 3)
    assert (pixels[-height:, -width:] == 255).all() == (count == 3)


# The terminal


def test_cells_are_not_interpreted_as_markup() -> None:
    console = Console(width=60)
    with console.capture() as captured:
        console.print(terminal.make_table(("[a]", "b"), [("[red]x[/]", "1")], "lr", title="[bold]"))
    assert [line.rstrip() for line in captured.get().splitlines() if line.strip(" ─")] == [
        "[bold]",
        " [a]        b",
        " [red]x[/]  1",
    ]


@pytest.mark.parametrize("ends", [lambda: 0, lambda: terminal.fail("zoo", BrokenPipeError(), 1)])
def test_a_command_with_a_closed_output_ends_silently(
    ends: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    @terminal.ends_unread
    def main() -> int:
        sys.stdout.write("read this")
        return ends()

    with open(writer, "w", encoding="utf-8") as unread:  # noqa: PTH123 (a file descriptor)
        monkeypatch.setattr("sys.stdout", unread)
        assert main() == terminal.NOBODY_READS
    assert capfd.readouterr().err == ""


def test_a_broken_pipe_elsewhere_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    @terminal.ends_unread
    def main() -> int:
        raise BrokenPipeError("a worker's")

    with Path(os.devnull).open("w") as read:
        monkeypatch.setattr("sys.stdout", read)
        with pytest.raises(BrokenPipeError, match="a worker's"):
            main()
