"""A comparison as one HTML page that holds all it needs: plotly.js, the charts, tables and filters; no network."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lab.compare.charts import Chart, Series, charts_of, colours
from lab.compare.runs import Run
from lab.compare.table import Column, Group, Row, columns_of, unnamed_text
from zoo.naming import require_extra
from zoo.report.numbers import Number, plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LEGEND_ENTRIES = 8
_DASHES = ("solid", "dash", "dot", "dashdot")
_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "x", "cross", "star")


def fill(template: Path, **parts: str) -> str:
    """Return a page with these parts, the style, and the script that sorts its tables by a click on a heading."""
    shared = {name: Path(__file__).with_name(file) for name, file in (("style", "style.css"), ("sort", "sort.js"))}
    texts = {name: file.read_text(encoding="utf-8") for name, file in shared.items()}
    return Template(template.read_text(encoding="utf-8")).substitute(parts, **texts)


def sortable(heads: Iterable[tuple[str, bool, bool]], rows: Iterable[str]) -> str:
    """Return a table that can be sorted.

    Args:
        heads: of each column its name, whether it stands on the right, whether the first click puts the most on top.
        rows: as HTML.
    """
    cells = (
        f'<th{_align(right)} data-first="{"descending" if more_first else "ascending"}">'
        f"<button>{html.escape(name)}</button></th>"
        for name, right, more_first in heads
    )
    return f"<table><thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def body_cell(content: str, value: Number | str | None, right: bool) -> str:
    """Return a cell: what it shows, as HTML, and what it is sorted by."""
    return f'<td{_align(right)} data-value="{"" if value is None else html.escape(str(value))}">{content}</td>'


def as_page(groups: Sequence[Group], sources: str, folder: Path) -> str:
    """Return the page.

    Every table row carries its configuration, mixer and options in `data-` attributes, every trace the configurations
    that it shows in `meta`: the filters go by these.

    Args:
        groups: what is compared.
        sources: says what was read.
        folder: where the page is kept, from which its links to runs lead.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    known = colours(groups)
    figures = [[json.loads(str(figure_of(chart, known).to_json())) for chart in charts_of(group)] for group in groups]
    options = filter_options(groups)
    return fill(
        Path(__file__).with_name("page.html"),
        sources=html.escape(sources),
        tasks="".join(f"<option>{html.escape(group.title)}</option>" for group in groups),
        mixers="".join(_checkbox(mixer, colour) for mixer, colour in known.items()),
        options="".join(_select(key, values) for key, values in options.items()),
        sections="\n".join(
            _section(at, group, len(each), options, folder)
            for at, (group, each) in enumerate(zip(groups, figures, strict=True))
        ),
        # Within a script element only the end of it has a meaning.
        figures=json.dumps(figures).replace("</", "<\\/"),
        plotly=require_extra("plotly.offline").get_plotlyjs(),
    )


def filter_options(groups: Sequence[Group]) -> dict[str, list[str]]:
    """{option: its values} of those in which configurations of one task differ, whether their labels say so or not."""
    keys = sorted({key for group in groups for row in group.rows for key in (*row.telling, *group.unnamed)})
    found = {}
    for key in keys:
        values = [row.options[key] for group in groups for row in group.rows if key in row.options]
        numbers = all(isinstance(value, int | float) for value in values)
        found[key] = list(dict.fromkeys(map(plain, sorted(values, key=None if numbers else str))))
    return {key: values for key, values in found.items() if len(values) > 1}


def _checkbox(mixer: str, colour: str) -> str:
    name = html.escape(mixer)
    swatch = f'<i style="--colour:{colour}"></i>'
    return f'<label><input type="checkbox" name="mixer" value="{name}" checked>{swatch}{name}</label>'


def _select(key: str, values: Sequence[str]) -> str:
    name = html.escape(key)
    choices = "".join(f"<option>{html.escape(value)}</option>" for value in values)
    return (
        f'<label title="configurations without this option stay">{name} '
        f'<select data-option="{name}"><option value="">all</option>{choices}</select></label>'
    )


def _section(at: int, group: Group, n_charts: int, options: Mapping[str, Sequence[str]], folder: Path) -> str:
    note, columns = unnamed_text(group), columns_of(group)
    heads = ((column.heading, column.right, column.more_first) for column in columns)
    rows = (_row(group, row, columns, options, folder) for row in group.rows)
    return "\n".join(
        [
            f'<section data-figures="{at}" data-task="{html.escape(group.title)}">',
            f"<h2>{html.escape(group.title)}</h2>",
            f'<div class="table">{sortable(heads, rows)}</div>',
            f"<p>{html.escape(note)}</p>" if note else "",
            '<div class="charts">',
            *(f'<div class="chart" data-chart="{number}"></div>' for number in range(n_charts)),
            "</div>",
            "</section>",
        ]
    )


def _row(group: Group, row: Row, columns: Sequence[Column], options: Mapping[str, Sequence[str]], folder: Path) -> str:
    best = row.label in group.best
    kind = "best" if best else "" if row.tested else "open"
    cells = []
    for at, column in enumerate(columns):
        text = html.escape(column.cell(row)) + (' <b title="best">★</b>' if best and at == 1 else "")
        if column.heading == "seeds":
            text += f" <small>{' '.join(_link(run, folder) for run in row.runs)}</small>"
        cells.append(body_cell(text, column.value(row), column.right))
    chosen = json.dumps({key: plain(row.options[key]) for key in options if key in row.options})
    data = {"label": row.label, "mixer": row.mixer, "options": chosen}
    attributes = "".join(f' data-{name}="{html.escape(text)}"' for name, text in data.items())
    return f'<tr class="{kind}"{attributes}>{"".join(cells)}</tr>'


def _link(run: Run, folder: Path) -> str:
    """Return a run's seed, a link to its folder: relative, so that it holds where runs and page are moved together."""
    there = run.folder.resolve()
    try:
        address = quote(Path(os.path.relpath(there, folder.resolve())).as_posix()) + "/"
    except ValueError:  # on another drive
        address = there.as_uri()
    return f'<a href="{html.escape(address)}" title="{html.escape(str(run.folder))}">{run.seed}</a>'


def _align(right: bool) -> str:
    return ' class="right"' if right else ""


def figure_of(chart: Chart, known: Mapping[str, str]) -> Figure:
    """Return a chart as a plotly figure; `known` are the colours of mixers.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    figure = require_extra("plotly.graph_objects").Figure()
    for each in chart.series:
        colour = chart.colour(each, known)
        if chart.joined and any(each.spread):
            figure.add_scatter(**_band(each, chart.log_y, colour))
        figure.add_scatter(**_line(each, chart, colour))
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


def _line(each: Series, chart: Chart, colour: str) -> dict[str, Any]:
    below, above = each.bars(chart.log_y)
    spread = [f" ± {value:.2g}" if value else "" for value in each.spread]
    names = each.points or [each.label] * len(each.x)
    return {
        "x": each.x,
        "y": each.y,
        "name": html.escape(each.label),
        "mode": "lines+markers" if each.few else "lines",
        "line": {"color": colour, "width": 2, "dash": _DASHES[each.variant % len(_DASHES)]},
        "marker": {"size": 7, "symbol": _MARKERS[each.variant % len(_MARKERS)]},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
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


def _band(each: Series, log: bool, colour: str) -> dict[str, Any]:
    low, high = each.band(log)
    return {
        "x": [*each.x, *reversed(each.x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.15,
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": each.label,
        "meta": {"rows": each.rows},
    }
