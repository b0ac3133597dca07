"""How many reflections per token a rotation takes."""

from __future__ import annotations

from collections.abc import Sequence

from lab.experiments.predictions.state_tracking import LOST, REACH, TRACKED
from lab.experiments.vocabulary import ACCURACY, LEARNED, Prediction, Runs, at_length, curve, not_learned, panel
from zoo.evidence import Check, Curve, Evidence, Samples, at_least, paired

EASY = "Z2"
"""The group of the controls: a swap is one reflection."""


def _skill(runs: Runs, metric: Sequence[str]) -> Samples:
    """Return the share of the way from chance to 1."""
    return paired(lambda score, chance: (score - chance) / (1 - chance), runs.samples(metric), runs.samples(["chance"]))


def judge(runs: Runs) -> Evidence:
    """Expect a rotation to be kept from two reflections per token on, and by a nonlinear recurrence."""
    checks: list[Check] = []
    lines: dict[str, list[Curve]] = {}
    hard = Runs(tuple(run for run in runs.runs if run.options["task.group"] != EASY))
    length = max(hard.values("task.seq_len"))
    far = at_length(REACH * length)
    for label, kind in runs.kinds().items():
        easy = kind.where({"task.group": EASY})
        control = at_least(f"that on {EASY}", _skill(easy, ACCURACY), LEARNED)
        for group, cell in kind.where({"task.seq_len": length}).by("task.group"):
            if group == EASY:
                continue
            options = cell.runs[0].options
            skill, longer = _skill(cell.usual, far), _skill(cell.longer, far)
            quantity = f"{group}, {label}: share of the way from chance to 1 at length {REACH * length}"
            if options["mixer.name"] == "slstm" or options.get("mixer.n_householder", 0) > 1:
                checks.append(at_least(quantity, skill, TRACKED))
            else:
                checks.append(not_learned(quantity, skill, LOST, control, longer))
            lengths = {length: ACCURACY} | {n: at_length(n) for n in options["task.test_lengths"]}
            points = {n: cell.usual.median(metric) for n, metric in lengths.items()}
            lines.setdefault(group, []).append(curve(label, points))
    panels = (
        panel(f"{group}, trained at length {length}", "length", "test accuracy", each, log_x=True, log_y=False)
        for group, each in lines.items()
    )
    return Evidence(tuple(checks), tuple(panels))


PREDICTION = Prediction(
    "Siems et al., arXiv 2502.10297 (reflections per token); a rotation is two reflections (Cartan, Dieudonné)",
    "a rotation that is kept by one reflection per token or by attention, or lost by two or by a nonlinear recurrence",
    judge,
)
