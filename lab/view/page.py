"""Tables and charts as one HTML page that needs no network: plotly draws the charts, a script filters both."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lab.run.record import Run
from lab.view.charts import Chart, Series, charts_of, colours
from lab.view.rows import Group, Row
from lab.view.table import Section
from zoo.extras import require_extra
from zoo.report.numbers import plain
from zoo.report.page import render

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MARKED = 12  # lines with fewer points have a marker at each
_LEGEND_ENTRIES = 8
_DASHES = ("solid", "dash", "dot", "dashdot")
_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "x", "cross", "star")


def as_page(
    title: str,
    about: str,
    groups: Sequence[Group],
    sections: Sequence[Section],
    folder: Path | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the page.

    Every table row carries its configuration, mixer and options in `data-` attributes, every trace the configurations
    that it shows in `meta`: the filters use these.

    Args:
        title: heading of the page.
        about: paragraph below it.
        groups: the tasks.
        sections: the tables; a task's table has its title.
        folder: where the page is kept, from which its links to runs lead; None for a page without charts and links.
        notes: paragraphs at the end.

    Raises:
        MissingExtraError: plotly or jinja2 is not installed.
    """
    known, options = colours(groups), filter_options(groups)

    def chosen(row: Row) -> dict[str, str]:
        return {key: plain(row.options[key]) for key in options if key in row.options}

    def address(run: Run) -> str | None:
        if folder is None:
            return None
        # Relative, so that it holds where runs and page are moved together.
        there = run.folder.resolve()
        try:
            return quote(Path(os.path.relpath(there, folder.resolve())).as_posix()) + "/"
        except ValueError:  # on another drive
            return there.as_uri()

    figures = {
        group.title: [json.loads(str(figure_of(chart).to_json())) for chart in charts_of(group, known)]
        for group in (groups if folder else ())
    }
    return render(
        Path(__file__).with_name("page.html"),
        title=title,
        about=about,
        sections=sections,
        notes=notes,
        tasks=[group.title for group in groups],
        colours=known,
        options=options,
        figures=figures,
        plotly=require_extra("plotly.offline").get_plotlyjs() if figures else "",
        chosen=chosen,
        address=address,
    )


def filter_options(groups: Sequence[Group]) -> dict[str, list[str]]:
    """{option: its values} of the options in which configurations of one task differ, in their labels or not."""
    keys = sorted({key for group in groups for row in group.rows for key in (*row.telling, *group.unnamed)})
    found = {}
    for key in keys:
        values = [row.options[key] for group in groups for row in group.rows if key in row.options]
        numbers = all(isinstance(value, int | float) for value in values)
        found[key] = list(dict.fromkeys(map(plain, sorted(values, key=None if numbers else str))))
    return {key: values for key, values in found.items() if len(values) > 1}


def figure_of(chart: Chart) -> Figure:
    """Return a chart as a plotly figure.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    figure = require_extra("plotly.graph_objects").Figure()
    for each in chart.series:
        if chart.joined and any(each.spread):
            figure.add_scatter(**_band(each, chart.log_y))
        figure.add_scatter(**_line(each, chart))
    if chart.floor:
        figure.add_scatter(
            x=list(chart.floor),
            y=list(chart.floor.values()),
            name="bound",
            mode="lines",
            line={"color": "#555", "width": 1.5, "dash": "dot"},
            hovertemplate="no less than %{y:.4g} with %{x} heads<extra></extra>",
            meta={"rows": None},
        )
    note = {"showarrow": False, "font": {"size": 10, "color": "#777"}}
    if chart.chance is not None:
        figure.add_hline(chart.chance, line={"color": "#999", "dash": "dash", "width": 1.5})
        place = {"x": 1, "xref": "paper", "y": chart.chance, "yshift": 7, "xanchor": "right"}
        figure.add_annotation(text="chance", **place, **note)
    if chart.trained_at is not None:
        figure.add_vline(chart.trained_at, line={"color": "#999", "width": 1.5})
        # On a logarithmic axis an annotation's place is the power.
        x = math.log10(chart.trained_at) if chart.log_x else chart.trained_at
        place = {"x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "center"}
        figure.add_annotation(text=f"trained at {chart.trained_at:,}", **place, **note)
    figure.update_layout(
        template="plotly_white",
        title={"text": chart.title, "font": {"size": 14}, "x": 0.02},
        margin={"l": 60, "r": 12, "t": 40, "b": 48},
        legend={"font": {"size": 11}, "orientation": "h", "y": -0.22, "yanchor": "top"},
        showlegend=len(chart.series) <= _LEGEND_ENTRIES,  # of more, the pointer tells the names
        hovermode="x unified" if chart.joined else "closest",  # of curves all at a point, with their values
        hoverlabel={"namelength": 60, "font": {"size": 11}},
        height=380,
    )
    figure.update_xaxes(title=chart.x_label, title_font_size=12, type="log" if chart.log_x else "linear")
    if chart.ticks is not None:
        figure.update_xaxes(tickvals=list(chart.ticks), ticktext=list(chart.ticks.values()))
    figure.update_yaxes(title=chart.y_label, title_font_size=12, type="log" if chart.log_y else "linear")
    if chart.is_share:
        figure.update_yaxes(range=[-0.03, 1.03])
    elif chart.log_y:
        # Over many decades their ends are enough; within one, the numbers between are wanted.
        values = [y for each in chart.series for y in each.y]
        figure.update_yaxes(exponentformat="power", dtick=1 if max(values) > 100 * min(values) else None)
    return figure


def _line(each: Series, chart: Chart) -> dict[str, Any]:
    low, high = each.band(chart.log_y)
    spread = [f" ± {value:.2g}" if value else "" for value in each.spread]
    names = each.points or [each.label] * len(each.x)
    return {
        "x": each.x,
        "y": each.y,
        "name": html.escape(each.label),
        "mode": "lines+markers" if len(each.x) < _MARKED else "lines",
        "line": {"color": each.colour, "width": 2, "dash": _DASHES[each.variant % len(_DASHES)]},
        "marker": {"size": 7, "symbol": _MARKERS[each.variant % len(_MARKERS)]},
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
        "fillcolor": each.colour,
        "opacity": 0.15,
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": each.label,
        "meta": {"rows": each.rows},
    }
