"""Render tables and charts as one HTML page that needs no network: plotly draws, a script filters and sorts."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lab.run.record import Run
from lab.view.charts import Chart, Series, charts_of
from lab.view.rows import Group, Row, mixers_of, value_text
from zoo.extras import require_extra
from zoo.report.page import Section, render
from zoo.report.plots import look_of

_MOST_MARKERS = 12  # per line
_LEGEND_ENTRIES = 8
_HEIGHT, _LEGEND_LINE = 360, 20  # pixels
_DASHES = ("solid", "dash", "dot", "dashdot")


def as_page(
    title: str,
    about: str,
    groups: Sequence[Group],
    sections: Sequence[Section],
    folder: Path,
) -> str:
    """Return the page.

    For the filters, every table row has its configuration, mixer and options in `data-` attributes, and every trace has
    its configurations in `meta`.

    Args:
        title: heading of the page.
        about: paragraph below it.
        groups: the tasks.
        sections: the tables; the table of a task has the task's title.
        folder: folder of the page, to which links to runs are relative.

    Raises:
        MissingExtraError: plotly or jinja2 is not installed.
    """
    options = filter_options(groups)

    def chosen(row: Row) -> dict[str, str]:
        return {key: value_text(row.options[key]) for key in options if key in row.options}

    def address(run: Run) -> str:
        # Relative, so that it stays valid if runs and page are moved together.
        there = run.folder.resolve()
        try:
            return quote(Path(os.path.relpath(there, folder.resolve())).as_posix()) + "/"
        except ValueError:  # on another drive
            return there.as_uri()

    figures = {group.title: [figure_of(chart) for chart in charts_of(group)] for group in groups}
    return render(
        Path(__file__).with_name("page.html"),
        title=title,
        about=about,
        sections=sections,
        tasks=[group.title for group in groups],
        looks={mixer: look_of(mixer) for mixer in mixers_of(groups)},
        options=options,
        figures=figures,
        plotly=require_extra("plotly.offline").get_plotlyjs(),
        chosen=chosen,
        address=address,
    )


def filter_options(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return {option: its values} for options that differ between configurations of one task, in labels or not."""
    keys = sorted({key for group in groups for row in group.rows for key in (*row.telling, *group.unnamed)})
    found = {}
    for key in keys:
        values = [row.options[key] for group in groups for row in group.rows if key in row.options]
        numbers = all(isinstance(value, int | float) for value in values)
        found[key] = list(dict.fromkeys(map(value_text, sorted(values, key=None if numbers else str))))
    return {key: values for key, values in found.items() if len(values) > 1}


def figure_of(chart: Chart) -> dict[str, Any]:
    """Return a chart as plain data for plotly; the page adds the colours of axes and background."""
    traces = []
    for each in chart.series:
        if chart.joined and any(each.spread):
            traces.append(_band(each, chart.log_y))
        traces.append(_line(each, chart))
    if chart.floor:
        traces.append(
            {
                "x": list(chart.floor),
                "y": list(chart.floor.values()),
                "name": "bound",
                "mode": "lines",
                "line": {"color": "#555", "width": 1.5, "dash": "dot"},
                "hovertemplate": "no less than %{y:.4g} with %{x} heads<extra></extra>",
                "meta": {"rows": None},
            }
        )
    notes, shapes = [], []
    if (y := chart.chance) is not None:
        line = {"color": "#999", "dash": "dash", "width": 1.5}
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line})
        notes.append({"text": "chance", "x": 1, "xref": "paper", "y": y, "yshift": 7, "xanchor": "right"})
    if (x := chart.trained_at) is not None:
        shapes.append(
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": x,
                "x1": x,
                "line": {"color": "#999", "width": 1.5},
            }
        )
        # On a logarithmic axis, plotly places annotations by the exponent.
        place = {"x": math.log10(x) if chart.log_x else x, "y": 1, "yref": "paper"}
        notes.append({"text": f"trained at {x:,}", **place, "yanchor": "bottom", "xanchor": "center"})
    x_axis: dict[str, Any] = {"title": {"text": chart.x_label, "font": {"size": 12}}}
    y_axis: dict[str, Any] = {"title": {"text": chart.y_label, "font": {"size": 12}}}
    x_axis["type"], y_axis["type"] = ("log" if log else "linear" for log in (chart.log_x, chart.log_y))
    if chart.ticks is not None:
        x_axis |= {"tickvals": list(chart.ticks), "ticktext": list(chart.ticks.values())}
    if chart.is_share:
        y_axis["range"] = [-0.03, 1.03]
    elif chart.log_y:
        # Over more than two decades, label only the decades; else also the numbers between them.
        values = [y for each in chart.series for y in each.y]
        y_axis |= {"exponentformat": "power", "dtick": 1 if max(values) > 100 * min(values) else None}
    named = len(chart.series) <= _LEGEND_ENTRIES
    layout = {
        "title": {"text": chart.title, "font": {"size": 14}, "x": 0.02},
        "margin": {"l": 60, "r": 12, "t": 40, "b": 48},
        "legend": {"font": {"size": 11}, "orientation": "h", "y": -0.22, "yanchor": "top"},
        "showlegend": named,  # with more lines, hovering shows the names
        "hovermode": "x unified" if chart.joined else "closest",  # for curves, show all values at an abscissa
        "hoverlabel": {"namelength": 60, "font": {"size": 11}},
        "height": _HEIGHT + _LEGEND_LINE * named * len(chart.series),
        "xaxis": x_axis,
        "yaxis": y_axis,
        "shapes": shapes,
        "annotations": [{"showarrow": False, "font": {"size": 10, "color": "#777"}} | each for each in notes],
    }
    return {"data": traces, "layout": layout}


def _line(each: Series, chart: Chart) -> dict[str, Any]:
    low, high = each.band(chart.log_y)
    spread = [f" ± {value:.2g}" if value else "" for value in each.spread]
    names = each.points or [each.label] * len(each.x)
    return {
        "x": each.x,
        "y": each.y,
        "name": html.escape(each.label),
        "mode": "lines+markers",
        "line": {"color": each.look.colour, "width": 2, "dash": _DASHES[each.variant % len(_DASHES)]},
        "marker": {"size": 7, "symbol": each.look.symbol, "maxdisplayed": _MOST_MARKERS},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [top - y for top, y in zip(high, each.y, strict=True)],
            "arrayminus": [y - bottom for y, bottom in zip(each.y, low, strict=True)],
            "thickness": 1.2,
            "visible": not chart.joined and any(each.spread),
        },
        "customdata": list(zip(map(html.escape, names), spread, strict=True)),
        "hovertemplate": "%{y:.4g}%{customdata[1]}"
        if chart.joined
        else "%{customdata[0]}<br>%{y:.4g}%{customdata[1]} at %{x}<extra></extra>",
        "legendgroup": each.label,
        "meta": {"rows": each.rows},
    }


def _band(each: Series, log: bool) -> dict[str, Any]:
    low, high = each.band(log)
    return {
        "x": [*each.x, *reversed(each.x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": each.look.colour,
        "opacity": 0.15,
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": each.label,
        "meta": {"rows": each.rows},
    }
