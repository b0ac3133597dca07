"""The gradient of a layer before training, at the distance of its task, against how soon recall is learned."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from lab.experiments.vocabulary import (
    ACCURACY,
    GUESSED,
    LEARNED,
    STEPS_TO_90,
    Prediction,
    Runs,
    correlated,
    curve,
    panel,
)
from lab.run.metrics import number_at
from zoo.evidence import Check, Evidence, at_least, at_most, controlled, paired

ENOUGH = 1e-2
"""A gradient ratio from which recall is learned: exploratory runs learned at 1.7e-2 and guessed at 1.2e-3."""
HALF = 0.5
"""An accuracy gained that is no matter of degree."""
MAMBA, NORM = "selective_ssm", 1e-5
"""The mixer with two causes, and the epsilon of the norms that it is given."""
RANKED = ("lstm", "gru")
"""Their state is no sum of products: with a gradient they may guess."""


def gradient_at_initialisation(config: Mapping[str, Any], n_draws: int = 5) -> float:
    """Measure |d y_n / d x_{n - seq_len / 2}| / |d y_n / d x_n| of one untrained layer, the median over draws.

    In float64, on normal vectors, as a norm hands them to the layer.
    """
    import torch

    from zoo.registry import create_mixer
    from zoo.theory import gradient_profile

    seq_len = config["task"]["seq_len"]

    def make(seed: int) -> torch.nn.Module:
        return create_mixer(**config["mixer"], d_model=config["d_model"]).double()

    profile = gradient_profile(make, None, [0, seq_len // 2], n_draws, seq_len=seq_len)
    here, far = profile.values.double().unbind(1)
    return float((far / here).median())


def speeds(runs: Runs) -> list[float]:
    """Return 1 / steps to 90 % of each run, 0 for one that never stood there."""
    return [1 / steps if (steps := number_at(run.metrics, *STEPS_TO_90)) else 0.0 for run in runs.runs]


def judge(runs: Runs) -> Evidence:
    """Expect guessing from the published starts, learning from the mended ones, and gradients that rank the speeds."""
    checks: list[Check] = []
    gradients: dict[str, dict[float, Runs]] = {}
    doses: list[tuple[float, float]] = []
    shallow, unit = runs.easiest("n_layers"), "1 / steps to 90 %"
    for kind, of_kind in shallow.kinds().items():
        cell = of_kind.hardest("task.n_pairs").usual
        config, options = cell.runs[0].config, cell.runs[0].options
        name, recall = options["mixer.name"], options.get("mixer.init") == "recall"
        gradient = gradient_at_initialisation(config)
        gradients.setdefault(name, {})[gradient] = cell
        if name == "ssd" and recall:
            doses += [(options.get("mixer.dt_max") or 1.0, speed) for speed in speeds(cell)]
        measured = f"{kind} (gradient ratio {gradient:.1e}): accuracy", cell.samples(ACCURACY)
        easy, longer = of_kind.easiest("task.n_pairs"), of_kind.longer
        if len(of_kind.values("task.n_pairs")) > 1:
            guessing = 1 / options["task.n_pairs"] + GUESSED
            controls = (
                at_least("that with the fewest pairs", easy.samples(ACCURACY), LEARNED),
                at_most("that after the longest training, of one seed", longer.median(ACCURACY), guessing),
            )
            checks.append(controlled(at_most(*measured, guessing), *controls))
        elif gradient >= ENOUGH and name not in RANKED and (name != MAMBA or recall):
            checks.append(at_least(*measured, LEARNED))
    cells = [
        (gradient, statistics.median(speeds(cell))) for each in gradients.values() for gradient, cell in each.items()
    ]
    checks.append(correlated(f"rank correlation of gradient ratio and {unit}, over cells", cells, 0.5))
    checks.append(correlated(f"ssd, init recall: rank correlation of step size and {unit}, over runs", doses, 0.5))

    normed = runs.where({"mixer.name": MAMBA, "mixer.norm_eps": NORM})
    outputs, deep = normed.where({"mixer.out_norm_eps": NORM}), normed.hardest("n_layers")
    starts = [outputs.easiest("n_layers").where({"mixer.init": init}) for init in ("recall", "published")]
    ends = [deep.where({"mixer.out_norm_eps": eps}) for eps in (NORM, None)]
    for what, pair in (("strong writes, with all norms", starts), ("the norm of the output, in depth", ends)):
        gain = paired(lambda mended, other: mended - other, *(each.samples(ACCURACY) for each in pair))
        checks.append(at_least(f"{MAMBA}: accuracy gained by {what}", gain, HALF))

    x = "gradient ratio before training"
    scores = {name: {at: cell.median(ACCURACY) for at, cell in each.items()} for name, each in gradients.items()}
    rates = {
        name: {at: statistics.median(speeds(cell)) for at, cell in each.items()} for name, each in gradients.items()
    }
    panels = tuple(
        panel(title, x, y, [curve(*each, "points") for each in found.items()], log_x=True, log_y=False)
        for title, y, found in (("Recall", "test accuracy", scores), ("Speed", unit, rates))
    )
    return Evidence(tuple(checks), panels)


PREDICTION = Prediction(
    "Ghodsi, arXiv 2512.15115 (gradient propagation); published starts: Gu and Dao, arXiv 2312.00752 and 2405.21060",
    "a published start that learns, a mended one that does not, gradients that do not rank the speeds, or a cause "
    "whose mending gains nothing",
    judge,
)
