"""Where the only attention layer of a stack stands, against the seed."""

from __future__ import annotations

import math

from lab.experiments.vocabulary import ACCURACY, LEARNED, Prediction, Runs, curve, panel
from zoo.evidence import Check, Curve, Estimate, Evidence, at_least
from zoo.evidence.interval import of_variance_ratio

LOSS = ("test", "loss")


def judge(runs: Runs) -> Evidence:
    """Compare the variance of the loss between placements with that between seeds."""
    checks: list[Check] = []
    curves: list[Curve] = []
    for task, of_task in runs.by("task.name"):
        places = {pattern.index("attention") + 1: cell for pattern, cell in of_task.by("mixer.pattern")}
        best = max(places.values(), key=lambda cell: cell.median(ACCURACY))
        checks.append(at_least(f"{task}: accuracy of the best placement", best.samples(ACCURACY), LEARNED))
        losses = [[math.log(loss) for loss in cell.scores(LOSS) if loss > 0] for cell in places.values()]
        whole = all(len(found) == len(losses[0]) > 1 for found in losses)
        ratio = of_variance_ratio(losses) if whole else Estimate(math.nan, math.nan, math.nan)
        checks.append(at_least(f"{task}: variance of the log loss between placements / between seeds", ratio, 1))
        points = [(at, score) for at, cell in places.items() for score in cell.scores(ACCURACY)]
        curves.append(Curve(f"{task}: runs", tuple(at for at, _ in points), tuple(y for _, y in points), "points"))
        curves.append(curve(f"{task}: median", {at: cell.median(ACCURACY) for at, cell in places.items()}))
    title, x = "One attention layer", "place of the attention layer"
    drawn = panel(title, x, "test accuracy", curves, whole_x=True, log_y=False)
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Ours; for stacks with few attention layers: Lieber et al., arXiv 2403.19887 (Jamba), and arXiv 2512.20569",
    "a variance between placements below that between seeds, or no placement that learns",
    judge,
)
