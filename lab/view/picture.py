"""Pictures without interaction, by matplotlib: learning curves by task, and a heat map of mixers against tasks.

The charts of the page are plotly's (`lab.view.page`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lab.run.score import BASELINE, level, score_text, skill
from lab.view.charts import charts_of, colours
from lab.view.rows import Group
from zoo.report.numbers import Number
from zoo.report.plots import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.")
_PANELS = 3  # side by side
_LEGEND_ENTRIES = 12
_LONGEST_LABEL = 60  # characters
_COLUMN, _ROW, _MARGINS = 0.85, 0.3, (3.2, 1.5)  # inches, of the heat map
_DARK = 0.55  # cells up to this share are so dark that their text is white


@styled
def overview_figure(groups: Sequence[Group]) -> Figure:
    """Draw a panel for each task: its first chart, the learning curves, with the scores in the legend, best first.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    n_columns = min(_PANELS, len(groups))
    figure, panels = new_figure(n_columns, math.ceil(len(groups) / n_columns))
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    known = colours(groups)
    for axes, group in zip(panels, groups, strict=False):
        axes.set_title(group.title)
        chart = next(iter(charts_of(group, known)), None)
        if chart is None:
            axes.set_axis_off()
            continue
        lines = {each.label: each for each in chart.series}
        for row in group.rows:
            if (each := lines.get(row.label)) is None:
                continue
            label = row.label if len(row.label) <= _LONGEST_LABEL else f"{row.label[: _LONGEST_LABEL - 1]}…"
            style: dict[str, Any] = {"color": each.colour, "linestyle": _DASHES[each.variant % len(_DASHES)]}
            style["marker"] = "." if len(each.x) == 1 else None
            axes.plot(each.x, each.y, label=f"{label}  {row.score_text}", **style)
            axes.fill_between(each.x, *each.band(chart.log_y), color=each.colour, alpha=0.15, linewidth=0)
        if chart.chance is not None:
            axes.axhline(chart.chance, color="0.5", linestyle="--", linewidth=1.2, label="chance")
        if chart.log_y:
            axes.set_yscale("log")
        elif chart.is_share:
            axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        if len(chart.series) <= _LEGEND_ENTRIES:
            axes.legend(title=f"final {group.score.replace('_', ' ')}", alignment="left")
    return figure


def share(group: Group, score: Number | None) -> float:
    """Return how far a score lies on the way from guessing to a perfect one, 0 to 1.

    A perplexity has no perfect value: it counts by its share of the task's best.
    """
    perfect = level(group.score, group.chance, 1.0)
    best = group.rows[0].center() if perfect is None else perfect
    return min(1.0, skill(group.score, score, group.chance) / skill(group.score, best, group.chance))


@styled
def heat_map(groups: Sequence[Group]) -> Figure:
    """Draw mixers against tasks: shares of the way to a perfect score, the mixers by their mean, scores written in.

    The best of a task are bold; the last row has the guesses without order; a mixer without a row stays white.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    by_mixer = {name: {} for name in dict.fromkeys(row.mixer for group in groups for row in group.rows)}
    for column, group in enumerate(groups):
        for row in group.rows:
            score = row.center()
            by_mixer[row.mixer][column] = share(group, score), score_text(group.score, score), row.label in group.best
    lines = dict(sorted(by_mixer.items(), key=lambda item: -fmean(each[0] for each in item[1].values())))
    lines[BASELINE] = {
        column: (share(group, guess), score_text(group.score, guess), False)
        for column, group in enumerate(groups)
        if (guess := group.rows[0].baseline) is not None
    }
    figure, (axes,) = new_figure()
    figure.set_size_inches(_COLUMN * len(groups) + _MARGINS[0], _ROW * len(lines) + _MARGINS[1])
    shares = [[cells[at][0] if at in cells else math.nan for at in range(len(groups))] for cells in lines.values()]
    image = axes.imshow(shares, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xticks(
        range(len(groups)), [group.title for group in groups], rotation=30, ha="left", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(lines)), list(lines))
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.axhline(len(lines) - 1.5, color="white", linewidth=3)
    for at, cells in enumerate(lines.values()):
        for column, (part, text, is_best) in cells.items():
            look = {"color": "white" if part < _DARK else "black", "weight": "bold" if is_best else "normal"}
            axes.text(column, at, text, look | {"fontsize": 8, "ha": "center", "va": "center"})
    label = "from guessing (0) to a perfect score (1)"
    if any(level(group.score, group.chance) is None for group in groups):
        label += "; perplexities: to the best one (1)"
    figure.colorbar(image, ax=axes).set_label(label)
    return figure
