"""Print a report on the terminal, or render it as a self-contained HTML page with plots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from zoo.check.checker import properties
from zoo.check.finding import Report
from zoo.report import page
from zoo.report.page import Column, Page
from zoo.report.plots import as_png, new_figure, styled
from zoo.report.terminal import make_console, make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {"failed": "✗", "passed": "✓", "not_applicable": "–"}
_STYLES = {"✓": "green", "✗": "bold red", "–": "dim"}
_FLOOR = 1e-17  # zeros are drawn here on logarithmic axes


class Row(NamedTuple):
    """The table cells of a finding. A topic or reason is not repeated in the next row; only failures have a command."""

    topic: str
    mark: str
    name: str
    detail: str
    command: str

    @property
    def failed(self) -> bool:
        """Whether the page highlights the row."""
        return bool(self.command)


_COLUMNS = (
    Column("verdict", "✓ holds, ✗ fails, – does not apply", lambda row: row.mark, text=True),
    Column("finding", "the test, its result, and the expected result", lambda row: row.detail, text=True),
    Column("again", "the command that reproduces a failure", lambda row: row.command, text=True),
    Column("topic", "topic of the property", lambda row: row.topic, text=True),
)


def print_card(report: Report) -> None:
    """Print the verdicts by topic, then each failure with the command that reproduces it."""
    console, rows = make_console(), _rows(report)
    console.print(Text(report.target, "bold").append(f"  {_setting(report)}", "not bold"))
    cells = [(Text(row.topic, "dim"), Text(row.mark, _STYLES[row.mark]), row.name, row.detail) for row in rows]
    table = make_table(("", "", "", ""), cells)
    for column in table.columns[:3]:
        column.no_wrap = True
    console.print(table, highlight=False)
    for row in rows:
        if row.command:
            console.print(Text(f"✗ {row.name}", _STYLES["✗"]).append(f": {row.detail}", "not bold default"))
            console.print(f"    {row.command}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(_counts(report), highlight=False)


def as_html(report: Report) -> str:
    """Return a page with a table of the findings, failures first, and plots of the measurements.

    Raises:
        MissingExtraError: matplotlib or jinja2 is not installed.
    """
    title, lead = f"{report.target}: contract of a sequence mixer", (_counts(report), _setting(report))
    ordered = sorted(report.findings, key=lambda each: each.verdict != "failed")
    rows = _rows(replace(report, findings=tuple(ordered)))
    columns = [each for each in _COLUMNS if any(map(each.cell, rows))]
    return page.as_html(Page(title, {"": columns}, rows, lead, caption="measurements"), _picture(report))


def _rows(report: Report) -> list[Row]:
    topics, before, rows = {each.name: each.topic for each in properties()}, ("", ""), []
    for each in report.findings:
        topic = topics[each.property]
        command = each.reproduce if each.verdict == "failed" else ""
        repeated = each.verdict == "not_applicable" and each.detail == before[1]
        detail = "as above" if repeated else each.detail
        rows.append(Row("" if topic == before[0] else topic, MARKS[each.verdict], each.property, detail, command))
        before = topic, each.detail
    return rows


def _setting(report: Report) -> str:
    return ", ".join(f"{name} {value}" for name, value in report.setting.items() if value not in ({}, None, False))


def _counts(report: Report) -> str:
    counts = {verdict: sum(each.verdict == verdict for each in report.findings) for verdict in MARKS}
    return ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.items())


@styled
def _picture(report: Report) -> bytes:
    """Draw a panel per measurement, as a PNG; empty without measurements."""
    measured = {each.property: each.measured for each in report.findings if each.measured}
    streamed = {name: measured[name]["error_by_position"] for name in ("chunked", "one_by_one") if name in measured}
    panels = [(_errors, streamed)] if streamed else []
    panels += [(draw, measured[name]) for name, draw in _PANELS.items() if name in measured]
    if not panels:
        return b""
    figure, all_axes = new_figure(n_columns=min(2, len(panels)), n_rows=-(-len(panels) // 2))
    for axes, (draw, values) in zip(all_axes, panels, strict=False):
        draw(axes, values)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    return as_png(figure)


def _errors(axes: Axes, values: Mapping[str, Any]) -> None:
    for name, errors in values.items():
        axes.semilogy([max(error, _FLOOR) for error in errors], label=name, marker="o")
    axes.set(title="Streamed against whole", xlabel="position", ylabel="largest difference")
    axes.legend()


def _gradient(axes: Axes, values: Mapping[str, Any]) -> None:
    kept = [(tau, j) for tau, j in zip(values["distances"], values["median"], strict=True) if j > 0]
    axes.semilogy([tau for tau, _ in kept], [j for _, j in kept])
    axes.set(title="Gradient against distance", xlabel="distance", ylabel="norm of the Jacobian, median")


def _memory(axes: Axes, values: Mapping[str, Any]) -> None:
    axes.loglog(values["lengths"], [size / 2**20 for size in values["bytes"]], marker="o")
    axes.set(title="Memory kept for the backward pass", xlabel="positions", ylabel="MiB")


def _spectrum(axes: Axes, values: Mapping[str, Any]) -> None:
    largest = max(values["spectrum"]) or 1.0
    axes.semilogy([max(value / largest, _FLOOR) for value in values["spectrum"]], marker="o")
    axes.set(title="Singular values of the operator's span", xlabel="head", ylabel="relative to the largest")


_PANELS = {"gradient_decay": _gradient, "costs": _memory, "rank": _spectrum}
