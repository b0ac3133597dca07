"""Recall of more pairs, by every mixer that carries a state."""

from __future__ import annotations

from lab.experiments.predictions.recall import LTI
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
from zoo.evidence import Check, Evidence, at_least, at_most, controlled, paired
from zoo.registry import MIXERS

PAIRS = "task.n_pairs"
HALF = 0.5
"""An accuracy on the fewer pairs from which a loss says something."""
RISES = 0.5
"""A rank correlation that is no accident of a few mixers."""
WIDE = "ssd"
"""The mixer whose state holds more numbers per channel than there are pairs; of the others, heads of 8 hold fewer."""


def judge(runs: Runs) -> Evidence:
    """Expect attention to recall, fixed coefficients to guess, and the state to decide in between."""
    checks: list[Check] = []
    curves, states, shares = [], [], []
    single, *_, most = runs.values(PAIRS)
    usual = runs.usual
    shared = min(usual.values(PAIRS)[1:], key=lambda n: -len(usual.where({PAIRS: n})))
    for name, of_mixer in usual.by("mixer.name"):
        cells = {n: cell for n, cell in of_mixer.by(PAIRS) if n != single}
        curves.append(curve(name, {cell.median(STATE) / n: cell.median(ACCURACY) for n, cell in cells.items()}))
        if name == "attention":
            checks += [
                at_least(f"attention: accuracy on {n} pairs", cell.samples(ACCURACY), LEARNED)
                for n, cell in cells.items()
            ]
            continue
        if MIXERS.entry(name).family == LTI:
            easy = of_mixer.where({PAIRS: single}).samples(ACCURACY)
            control = at_least(f"that on {single} pair", easy, LEARNED)
            longer = runs.where({"mixer.name": name, PAIRS: shared}).longer.samples(ACCURACY)
            quantity, guess = f"{name}: accuracy on {shared} pairs", 1 / shared + GUESSED
            checks.append(not_learned(quantity, cells[shared].samples(ACCURACY), guess, control, longer))
            continue
        states.append((cells[shared].median(STATE), cells[shared].median(ACCURACY)))
        shares += [(cell.median(STATE) / n, cell.median(ACCURACY)) for n, cell in cells.items()]
        if most in cells:
            few = cells[min(cells)].samples(ACCURACY)
            loss = paired(lambda a, b: a - b, few, cells[most].samples(ACCURACY))
            learned = at_least(f"accuracy on {min(cells)} pairs", few, HALF)
            quantity = f"{name}: accuracy lost from {min(cells)} to {most} pairs"
            check = at_most(quantity, loss, SPREAD) if name == WIDE else at_least(quantity, loss, SPREAD)
            checks.append(controlled(check, learned))
    what = "rank correlation of state"
    checks.append(correlated(f"{what} and accuracy on {shared} pairs, over mixers", states, RISES))
    checks.append(correlated(f"{what} for each pair and accuracy, over cells", shares, RISES))
    unit = "bytes of state for each pair"
    drawn = panel("Recall against state", unit, "test accuracy", curves, log_x=True, log_y=False)
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Arora et al., arXiv 2312.04927 and 2402.18668 (state)",
    "attention that does not recall, fixed coefficients that do, recall that does not rise with the state, or small "
    "heads that lose nothing",
    judge,
)
