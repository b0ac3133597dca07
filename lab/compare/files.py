"""A comparison on disk: CSV, Markdown, a picture and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.compare.charts import comparison_figure
from lab.compare.page import as_page
from lab.compare.table import Group, as_csv, as_markdown
from zoo.files import write_atomically


def write_comparison(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write compare.csv, .md, .png and .html into `folder`, which is made; each file whole or not at all.

    Raises:
        MissingExtraError: matplotlib or plotly is not installed; before anything is written.
        OSError: the folder cannot be written.
    """
    from zoo.theory.report import as_png  # costs an import of torch, which reading runs does without

    contents: dict[str, str | bytes] = {
        "compare.csv": as_csv(groups),
        "compare.md": as_markdown(groups, describe(groups)),
        "compare.png": as_png(comparison_figure(groups)),
        "compare.html": as_page(groups, describe(groups), folder),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def describe(groups: Sequence[Group]) -> str:
    """How much is compared, in a sentence."""
    rows = [row for group in groups for row in group.rows]
    runs = [run for row in rows for run in row.runs]
    unfinished = sum(run.state == "unfinished" for run in runs)
    tasks = ", ".join(group.title for group in groups)
    return f"{len(runs)} runs of {len(rows)} configurations{f' ({unfinished} unfinished)' * bool(unfinished)}: {tasks}."
