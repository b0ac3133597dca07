"""One head against an SSM of rank k, both trained."""

from __future__ import annotations

import math
from statistics import median

from lab.experiments.predictions.head_count import bounds_of
from lab.experiments.vocabulary import ERROR, NOISE, ZERO, Prediction, Runs, curve, panel
from zoo.evidence import Check, Evidence, at_most, near


def judge(runs: Runs) -> Evidence:
    """Expect one head at its bound, and an SSM far below it; a softmax head is only drawn."""
    checks: list[Check] = []
    labels = {"factorized": "one head: trained", "attention": "one softmax head", "diagonal_ssm": "SSM"}
    errors: dict[str, dict[int, float]] = {name: {} for name in labels}
    bounds: dict[int, float] = {}
    for k, of_k in runs.by("task.k"):
        (bound,) = bounds_of(of_k, [1])
        bounds[k] = bound
        samples = {name: of_k.where({"mixer.name": name}).samples(ERROR) for name in labels}
        for name, found in errors.items():
            found[k] = median(samples[name].values() or [math.nan])
        if k == 1:
            checks.append(at_most("k=1: error of one head", samples["factorized"], ZERO))
            continue
        checks += [
            near(f"k={k}: error of one head", samples["factorized"], bound, NOISE),
            at_most(f"k={k}: error of the SSM", samples["diagonal_ssm"], bound / 10),
        ]
    curves = [curve("one head: bound", {k: b for k, b in bounds.items() if b > ZERO}, "dashed")]
    curves += [curve(labels[name], found) for name, found in errors.items()]
    title = "One head against an SSM of rank k"
    drawn = panel(title, "rank k of the teacher", "relative squared error", curves, lowest=1e-13)
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Ghodsi, arXiv 2512.15115 (interaction rank)",
    "one head off its bound by more than 3 %, or an SSM above a tenth of it",
    judge,
)
