"""The command `zoo compare`, an entry point of lab: compare runs in tables, in files or in TensorBoard."""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.view.charts import charts_of
from lab.view.page import as_page
from lab.view.picture import heat_map, paper_figure
from lab.view.rows import Group, group_runs
from lab.view.runs import read_runs
from lab.view.table import as_csv, explain, section_of, table_of
from zoo.errors import UsageError
from zoo.extras import require_extra
from zoo.report.files import write_all, write_atomically
from zoo.report.page import LISTED, as_markdown
from zoo.report.plots import as_image, as_png, require_kind
from zoo.report.terminal import Parser, make_console
from zoo.targets import expanded

_ABOUT = "Mean ± standard deviation over seeds; the best mean of a task and budget is marked."
_OF_THE_PAGE = (
    "A band or a bar is one standard deviation. Grey rows have no test score. Click on a legend to hide a "
    "configuration in all charts, double-click to hide all others. The numbers next to the seeds link to the runs. "
    "The page's address stores the selection."
)
_OF_A_PAPER = ("curve", "length", "state", "heads")
"""Kinds of charts that `--figure` draws."""


def main(argv: Sequence[str]) -> int:
    """Compare runs in tables, on a page of curves and scores, or in TensorBoard.

    Raises:
        UsageError: flags that cannot be combined, nothing to show.
        ValueError: no readable run.
        MissingExtraError: a package of the extra `report` is not installed.
    """
    parser = Parser("zoo compare")
    parser.description = (
        "Compare runs of train.py and sweep.py, also unfinished ones, in a table per task, averaged over seeds. "
        "Writes compare.csv, compare.md, compare.png and compare.html, a page that needs no network."
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", nargs="?", default=Path("runs"), help="folder of the runs; default runs")
    add("--out", type=Path, metavar="DIR", help="folder of the files; default DIR/compare")
    add("--trials", action="store_true", help="include the trials that sweep.py --tune did not pick")
    add("--any_budget", action="store_true", help="rank runs with different steps, batch sizes or data together")
    add("--figure", type=Path, metavar="FILE", help="instead, write a figure for a paper to a .pdf, .svg or .png file")
    add("--columns", type=int, choices=(1, 2), help="width of the figure in columns of a page (1)")
    add("--tensorboard", action="store_true", help="instead of writing files, serve TensorBoard until Ctrl-C")
    add("--port", type=int, metavar="N", help="port of TensorBoard (6006, or the next free one)")
    arguments = parser.parse_args(argv)
    if arguments.port is not None and not arguments.tensorboard:
        raise UsageError("--port needs --tensorboard")
    if arguments.columns is not None and arguments.figure is None:
        raise UsageError("--columns needs --figure")
    if arguments.out is not None and arguments.tensorboard:
        raise UsageError("--tensorboard writes no files; drop --out")
    if arguments.figure is not None:
        if arguments.tensorboard or arguments.out is not None:
            raise UsageError("--figure writes only the figure; drop --tensorboard and --out")
        require_kind("--figure", arguments.figure)
    gc.disable()  # many objects but hardly a cycle: collection would take an eighth of the time
    try:
        return _compare(arguments)
    finally:
        gc.freeze()  # also skip the collection at exit
        gc.enable()


def _compare(arguments: Namespace) -> int:
    for module in ("rich.table", "matplotlib.figure", "plotly.offline", "jinja2"):
        require_extra(module)
    found = read_runs(arguments.folder, trials=True)
    runs = [run for run in found if arguments.trials or not run.trial]
    if not runs:
        raise UsageError(f"{arguments.folder} holds only trials of sweep.py --tune; --trials shows them")
    groups = group_runs(runs, arguments.any_budget)
    console = make_console()
    for group in groups:
        console.print(table_of(group, console.width))
    console.print("\n".join(explain(map(section_of, groups), "{}: {}")), style="dim", highlight=False, markup=False)
    if len(found) > len(runs):
        console.print(f"left out: trials of --tune ({len(found) - len(runs)}); --trials shows them", highlight=False)
    if arguments.tensorboard:
        from lab.view.tensorboard import show_in_tensorboard

        show_in_tensorboard(groups, arguments.port)
    elif arguments.figure is not None:
        charts = [
            replace(chart, title=group.title)
            for group in groups
            for chart in charts_of(group)
            if chart.kind in _OF_A_PAPER
        ]
        if not charts:
            raise UsageError(f"{arguments.folder} has no curves or scores to draw yet")
        drawn = paper_figure(charts, arguments.columns or 1)
        write_atomically(arguments.figure, as_image(drawn, arguments.figure.suffix[1:]))
        print(arguments.figure)
    else:
        print(*write_comparison(groups, arguments.out or expanded(arguments.folder) / "compare"), sep="\n")
    return 0


def write_comparison(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write compare.csv, .md and .html, and .png if a run is tested, into `folder`, which is created if needed.

    Raises:
        MissingExtraError: matplotlib or plotly is not installed; nothing has been written.
        OSError: the folder cannot be written.
    """
    about, sections = f"{describe(groups)} {_ABOUT}", [section_of(group) for group in groups]
    tested = any(row.tested for group in groups for row in group.rows)
    picture = ["", "![Configurations against tasks, from guessing to a perfect score](compare.png)"]
    end = [*explain(sections, LISTED), *(picture if tested else [])]
    contents: dict[str, str | bytes] = {
        "compare.csv": as_csv(groups),
        "compare.md": as_markdown("Comparison", about, sections, end),
        "compare.html": as_page("Comparison of sequence mixers", f"{about} {_OF_THE_PAGE}", groups, sections, folder),
    }
    return write_all(folder, contents | ({"compare.png": as_png(heat_map(groups))} if tested else {}))


def describe(groups: Sequence[Group]) -> str:
    """Return a sentence with the number of compared runs and their tasks."""
    rows = [row for group in groups for row in group.rows]
    runs = [run for row in rows for run in row.runs]
    unfinished = sum(run.state == "unfinished" for run in runs)
    tasks = ", ".join(group.title for group in groups)
    return f"{len(runs)} runs of {len(rows)} configurations{f' ({unfinished} unfinished)' * bool(unfinished)}: {tasks}."
