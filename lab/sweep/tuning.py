"""Successive halving on validation, and the window of good learning rates that it measures.

All trials of a configuration train up to the first rung, a share of all steps. The better half continues from its
checkpoints to the next rung, and so on; all continue while none beats a guess. A rung is a stop, not a shorter
schedule: the last trial left trains to the end and is tested, as the run of its seed. Nothing is trained twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import fmean
from typing import Any, TypeAlias

from lab.run.metrics import number_at
from lab.run.score import GOOD, LEFT, level, merit, merits, skill
from zoo.errors import UsageError

RUNGS = (0.125, 0.25, 0.5)
"""Default rungs; `usual_rungs` takes the last ones, enough to halve the trials down to one."""
MOST_BEYOND = 4
"""Maximum number of rates to try beyond an end of the grid."""
END = 1.0
"""Last rung, the end of training, for trials that no earlier rung could separate."""
RATE = "lr"
"""Option whose window is measured."""


def rungs_of(source: str, value: Any) -> tuple[float, ...]:
    """Return ascending shares of the steps, from 1/8,1/4,1/2 or a list of such.

    >>> rungs_of("", "1/4,1/2"), rungs_of("", [0.5, 1])
    ((0.25, 0.5), (0.5, 1.0))

    Raises:
        UsageError: shares that do not ascend or lie outside (0, 1].
    """
    try:
        parts = value if isinstance(value, list) else str(value).split(",")
        rungs = tuple(float(Fraction(str(part).strip())) for part in parts)
    except (ValueError, ZeroDivisionError):
        rungs = ()
    if not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] <= 0 or rungs[-1] > 1:
        raise UsageError(f"{source}: expected ascending shares of the steps such as 1/8,1/4,1/2, got {value}")
    return rungs


def usual_rungs(n_trials: int) -> tuple[float, ...]:
    """Return the default rungs for a number of trials.

    >>> usual_rungs(2), usual_rungs(3), usual_rungs(20)
    ((0.5,), (0.25, 0.5), (0.125, 0.25, 0.5))
    """
    return RUNGS[-max(1, math.ceil(math.log2(max(2, n_trials)))) :]


def promoted(
    metrics: Sequence[Mapping[str, Any] | None], score: str, rung: float, last: float, guess: float | None = None
) -> list[int]:
    """Return the trials that continue after a rung, best first: half of them, rounded up; one after the last rung.

    Of equal trials the first continues. Trials that diverged or failed (None) never continue. As long as none beats a
    guess, all others continue, at most to the end.

    Args:
        metrics: metrics of each trial at the rung.
        score: name of the score that ranks them.
        rung: share of the steps that they have trained for.
        last: the last rung.
        guess: see `beats_guessing`.
    """
    found = {i: each for i, each in enumerate(metrics) if each and "diverged" not in each}
    order = sorted(found, key=lambda i: merits(found[i], score, "val"), reverse=True)
    if rung < END and not beats_guessing(found.values(), score, guess):
        return order
    return order[: 1 if rung >= last else (len(metrics) + 1) // 2]


def averaged(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the metrics of a trial with validation averaged over its seeds; if a seed diverged, its metrics."""
    lost = [each for each in found if "diverged" in each]
    if len(found) == 1 or lost:
        return (lost or found)[0]
    names = [name for name, value in found[0]["val"].items() if isinstance(value, int | float)]
    val = {name: [x for each in found if (x := number_at(each, "val", name)) is not None] for name in names}
    return {**found[0], "val": {name: fmean(values) for name, values in val.items() if len(values) == len(found)}}


def beyond(rates: Sequence[float], best: float) -> float | None:
    """Return the next rate beyond an end of the grid if the best rate is at that end, else None.

    Also None if rounding to two digits gives no new rate, or if the best rate or its neighbour is zero.

    >>> beyond([1e-3, 2e-3, 4e-3], 4e-3), beyond([1e-3, 2e-3, 4e-3], 1e-3), beyond([1e-3, 2e-3, 4e-3], 2e-3)
    (0.008, 0.0005, None)
    """
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return None
    neighbour = ordered[1] if best == ordered[0] else ordered[-2]
    further = float(f"{best * best / neighbour:.2g}") if neighbour else best
    return None if further in rates else further


def beats_guessing(metrics: Iterable[Mapping[str, Any]], score: str, guess: float | None = None) -> bool:
    """Return whether any validation score is at least a tenth of the way from a guess to a perfect score.

    Always true for a loss or a perplexity, which have no level for guessing.

    Args:
        metrics: metrics of the compared trials.
        score: name of the score that ranks them.
        guess: accuracy of guessing among the tokens read; default chance, which ignores the input.
    """
    for each in metrics:
        chance = each.get("chance") if guess is None else guess
        goal, value = level(score, chance, LEFT), number_at(each, "val", score)
        if goal is None or (value is not None and merit(score, value) >= merit(score, goal)):
            return True
    return False


Window: TypeAlias = dict[str, Any]
"""The learning rates of one configuration, in sweep.json:

    {"score": "accuracy", "chance": 0.02, "octaves": 3.3, "at_least": true,
     "rates": [{"lr": 0.001, "rung": 0.5, "score": 0.9, "good": true}, ...]}

"rates" ascend, each at the last rung that its trial reached, as a share of the steps. "score" is the validation score
there, null if the trial diverged. "good" is whether its skill (`lab.run.score.skill`) is at least 90 % of the best at
the same rung, null if no rate beat a guess there. "octaves" measures the contiguous range of good rates around the best
one, a rate of zero left out. "at_least" is whether the range reaches an end of the grid or a rate whose "good" is null,
so that the window may be wider.
"""


def window(
    found: Mapping[float, Mapping[float, Mapping[str, Any]]], best: float, score: str, guess: float | None = None
) -> Window:
    """Measure the window around the picked rate.

    Args:
        found: metrics of the trials, by rate and rung.
        best: the picked rate.
        score: name of the score that ranks the rates.
        guess: see `beats_guessing`.
    """
    every = [(rung, metrics) for rungs in found.values() for rung, metrics in rungs.items()]
    chance = next((metrics["chance"] for _, metrics in every if "chance" in metrics), None)
    rates = []
    for lr, rungs in sorted(found.items()):
        rung, metrics = max(rungs.items())
        rivals = [each for at, each in every if at == rung]
        skills = [skill(score, number_at(each, "val", score), chance) for each in rivals]
        value = number_at(metrics, "val", score)
        good = skill(score, value, chance) >= GOOD * max(skills) if beats_guessing(rivals, score, guess) else None
        rates.append({"lr": lr, "rung": rung, "score": value, "good": good})
    low = high = [rate["lr"] for rate in rates].index(best)
    while low > 0 and rates[low - 1]["good"]:
        low -= 1
    while high < len(rates) - 1 and rates[high + 1]["good"]:
        high += 1
    at_end = low == 0 or high == len(rates) - 1
    at_least = at_end or None in (rates[low - 1]["good"], rates[high + 1]["good"])
    inside = [rate["lr"] for rate in rates[low : high + 1] if rate["lr"] > 0]  # zero is infinitely many octaves away
    octaves = math.log2(inside[-1] / inside[0]) if inside else 0.0
    return {"score": score, "chance": chance, "rates": rates, "octaves": octaves, "at_least": at_least}
