"""The gradient before training, at the distance of a needle, and whether the needle is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.build import build
from lab.experiments.vocabulary import ACCURACY, GUESSED, LEARNED, Prediction, Runs, curve, not_learned, panel
from zoo.evidence import Check, Evidence, at_least, at_most, controlled
from zoo.evidence.interval import of_share, of_superiority

VANISHED = 1e-4
"""A gradient, relative to that of the last position, which is no signal any more."""
ROOM = 3
"""Cells within this factor of the limit are not counted as vanished: another draw could put them above it."""
RARE = 1 / 3
"""The share of runs that may be learned without a gradient."""


def gradient_at_initialisation(config: Mapping[str, Any], n_draws: int = 4) -> float:
    """Measure |d y_n / d x_{n - distance}| / |d y_n / d x_n| of a needle run's untrained model, the median over draws.

    In float64: recurrences that accumulate decays in float32 have a false floor near 1e-9.
    """
    import torch

    from zoo.theory import gradient_profile

    distance, d_model = config["task"]["distance"], config["d_model"]

    def make(seed: int) -> torch.nn.Module:
        return build(config)[1].double()

    def embeddings(generator: torch.Generator, _: int) -> torch.Tensor:
        # As the backbone draws its embedding: the scale decides how much a residual stream is made of the input.
        return 0.02 * torch.randn(distance + 1, d_model, generator=generator, dtype=torch.float64)

    profile = gradient_profile(make, embeddings, [0, distance], n_draws, seq_len=distance + 1)
    here, far = profile.values.double().unbind(1)
    return float((far / here).median())


def judge(runs: Runs) -> Evidence:
    """Expect no learning where the gradient vanishes, learning on a highway, and the gradients' order in between."""
    checks: list[Check] = []
    accuracies: dict[str, dict[int, float]] = {}
    gradients: dict[str, dict[int, float]] = {}
    cells: list[tuple[float, float]] = []
    without: list[bool] = []
    vanished: list[Check] = []
    for kind, of_kind in runs.kinds().items():
        usual = of_kind.usual
        nearest, easy = next(usual.by("task.distance"))
        control = at_least(f"{kind}, distance {nearest}: accuracy", easy.samples(ACCURACY), LEARNED)
        for distance, cell in usual.by("task.distance"):
            accuracy = accuracies.setdefault(kind, {})[distance] = cell.median(ACCURACY)
            gradient = gradients.setdefault(kind, {})[distance] = gradient_at_initialisation(cell.runs[0].config)
            cells.append((gradient, accuracy))
            chance = 1 / cell.runs[0].options["task.n_classes"]
            if gradient < VANISHED / ROOM:
                without += [score >= LEARNED for score in cell.scores(ACCURACY)]
                quantity = f"{kind}, distance {distance} (gradient {gradient:.0e}): accuracy"
                longer = of_kind.longer.where({"task.distance": distance}).samples(ACCURACY)
                vanished.append(not_learned(quantity, cell.samples(ACCURACY), chance + GUESSED, control, longer))
            elif cell.values("mixer.name") == ["attention"]:
                checks.append(at_least(f"{kind}, distance {distance}: accuracy", cell.samples(ACCURACY), LEARNED))
    if without:
        share = of_share(sum(without), len(without))
        rare = at_most(f"share of {len(without)} runs with a vanished gradient that learned", share, RARE)
        checks += [*vanished, controlled(rare, *vanished)]
    learned, others = ([at for at, score in cells if (score >= LEARNED) is group] for group in (True, False))
    order = "probability that a cell that is learned has the larger gradient before training than one that is not"
    checks.append(at_least(order, of_superiority(learned, others), 0.5))
    reach = dict.fromkeys(runs.values("task.distance"), VANISHED / ROOM)
    of, level = "distance of the needle", curve("taken for vanished", reach, "dashed")
    lines = [curve(*item) for item in gradients.items()]
    panels = (
        panel("Accuracy", of, "test accuracy", [curve(*each) for each in accuracies.items()], log_x=True, log_y=False),
        panel("Gradient before training", of, "relative to the last position's", [*lines, level], log_x=True),
    )
    return Evidence(tuple(checks), panels)


PREDICTION = Prediction(
    "Ghodsi, arXiv 2512.15115 (gradient propagation)",
    "a needle learned where the gradient had vanished, one that attention does not learn, or gradients that do not "
    "rank what is learned",
    judge,
)
