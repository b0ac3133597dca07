"""The leaderboard as a picture: of each task, how far each mixer came from guessing to a perfect score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from lab.score import BASELINE, level, score_text, skill
from lab.view.leaderboard.cells import Record, best_of
from zoo.report.plots import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMN, _ROW, _MARGINS = 0.85, 0.3, (3.2, 1.5)  # inches
_DARK = 0.55  # up to this share the colours are so dark that their text is white


def share(record: Record, best: Record, score: float | None = None) -> float:
    """Return how far a score lies on the way from guessing to a perfect one, 0 to 1.

    Perplexities have no perfect value: theirs is the share of what the best mixer of the task is worth.

    Args:
        record: of the task, whose level of guessing counts.
        best: the best record of the task.
        score: default the record's.
    """
    metric, chance = record["metric"], record["chance"]
    perfect = best["score"] if level(metric, chance) is None else level(metric, chance, 1.0)
    return min(1.0, skill(metric, record["score"] if score is None else score, chance) / skill(metric, perfect, chance))


@styled
def leaderboard_figure(
    records: Sequence[Record], tasks: Sequence[str], baselines: Mapping[str, float | None]
) -> Figure:
    """Draw a heat map of mixers against tasks, the mixers in the order of their mean share, scores written in.

    The best of a task are bold.

    Args:
        records: cells that were run; what was not run stays white.
        tasks: columns; those without a cell are left out.
        baselines: the best guess on a task that ignores order, where it is known: the last row.
    """
    cells = {(each["mixer"], each["task"]): each for each in records}
    tasks = [task for task in tasks if any(name == task for _, name in cells)]
    best = {task: best_of([each for each in records if each["task"] == task]) for task in tasks}
    shares = {place: share(each, best[each["task"]]) for place, each in cells.items()}
    texts = {place: score_text(each["metric"], each["score"]) for place, each in cells.items()}

    def mean(mixer: str) -> float:
        return fmean(shares[mixer, task] for task in tasks if (mixer, task) in shares)

    names = [*sorted({mixer for mixer, _ in cells}, key=mean, reverse=True), BASELINE]
    for task in tasks:
        if (guess := baselines.get(task)) is not None:
            shares[BASELINE, task] = share(best[task], best[task], guess)
            texts[BASELINE, task] = score_text(best[task]["metric"], guess)
    figure, (axes,) = new_figure()
    figure.set_size_inches(_COLUMN * len(tasks) + _MARGINS[0], _ROW * len(names) + _MARGINS[1])
    rows = [[shares.get((name, task), math.nan) for task in tasks] for name in names]
    image = axes.imshow(rows, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xticks(range(len(tasks)), tasks, rotation=30, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.axhline(len(names) - 1.5, color="white", linewidth=3)
    for row, name in enumerate(names):
        for column, task in enumerate(tasks):
            if (name, task) in texts:
                is_best = name != BASELINE and cells[name, task]["score"] == best[task]["score"]
                look = {"color": "white" if shares[name, task] < _DARK else "black", "fontsize": 8}
                look |= {"weight": "bold" if is_best else "normal", "ha": "center", "va": "center"}
                axes.text(column, row, texts[name, task], look)
    label = "from guessing (0) to a perfect score (1)"
    if any(level(each["metric"], each["chance"]) is None for each in best.values()):
        label += "; perplexities: to the best one (1)"
    figure.colorbar(image, ax=axes).set_label(label)
    return figure
