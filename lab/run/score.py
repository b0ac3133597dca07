"""The score that judges a task, and the order of results that all tables and sweeps share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.run.metrics import number_at, numbers_at
from zoo.report.numbers import Number, number

SCORES = {
    "perplexity": False,
    "accuracy": True,
    "accuracy_macro": True,
    "relative_squared_error": False,
    "loss": False,
}
"""Metrics, and whether higher is better; the first one that a task's runs have is the task's score."""

GOOD = 0.9
"""A score is good from this share of the best skill; a task is learned from this share of the way from a guess to a
perfect score."""
LEFT = 0.1
"""A model beats guessing from this share of the way from a guess to a perfect score."""
GAIN = 0.01
"""A run has converged if its score gains less than this in the last quarter of training."""
FACTS = {
    "chance": "chance",
    "parameters": "params",
    "state bytes": "state_bytes",
    "tokens/s": "tokens_per_second",
    "steps to 90 %": "steps_to_90",
}
"""Columns of a table of scores besides the score itself: heading, and name in the metrics."""
WINDOW = "window (octaves)"
BASELINE = "guess without order"


def median_steps(values: Sequence[Number], of: int) -> Number | None:
    """Return the median number of steps to a level over all `of` runs; None unless more than half of them reached it.

    A run that never reaches it counts as slower than all others.

    >>> median_steps([300, 400, 500], of=5), median_steps([300], of=5)
    (500, None)
    """
    never = [math.inf] * (of - len(values))
    return statistics.median([*values, *never]) if 2 * len(values) > of else None


def fact_text(name: str, values: Sequence[Number], score: str, n_runs: int) -> str:
    """Format one of `FACTS` for a table: the mean over seeds, for steps the median, for chance the score of a guess.

    Args:
        name: name in the metrics.
        values: values of the runs that have one.
        score: name of the score that judges the runs.
        n_runs: number of all runs.
    """
    mean = mean_and_spread(values)[0]
    if name == "chance":
        return score_text(score, guess_level(score, mean))
    return number(median_steps(values, n_runs) if name == "steps_to_90" else None if mean is None else round(mean))


def score_of(runs: Iterable[Mapping[str, Any]], *splits: str) -> str:
    """Return the score for runs of one task: the first of `SCORES` that a run has in these splits, else the loss.

    >>> score_of([{"val": {"loss": 1.2, "accuracy": 0.5, "perplexity": 3.3}}], "test", "val")
    'perplexity'
    """
    found = list(runs)
    some = (name for name in SCORES if any(numbers_at(found, split, name) for split in splits))
    return next(some, "loss")


def merit(score: str, value: Number | None) -> float:
    """Return a number that grows as the score gets better; minus infinity without a score."""
    return -math.inf if value is None else value if SCORES[score] else -value


def skill(score: str, value: Number | None, chance: Number | None) -> float:
    """Return the skill of a score on a ratio scale, 0 for a guess.

    The skill of an accuracy is its excess over chance; of a relative squared error, its distance from 1, the error of
    predicting the mean; of a loss or a perplexity, which have no level for guessing, the inverse of the nats.

    >>> skill("accuracy", 0.6, 0.2), skill("relative_squared_error", 0.25, None), skill("loss", 2.0, None)
    (0.39999999999999997, 0.75, 0.5)
    """
    if value is None:
        return 0.0
    if score in ("loss", "perplexity"):
        nats = value if score == "loss" else math.log(max(value, 1.0))
        return 1 / nats if nats > 0 else math.inf
    return max(0.0, value - (chance or 0.0) if SCORES[score] else 1 - value)


def level(score: str, chance: Number | None, share: float = GOOD) -> float | None:
    """Return the level at a share of the way from a guess to a perfect score; None for losses and perplexities.

    >>> level("accuracy", 0.5), level("relative_squared_error", None)
    (0.95, 0.09999999999999998)
    """
    if score in ("loss", "perplexity"):
        return None
    return (chance or 0.0) + share * (1 - (chance or 0.0)) if SCORES[score] else 1 - share


def first_at(points: Mapping[int, Number], score: str, goal: Number | None) -> int | None:
    """Return the first step at which a validation curve reaches a level; None if it never does."""
    reached = (step for step, value in points.items() if goal is not None and merit(score, value) >= merit(score, goal))
    return next(reached, None)


def has_converged(points: Mapping[int, Number], score: str) -> bool | None:
    """Return whether the best score gained less than `GAIN` in the last quarter of the steps; None for losses."""
    if score in ("loss", "perplexity") or not points:
        return None
    best = max(merit(score, value) for value in points.values())
    before = (merit(score, value) for step, value in points.items() if step <= 0.75 * max(points))
    return best - max(before, default=-math.inf) < GAIN


def window_text(found: Mapping[str, Any] | None) -> str:
    """Format a window of learning rates in octaves: 3.3, or ≥ 3.3 if it may be wider; empty without a window."""
    return "" if not found else f"{'≥ ' if found['at_least'] else ''}{found['octaves']:.1f}"


def merits(metrics: Mapping[str, Any], score: str, split: str) -> tuple[float, float]:
    """Return a sort key that is greatest for the best run: first by score, then by loss."""
    return merit(score, number_at(metrics, split, score)), merit("loss", number_at(metrics, split, "loss"))


def mean_and_spread(values: Sequence[Number]) -> tuple[float | None, float | None]:
    """Return mean and standard deviation over seeds, each None if there are too few values."""
    if not values:
        return None, None
    mean = statistics.fmean(values)
    # statistics.stdev computes in fractions, a hundred times slower.
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)) if len(values) > 1 else None


def guess_level(score: str, chance: Number | None) -> float | None:
    """Return the score of a guess that ignores the input: chance for an accuracy, 1 for a relative squared error.

    >>> guess_level("accuracy", 0.25), guess_level("relative_squared_error", None), guess_level("perplexity", 0.17)
    (0.25, 1.0, None)
    """
    return None if chance is None and SCORES[score] else level(score, chance, 0.0)


def score_text(name: str, value: Number | None, spread: Number | None = None, decimals: int = 4) -> str:
    """Format a metric for a table, ± its spread over seeds.

    Accuracies and chance have `decimals` decimals, other metrics `decimals` significant digits.

    >>> score_text("accuracy", 0.5, 0.012), score_text("loss", 0.123456)
    ('0.5000 ± 0.012', '0.1235')
    """
    fixed = value is not None and ("accuracy" in name or name == "chance")
    text = f"{value:.{decimals}f}" if fixed else number(value, decimals)
    return text if spread is None else f"{text} ± {spread:.2g}"
