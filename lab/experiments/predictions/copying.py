"""Copying strings of several lengths in states of several sizes."""

from __future__ import annotations

from lab.experiments.vocabulary import (
    ACCURACY,
    LEARNED,
    SPREAD,
    STATE,
    Prediction,
    Runs,
    curve,
    not_learned,
    panel,
)
from zoo.evidence import Check, Curve, Evidence, at_least, paired

HELD = 0.75
"""An accuracy that the smallest state does not reach on the longest string."""


def judge(runs: Runs) -> Evidence:
    """Expect attention to copy every length, and a fixed state what it holds."""
    checks: list[Check] = []
    curves: list[Curve] = []
    short, *_, long = runs.values("task.n_copied")
    for name, of_mixer in runs.by("mixer.name"):
        for label, kind in of_mixer.kinds().items():
            cell = {n: of_n.usual for n, of_n in kind.by("task.n_copied")}
            curves.append(curve(label, {n: each.median(ACCURACY) for n, each in cell.items()}))
        if name == "attention":
            checks += [
                at_least(f"attention: accuracy on {n} tokens", of_n.samples(ACCURACY), LEARNED)
                for n, of_n in of_mixer.by("task.n_copied")
            ]
            longer = ("test", "by_segment", f"seq_len={4 * long},n_copied={2 * long}", "accuracy")
            further = of_mixer.where({"task.n_copied": long}).samples(longer)
            checks.append(at_least(f"attention trained on {long} tokens: accuracy on {2 * long}", further, LEARNED))
            continue
        width, *_, widest = of_mixer.values("mixer.d_head")
        small, large = (of_mixer.where({"mixer.d_head": each, "task.n_copied": long}) for each in (width, widest))
        easy = of_mixer.where({"mixer.d_head": width, "task.n_copied": short})
        control = at_least(f"that on {short} tokens", easy.samples(ACCURACY), LEARNED)
        usual = small.usual.samples(ACCURACY)
        held = f"{name}, heads of {width}: accuracy on {long} tokens"
        checks.append(not_learned(held, usual, HELD, control, small.longer.samples(ACCURACY)))
        gain = paired(lambda a, b: a - b, large.usual.samples(ACCURACY), usual)
        sizes = " to ".join(f"{each.median(STATE):,.0f}" for each in (small, large))
        checks.append(at_least(f"{name}: accuracy on {long} tokens gained from {sizes} bytes of state", gain, SPREAD))
    drawn = panel("Copying", "tokens to copy", "test accuracy", curves, log_x=True, log_y=False)
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Jelassi et al., arXiv 2402.01032 (Repeat After Me)",
    "attention that does not copy, or not twice the length of training; a small state that holds a long string, or a "
    "larger one that holds no more of it",
    judge,
)
