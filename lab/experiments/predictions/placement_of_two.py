"""Where two attention layers of a stack stand, and what tells it beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.build import build
from lab.experiments.predictions.placement import LOSS
from lab.experiments.vocabulary import ACCURACY, LEARNED, SPREAD, Prediction, Runs, correlated, panel
from zoo.evidence import Check, Curve, Estimate, Evidence, Panel, Samples, at_least, paired, within
from zoo.evidence.interval import of_variance_ratio


def gradient_at_initialisation(config: Mapping[str, Any], n_draws: int = 4) -> float:
    """Measure |d y_n / d x_{n - seq_len / 2}| / |d y_n / d x_n| of a run's untrained stack, the median over draws.

    In float64, on vectors of the size that the backbone's embedding has.
    """
    import torch

    from zoo.theory import gradient_profile

    seq_len, d_model = config["task"]["seq_len"], config["d_model"]

    def make(seed: int) -> torch.nn.Module:
        return build(config)[1].double()

    def embeddings(generator: torch.Generator, _: int) -> torch.Tensor:
        return 0.02 * torch.randn(seq_len, d_model, generator=generator, dtype=torch.float64)

    profile = gradient_profile(make, embeddings, [0, seq_len // 2], n_draws, seq_len=seq_len)
    here, far = profile.values.double().unbind(1)
    return float((far / here).median())


def judge(runs: Runs) -> Evidence:
    """Compare placements with seeds, and rank them by single layers and by the gradient before training."""
    checks: list[Check] = []
    panels: list[Panel] = []
    for task, of_task in runs.by("task.name"):
        places = {_places(pattern): cell for pattern, cell in of_task.by("mixer.pattern")}
        losses = {at: [math.log(loss) for loss in cell.scores(LOSS) if loss > 0] for at, cell in places.items()}
        log_loss = {at: _log(cell.median(LOSS)) for at, cell in places.items()}
        pairs = [at for at in places if len(at) == 2]
        compared, named = (pairs, "pairs") if pairs else (list(places), "single layers")
        best = max((places[at] for at in compared), key=lambda cell: cell.median(ACCURACY))
        checks.append(at_least(f"{task}, {named}: accuracy of the best placement", best.samples(ACCURACY), LEARNED))
        of_places = [losses[at] for at in compared]
        whole = all(len(found) == len(of_places[0]) > 1 for found in of_places)
        ratio = of_variance_ratio(of_places) if whole else Estimate(math.nan, math.nan, math.nan)
        quantity = f"{task}, {named}: variance of the log loss between placements / between seeds"
        checks.append(at_least(quantity, ratio, 1))
        checks += _of_layers_alone(task, {at: places[at].samples(ACCURACY) for at in places}, pairs)
        gradients = {at: gradient_at_initialisation(cell.runs[0].config) for at, cell in places.items()}
        told = [(gradients[at], -log_loss[at]) for at in places]
        quantity = f"{task}: rank correlation of the gradient before training and minus the loss, over placements"
        checks.append(correlated(quantity, told, 0))
        drawn = []
        for label, size in (("one attention layer", 1), ("two attention layers", 2)):
            cells = [at for at in places if len(at) == size]
            scores = tuple(places[at].median(ACCURACY) for at in cells)
            drawn.append(Curve(label, tuple(gradients[at] for at in cells), scores, "points"))
        panels.append(panel(task, "gradient before training", "test accuracy", drawn, log_y=False))
    return Evidence(tuple(checks), tuple(panels))


def _of_layers_alone(
    task: str, scores: Mapping[tuple[int, ...], Samples], pairs: Sequence[tuple[int, ...]]
) -> list[Check]:
    """Expect of a pair what the better of its layers scores alone, with the best place among them and without."""
    if not pairs:
        return []
    gains = {at: paired(_beyond, scores[at], *(scores[each,] for each in at)) for at in pairs}
    (first,) = max((at for at in scores if len(at) == 1), key=lambda at: _middle(*scores[at].values()))
    checks = []
    for word in ("with", "without"):
        gain = paired(_middle, *(gains[at] for at in pairs if (first in at) is (word == "with")))
        quantity = (
            f"{task}: accuracy of pairs {word} place {first} beyond the better of their layers alone, median of pairs"
        )
        checks.append(within(quantity, gain, -SPREAD, SPREAD))
    return checks


def _beyond(both: float, one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else both - max(one, other)


def _middle(*values: float) -> float:
    return math.nan if any(map(math.isnan, values)) else median(values)


def _places(pattern: list[str]) -> tuple[int, ...]:
    return tuple(at for at, name in enumerate(pattern, 1) if name == "attention")


def _log(loss: float) -> float:
    return math.log(loss) if loss > 0 else math.nan


PREDICTION = Prediction(
    "Ours; for stacks with few attention layers: Lieber et al., arXiv 2403.19887 (Jamba), and arXiv 2512.20569",
    "a variance between placements below that between seeds, no placement that learns, a pair that is better or worse "
    "than its layers alone, or a gradient that is no larger where more is learned",
    judge,
)
