"""Head counts by training: heads on a teacher of known rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.experiments.vocabulary import ERROR, NOISE, ZERO, Prediction, Runs, curve, panel
from zoo.evidence import Check, Curve, Evidence, at_most, near


def bounds_of(runs: Runs, heads: Sequence[int]) -> list[float]:
    """Return the least relative squared error of so many factorized heads on these runs' teacher."""
    import torch

    from tasks.generators.memory.ssm_teacher import SSMTeacher
    from zoo.theory import head_count_bound

    if not len(runs):
        return [math.nan] * len(heads)
    options = runs.runs[0].options
    teacher = SSMTeacher(**{name: options[f"task.{name}"] for name in SSMTeacher().options()})
    lags = torch.as_tensor(teacher.lags)
    return [head_count_bound(lags, h) for h in heads]


def judge(runs: Runs) -> Evidence:
    """Expect the bound below k heads, and no error from k heads on."""
    checks: list[Check] = []
    curves: list[Curve] = []
    for k, of_k in runs.by("task.k"):
        heads = of_k.values("mixer.n_heads")
        bounds = dict(zip(heads, bounds_of(of_k, heads), strict=True))
        for h, each in of_k.by("mixer.n_heads"):
            errors = each.samples(ERROR)
            quantity = f"k={k}, H={h}: error"
            checks.append(near(quantity, errors, bounds[h], NOISE) if h < k else at_most(quantity, errors, ZERO))
        points = [(h, error) for h, each in of_k.by("mixer.n_heads") for error in each.scores(ERROR)]
        curves.append(curve(f"k = {k}: bound", bounds, "dashed"))
        curves.append(Curve(f"k = {k}: trained", tuple(h for h, _ in points), tuple(y for _, y in points), "points"))
    drawn = panel("Error against heads", "heads H", "relative squared error", curves, whole_x=True, lowest=1e-13)
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Ghodsi, arXiv 2512.15115 (head counts); weighted Eckart-Young theorem",
    "an error further than 3 % from the bound below k heads, or above 1e-6 from k heads on",
    judge,
)
