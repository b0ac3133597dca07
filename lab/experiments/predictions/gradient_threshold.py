"""From which gradient before training on a needle is learned, fitted on some mixers and told of others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lab.experiments.predictions.gradient_highway import gradient_at_initialisation
from lab.experiments.predictions.trainability import speeds
from lab.experiments.vocabulary import ACCURACY, LEARNED, Prediction, Runs, correlated, curve, panel
from zoo.evidence import Check, Curve, Evidence, at_least
from zoo.evidence.interval import of_share
from zoo.report.terminal import progress

TOLD = 2 / 3
"""The share of cells that a limit must tell rightly."""
RANKS, FAR = 0.5, 64
"""A rank correlation, and the distance from which on it is asked over starts: nearer needles are mostly learned."""


class Cell(NamedTuple):
    """A mixer and start at a distance: the gradient before training, and medians over seeds, NaN without scores."""

    gradient: float
    accuracy: float
    speed: float

    @property
    def learned(self) -> bool:
        return self.accuracy >= LEARNED


def measured(runs: Runs) -> Cell:
    """Return the cell of runs that differ in their seeds only."""
    scored = len(runs.scores(ACCURACY)) == len(runs)
    speed = statistics.median(speeds(runs)) if scored else math.nan
    return Cell(gradient_at_initialisation(runs.runs[0].config), runs.median(ACCURACY), speed)


def limit(cells: Sequence[Cell]) -> float:
    """Return the gradient, between those of two cells or beyond all, above which most cells are learned, below not.

    Of several that err as rarely, the middle one.
    """
    logs = sorted(math.log(cell.gradient) for cell in cells)
    between = [(one + other) / 2 for one, other in pairwise(logs)]
    tried = [math.exp(each) for each in (logs[0] - 1, *between, logs[-1] + 1)]
    right = [rightly_told(cells, at) for at in tried]
    best = [at for at, n in zip(tried, right, strict=True) if n == max(right)]
    return best[len(best) // 2]


def rightly_told(cells: Sequence[Cell], limit: float) -> int:
    """Count the cells that are learned where the gradient is above the limit, and not learned where it is not."""
    return sum((cell.gradient > limit) is cell.learned for cell in cells)


def judge(runs: Runs) -> Evidence:
    """Expect a limit that holds for mixers on which it was not fitted, and gradients that rank the speeds."""
    starts: dict[str, dict[int, Cell]] = {}
    kinds = runs.kinds()
    with progress(len(kinds)) as advance:
        for kind, of_kind in kinds.items():
            advance(f"gradients of {kind}")
            starts[kind] = {distance: measured(cell) for distance, cell in of_kind.by("task.distance")}
    every = [list(cells.values()) for cells in starts.values()]
    cells = [cell for of_start in every for cell in of_start]
    at, told = _told(*([cell for of_start in every[first::2] for cell in of_start] for first in (0, 1)))
    checks: list[Check] = [told]
    what = "rank correlation of the gradient before training and 1 / steps to 90 %"
    for distance in runs.values("task.distance"):
        if distance >= FAR:
            there = [of_start[distance] for of_start in starts.values()]
            pairs = [(cell.gradient, cell.speed) for cell in there]
            checks.append(correlated(f"{what}, distance {distance}, over mixers and starts", pairs, RANKS))
    checks.append(correlated(f"{what}, over all cells", [(cell.gradient, cell.speed) for cell in cells], RANKS))
    of, unit = "gradient before training", "relative to the last position's"
    points, lines = [], []
    for kind, of_start in starts.items():
        gradients, accuracies, _ = zip(*of_start.values(), strict=True)
        points.append(Curve(kind, gradients, accuracies, "points"))
        lines.append(curve(kind, dict(zip(of_start, gradients, strict=True))))
    lines.append(curve("the limit", dict.fromkeys(runs.values("task.distance"), at), "dashed"))
    panels = (
        panel("Accuracy", f"{of}, {unit}", "test accuracy", points, log_x=True, log_y=False),
        panel("Gradient before training", "distance of the needle", unit, lines, log_x=True),
    )
    return Evidence(tuple(checks), panels)


def _told(fitted: Sequence[Cell], tested: Sequence[Cell]) -> tuple[float, Check]:
    """Return the limit of some cells, and the check of what it tells of the others."""
    quantity = "share of cells of the other mixers and starts of which the limit tells whether they are learned"
    if not all(math.isfinite(cell.accuracy) for cell in (*fitted, *tested)):
        return math.nan, Check(quantity, math.nan, TOLD, reason="a cell without a score")
    at, n = limit(fitted), len(tested)
    n_learned = sum(cell.learned for cell in tested)
    commoner = max(n_learned, n - n_learned) / n
    right = of_share(rightly_told(tested, at), n)
    return at, at_least(f"{quantity} (limit {at:.0e}; the commoner outcome {commoner:.2f})", right, max(TOLD, commoner))


PREDICTION = Prediction(
    "Ghodsi, arXiv 2512.15115 (gradient propagation)",
    "a limit that tells no more than the commoner outcome, or gradients that do not rank how soon needles are learned",
    judge,
)
