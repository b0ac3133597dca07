"""What each of three changes to Mamba-1's start does for how soon it recalls."""

from __future__ import annotations

import math

from lab.experiments.vocabulary import ACCURACY, LEARNED, STEPS, STEPS_TO_90, Prediction, Runs, curve, panel
from lab.run.metrics import number_at
from zoo.evidence import Check, Evidence, Samples, at_least, paired

NORM = 1e-5
ALL = {"mixer.init": "recall", "mixer.norm_eps": NORM, "mixer.out_norm_eps": NORM}
"""Strong writes, norms of B, C and dt, and a norm of the output."""
WITHOUT = {
    "strong writes": {"mixer.init": "published"},
    "norms of B, C and dt": {"mixer.norm_eps": None},
    "the norm of the output": {"mixer.out_norm_eps": None},
}
NEEDED = {"strong writes": 2, "norms of B, C and dt": 2, "the norm of the output": 1}
"""How many times the steps it takes at least without each."""


def judge(runs: Runs) -> Evidence:
    """Expect each to save steps, and the norm of the output not to be needed."""
    whole = runs.where(ALL)
    cells = {"with all three": whole} | {
        f"without {what}": runs.where({**ALL, **less}) for what, less in WITHOUT.items()
    }
    checks: list[Check] = [
        at_least(f"{label}: accuracy", cells[label].samples(ACCURACY), LEARNED)
        for label in ("with all three", "without the norm of the output")
    ]
    for what, least in NEEDED.items():
        more = paired(lambda one, other: one / other, steps(cells[f"without {what}"]), steps(whole))
        checks.append(at_least(f"steps to 90 % without {what} / with all three", more, least))
    lines = {label: {"steps": steps(cell), "test accuracy": cell.samples(ACCURACY)} for label, cell in cells.items()}
    panels = (
        panel(unit, "run, by seed", unit, [curve(label, each[unit]) for label, each in lines.items()], log_y=False)
        for unit in ("steps", "test accuracy")
    )
    return Evidence(tuple(checks), tuple(panels))


def steps(runs: Runs) -> Samples:
    """Return the steps to 90 % by seed; a run that never stood there counts as all of its steps."""
    return {
        run.seed: math.nan
        if number_at(run.metrics, *ACCURACY) is None
        else number_at(run.metrics, *STEPS_TO_90) or run.options[STEPS]
        for run in runs.runs
    }


PREDICTION = Prediction(
    "Ours, after trainability; norms in Mamba-1: Lieber et al., arXiv 2403.19887 (Jamba)",
    "three changes that do not suffice, one that saves no steps, or a norm of the output without which recall is not "
    "learned",
    judge,
)
