"""What a task is judged by, and which of two results is better: one order for all tables and for what a sweep picks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from lab.run import Number, number_at

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
