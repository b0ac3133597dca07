"""Groups to multiply out, beyond the length of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.experiments.vocabulary import ACCURACY, LEARNED, Prediction, Runs, curve, not_learned, panel
from zoo.evidence import Check, Curve, Evidence, Samples, at_least, paired

REACH = 4
"""At how many times the length of training a state must have been kept."""
TRACKED, LOST = 0.8, 1 / REACH + 0.2
"""Shares of the way from chance to 1 from which, and up to which, a state counts as tracked, and as lost: being right
up to the length of training and guessing from there on is worth 1 / REACH."""
NONLINEAR = {"lstm", "gru", "slstm"}
REFLECTIONS = {"Z2": 1, "S3": 2}
"""Reflections by which each element of a group can act: a swap is one, a rotation two."""


def tracks(group: str, options: Mapping[str, Any]) -> bool:
    """Tell whether a layer can keep the product of words of any length."""
    reflections = options.get("mixer.n_householder", 0) if options.get("mixer.beta_max") == 2 else 0
    return options["mixer.name"] in NONLINEAR or reflections >= REFLECTIONS[group]


def _at_length(length: int) -> tuple[str, ...]:
    """Return where the metrics have the accuracy at a length."""
    return "test", "at_length", str(length), "accuracy"


def _skill(runs: Runs, metric: Sequence[str]) -> Samples:
    """Return the share of the way from chance to 1."""
    return paired(lambda score, chance: (score - chance) / (1 - chance), runs.samples(metric), runs.samples(["chance"]))


def judge(runs: Runs) -> Evidence:
    """Expect the state far beyond the length of training where a layer can keep it, and not where it cannot."""
    checks: list[Check] = []
    curves: dict[str, list[Curve]] = {}
    short, *_, trained = runs.values("task.seq_len")
    far = _at_length(REACH * trained)
    for label, kind in runs.kinds().items():
        easy = _skill(kind.where({"task.seq_len": short}), ACCURACY)
        control = at_least(f"that on words of {short} elements of Z2", easy, LEARNED)
        for group, of_group in kind.where({"task.seq_len": trained}).by("task.group"):
            usual, options = of_group.usual, of_group.runs[0].options
            quantity = f"{group}, {label}: share of the way from chance to 1 at length {REACH * trained}"
            skill, longer = _skill(usual, far), _skill(of_group.longer, far)
            if tracks(group, options):
                checks.append(at_least(quantity, skill, TRACKED))
            else:
                checks.append(not_learned(quantity, skill, LOST, control, longer))
            lengths = {trained: ACCURACY} | {n: _at_length(n) for n in options["task.test_lengths"]}
            points = {n: usual.median(metric) for n, metric in lengths.items()}
            curves.setdefault(group, []).append(curve(label, points))
    panels = (
        panel(f"{group}, trained at length {trained}", "length", "test accuracy", lines, log_x=True, log_y=False)
        for group, lines in curves.items()
    )
    return Evidence(tuple(checks), tuple(panels))


PREDICTION = Prediction(
    "Merrill et al., arXiv 2404.08819; Grazzi et al., arXiv 2411.12537 (negative eigenvalues); Siems et al., "
    "arXiv 2502.10297 (reflections per token)",
    "a state that is lost where reflections or a nonlinearity can keep it, or kept where neither is there",
    judge,
)
