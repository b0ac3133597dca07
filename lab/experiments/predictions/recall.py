"""Recall against the bytes of state."""

from __future__ import annotations

from lab.experiments.vocabulary import (
    ACCURACY,
    GUESSED,
    LEARNED,
    SPREAD,
    STATE,
    Prediction,
    Runs,
    correlated,
    curve,
    not_learned,
    panel,
)
from zoo.evidence import Check, Curve, Evidence, at_least, paired
from zoo.registry import MIXERS

LTI = "time-invariant"
"""The family of mixers that mix positions in one way whatever the input."""


def judge(runs: Runs) -> Evidence:
    """Expect that attention recalls, that fixed coefficients do not, and that in between more state recalls more."""
    checks: list[Check] = []
    states: list[tuple[float, float]] = []
    curves: list[Curve] = []
    hard, n_pairs = runs.hardest("task.n_pairs"), max(runs.values("task.n_pairs"))
    for name, of_mixer in hard.by("mixer.name"):
        kinds = sorted(of_mixer.kinds().items(), key=lambda item: item[1].median(STATE))
        cells = [(kind.median(STATE), kind.usual.median(ACCURACY)) for _, kind in kinds]
        curves.append(curve(name, dict(cells)))
        if name == "attention":
            checks.append(at_least("attention: accuracy", kinds[-1][1].samples(ACCURACY), LEARNED))
        elif MIXERS.entry(name).family == LTI:
            easy = runs.where({"mixer.name": name}).easiest("task.n_pairs")
            control = at_least("that with the fewest pairs", easy.samples(ACCURACY), LEARNED)
            guess = 1 / n_pairs + GUESSED
            for label, kind in kinds:
                usual, longer = kind.usual.samples(ACCURACY), kind.longer.samples(ACCURACY)
                checks.append(not_learned(f"{label}: accuracy", usual, guess, control, longer))
        else:
            states += cells
            if len(kinds) > 1:
                (_, small), *_, (_, large) = kinds
                gain = paired(lambda a, b: a - b, large.samples(ACCURACY), small.samples(ACCURACY))
                sizes = f"{cells[0][0]:,.0f} to {cells[-1][0]:,.0f} bytes of state"
                checks.append(at_least(f"{name}: accuracy gained from {sizes}", gain, 0))
    checks.append(correlated("rank correlation of state and accuracy, over cells", states, 0))
    width = max(hard.where({"mixer.name": "delta_net"}).values("mixer.d_head"))
    same = hard.where({"mixer.d_head": width})
    rules = [same.where({"mixer.name": name}).samples(ACCURACY) for name in ("delta_net", "linear_attention")]
    lead = paired(lambda delta, linear: delta - linear, *rules)
    checks.append(at_least(f"heads of {width}: delta rule's accuracy beyond linear attention's", lead, -SPREAD))
    title, unit = "Recall against state", "bytes of state after the sequence"
    drawn = panel(title, unit, "test accuracy", curves, log_x=True, log_y=False)
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Arora et al., arXiv 2312.04927 and 2402.18668 (state); Schlag et al., arXiv 2102.11174 (delta rule)",
    "attention that does not recall, fixed coefficients that do, less recall with more state",
    judge,
)
