"""Static pictures by matplotlib: a heat map of configurations against tasks, and a figure for a paper.

The interactive charts of the page use plotly (`lab.view.page`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from lab.run.score import BASELINE, level, score_text, skill
from lab.view.charts import Chart
from lab.view.rows import Group
from zoo.extras import require_extra
from zoo.report.numbers import Number
from zoo.report.plots import name_lines, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS = 60  # of the heat map; the best ones are kept
_COLUMN, _ROW, _LETTER, _MARGINS = 0.85, 0.3, 0.08, (1.6, 1.5)  # sizes in the heat map in inches
_GREY = "0.5"
_COLUMN_WIDTH, _PANEL_HEIGHT = 3.35, 2.4  # inches
_MARKED = 12  # a line of up to this many points has a marker at each; a longer one at some
_DARK = 0.55  # cells below this share are so dark that their text is white


def share(group: Group, score: Number | None) -> float:
    """Return the position of a score between guessing (0) and a perfect score (1).

    A perplexity has no perfect value, so 1 is the best perplexity on the task.
    """
    perfect = level(group.score, group.chance, 1.0)
    rivals = [row.center() for row in group.rows] if perfect is None else [perfect]
    best = max(skill(group.score, value, group.chance) for value in rivals)
    return min(1.0, skill(group.score, score, group.chance) / best) if best else 0.0


def _text(group: Group, score: Number, solved: tuple[int, int] | None) -> str:
    """Format a score with two decimals and, for several runs, the number that solved the task."""
    text = score_text(group.score, score) if group.score == "perplexity" else f"{score:.2f}"
    return f"{text}  {solved[0]}/{solved[1]}" if solved and solved[1] > 1 else text


@styled
def heat_map(groups: Sequence[Group]) -> Figure:
    """Draw configurations against tasks: colours are shares of the way to a perfect score, texts are scores.

    Configurations with scores on more tasks come first, then a larger mean share. The score of several runs is followed
    by the number that solved the task. The best score of a task is bold. The last row has guesses without order. Cells
    without a score are empty.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    by_label: dict[str, dict[int, tuple[float, str, bool]]] = {}
    for column, group in enumerate(groups):
        for row in group.rows:
            if row.tested and (score := row.center()) is not None:
                cell = share(group, score), _text(group, score, row.solved), row.label in group.best
                by_label.setdefault(row.label, {})[column] = cell
    # Means over different tasks are not comparable: configurations with more tasks come first.
    best_first = sorted(
        by_label.items(), key=lambda item: (-len(item[1]), -fmean(each[0] for each in item[1].values()))
    )
    lines = dict(best_first[:_MOST_ROWS])
    lines[BASELINE] = {
        column: (share(group, guess), _text(group, guess, None), False)
        for column, group in enumerate(groups)
        if (guess := group.rows[0].baseline) is not None
    }
    figure, (axes,) = new_figure()
    figure.set_facecolor("none")  # for light and dark pages
    names = _LETTER * max(map(len, lines))
    figure.set_size_inches(_COLUMN * len(groups) + names + _MARGINS[0], _ROW * len(lines) + _MARGINS[1])
    shares = [[cells[at][0] if at in cells else math.nan for at in range(len(groups))] for cells in lines.values()]
    image = axes.imshow(shares, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xticks(
        range(len(groups)), [group.title for group in groups], rotation=30, ha="left", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(lines)), list(lines))
    axes.tick_params(length=0, labeltop=True, labelbottom=False, labelcolor=_GREY)
    axes.axhline(len(lines) - 1.5, color=_GREY, linewidth=3)
    axes.set_facecolor("none")
    for at, cells in enumerate(lines.values()):
        for column, (part, text, is_best) in cells.items():
            look = {"color": "white" if part < _DARK else "black", "weight": "bold" if is_best else "normal"}
            axes.text(column, at, text, look | {"fontsize": 8, "ha": "center", "va": "center"})
    label = "from guessing (0) to a perfect score (1)"
    if any(level(group.score, group.chance) is None for group in groups):
        label += "; perplexities: to the best one (1)"
    bar = figure.colorbar(image, ax=axes, location="bottom")
    bar.set_label(label, color=_GREY)
    bar.ax.tick_params(labelcolor=_GREY)
    return figure


@styled
def paper_figure(charts: Sequence[Chart], columns: int) -> Figure:
    """Draw charts at the width of one or two columns of a page, lines named at their ends.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    rows = -(-len(charts) // columns)
    with require_extra("matplotlib").rc_context({"font.size": 8}):
        figure = require_extra("matplotlib.figure").Figure(figsize=(_COLUMN_WIDTH * columns, _PANEL_HEIGHT * rows))
        places = figure.subplots(rows, columns, squeeze=False).flat
        for axes, chart in zip(places, charts, strict=False):
            axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
            axes.set_title(chart.title, fontsize=8)
            for wanted, scale in ((chart.log_x, axes.set_xscale), (chart.log_y, axes.set_yscale)):
                if wanted:
                    scale("log")
            for each in chart.series:
                look = {"color": each.look.colour, "marker": each.look.marker, "ms": 3, "linewidth": 1.2}
                dashes = ("-", "--", ":")[each.variant % 3]
                often = {"markevery": 0.15} if len(each.x) > _MARKED else {}
                axes.plot(each.x, each.y, label=each.label, linestyle=dashes, **often, **look)
                low, high = each.band(chart.log_y)
                if chart.joined:
                    axes.fill_between(each.x, low, high, color=each.look.colour, alpha=0.15, linewidth=0)
                else:
                    axes.vlines(each.x, low, high, color=each.look.colour, linewidth=0.8)
            if chart.floor:
                axes.plot(list(chart.floor), list(chart.floor.values()), color=_GREY, linestyle=":", label="bound")
            if chart.chance is not None:
                axes.axhline(chart.chance, color=_GREY, linewidth=0.8, linestyle="--")
            if chart.trained_at is not None:
                axes.axvline(chart.trained_at, color=_GREY, linewidth=0.8)
            if chart.is_share:
                axes.set_ylim(-0.03, 1.03)
            if chart.ticks is not None:
                axes.set_xticks(list(chart.ticks), list(chart.ticks.values()))
                axes.minorticks_off()
                axes.tick_params(axis="x", labelsize=7)
        name_lines(*figure.axes[: len(charts)])
        for axes in figure.axes[len(charts) :]:
            axes.set_axis_off()
    return figure
