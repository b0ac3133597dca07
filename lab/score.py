"""What a task is judged by, and which of two results is better: one order for all tables and for what a sweep picks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.run import number_at
from zoo.report.numbers import Number, number

SCORES = {
    "perplexity": False,
    "accuracy": True,
    "accuracy_macro": True,
    "relative_squared_error": False,
    "loss": False,
}
"""Metrics by rank, and whether more is better: a task is judged by the first that its runs have."""


def score_of(runs: Iterable[Mapping[str, Any]], *splits: str) -> str:
    """What runs of one task are judged by: the first of `SCORES` that any has in any of these splits; else the loss.

    >>> score_of([{"val": {"loss": 1.2, "accuracy": 0.5, "perplexity": 3.3}}], "test", "val")
    'perplexity'
    """
    found = list(runs)
    some = (
        name
        for name in SCORES
        if any(number_at(metrics, split, name) is not None for metrics in found for split in splits)
    )
    return next(some, "loss")


def merit(score: str, value: Number | None) -> float:
    """A number that is the larger the better a score is; least where there is none."""
    return -math.inf if value is None else value if SCORES[score] else -value


def merits(metrics: Mapping[str, Any], score: str, split: str) -> tuple[float, float]:
    """By which the best of several runs is the greatest: the score, and where equal the loss."""
    return merit(score, number_at(metrics, split, score)), merit("loss", number_at(metrics, split, "loss"))


def mean_and_spread(values: Sequence[Number]) -> tuple[float | None, float | None]:
    """Over seeds: the mean, None of no value; the standard deviation, None of less than two."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def score_text(name: str, value: Number | None, spread: Number | None = None) -> str:
    """A metric for a table, ± its spread over seeds; an accuracy, and chance, with four places.

    >>> score_text("accuracy", 0.5, 0.012), score_text("loss", 0.123456)
    ('0.5000 ± 0.012', '0.1235')
    """
    text = f"{value:.4f}" if value is not None and ("accuracy" in name or name == "chance") else number(value)
    return text if spread is None else f"{text} ± {spread:.2g}"
