"""Where two attention layers of a stack stand for a needle, against the seed, and whether the gradient tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lab.experiments.predictions import placement_of_two
from lab.experiments.predictions.placement import LOSS
from lab.experiments.vocabulary import ACCURACY, LEARNED, Prediction, Runs, correlated, panel
from zoo.evidence import Curve, Estimate, Evidence, at_least
from zoo.evidence.interval import of_variance_ratio


def gradient_at_the_needle(config: Mapping[str, Any]) -> float:
    """Measure the gradient of a run's untrained stack at the distance of its needle against that at the last symbol."""
    task = config["task"]
    seq_len = 2 * task["distance"]  # half a sequence back is where the needle is
    return placement_of_two.gradient_at_initialisation({**config, "task": {**task, "seq_len": seq_len}})


def judge(runs: Runs) -> Evidence:
    """Compare the variance of the loss between placements with that between seeds; rank them by the gradient."""
    places = [cell for _, cell in runs.by("mixer.pattern")]
    best = max(places, key=lambda cell: cell.median(ACCURACY))
    losses = [[math.log(loss) for loss in cell.scores(LOSS) if loss > 0] for cell in places]
    whole = all(len(found) == len(losses[0]) > 1 for found in losses)
    ratio = of_variance_ratio(losses) if whole else Estimate(math.nan, math.nan, math.nan)
    gradients = [gradient_at_the_needle(cell.runs[0].config) for cell in places]
    medians = [cell.median(LOSS) for cell in places]
    told = [(each, -math.log(loss) if loss > 0 else math.nan) for each, loss in zip(gradients, medians, strict=True)]
    checks = (
        at_least("needle, pairs: accuracy of the best placement", best.samples(ACCURACY), LEARNED),
        at_least("needle, pairs: variance of the log loss between placements / between seeds", ratio, 1),
        correlated("needle: rank correlation of the gradient before training and minus the loss, pairs", told, 0),
    )
    points = Curve("two attention layers", tuple(gradients), tuple(medians), "points")
    return Evidence(checks, (panel("needle", "gradient before training", "test loss", [points]),))


PREDICTION = Prediction(
    "Ours; for stacks with few attention layers: Lieber et al., arXiv 2403.19887 (Jamba), and arXiv 2512.20569",
    "a variance between placements below that between seeds, no pair that learns, or a gradient that is no larger "
    "where the loss is less",
    judge,
)
