"""Groups to multiply out, far beyond the length of training."""

from __future__ import annotations

from collections.abc import Sequence

from lab.experiments.vocabulary import ACCURACY, Prediction, Runs, curve, panel
from zoo.theory.claims.claim import Check, Evidence, Panel, Samples, at_least, at_most, controlled, paired

REACH = 4
"""At how many times the length of training a state must have been kept."""
TRACKED, LOST = 0.8, 1 / REACH + 0.2
"""Shares of the way from chance to 1 from which, and up to which, a state counts as tracked, and as lost: being right
up to the length of training and guessing from there on is worth 1 / REACH."""


def _at_length(length: int) -> tuple[str, ...]:
    """Return where the metrics have the accuracy at a length."""
    return "test", "at_length", str(length), "accuracy"


def _skill(runs: Runs, metric: Sequence[str]) -> Samples:
    """Return the share of the way from chance to 1."""
    return paired(lambda score, chance: (score - chance) / (1 - chance), runs.samples(metric), runs.samples(["chance"]))


def judge(runs: Runs) -> Evidence:
    """Compare who keeps a group's element far beyond the length of training."""
    checks: list[Check] = []
    panels: list[Panel] = []
    titles = {"parity": "parity", "group_words": "permutations"}
    easiest = runs.where({"task.name": "parity"}).kinds()
    for task, of_task in runs.by("task.name"):
        (trained,) = of_task.values("task.seq_len")
        far, curves = _at_length(REACH * trained), []
        for label, kind in of_task.kinds().items():
            (mixer,), steps = kind.values("mixer.name"), kind.values("mixer.beta_max")
            quantity = f"{titles[task]}, {label}: share of the way from chance to 1 at length {REACH * trained}"
            skill = _skill(kind, far)
            easy = _skill(easiest.get(label, Runs(())), ACCURACY)
            control = at_least(f"that on parity at length {trained}", easy, TRACKED)
            if mixer == "lstm" or (steps == [2] and task == "parity"):
                checks.append(at_least(quantity, skill, TRACKED))
            elif mixer in {"attention", "selective_ssm"} or steps == [1]:
                checks.append(controlled(at_most(quantity, skill, LOST), control))
            elif steps == [2]:
                shorter = _skill(of_task.where({"mixer.name": mixer, "mixer.beta_max": 1}), far)
                gain = paired(lambda long, short: long - short, skill, shorter)
                checks.append(at_least(f"{quantity}, less that with shorter steps", gain, 0.1))
            lengths = {n: _at_length(n) for n in kind.runs[0].options["task.test_lengths"]}
            points = {n: kind.median(metric) for n, metric in ({trained: ACCURACY} | lengths).items()}
            curves.append(curve(label, points))
        title = f"{titles[task].capitalize()}, trained at length {trained}"
        panels.append(panel(title, "length", "test accuracy", curves, log_x=True, log_y=False))
    return Evidence(tuple(checks), tuple(panels))


PREDICTION = Prediction(
    "Merrill et al., arXiv 2404.08819; Grazzi et al., arXiv 2411.12537 (negative eigenvalues)",
    "an LSTM that loses the state, attention or decays in [0, 1] that keep it",
    judge,
)
