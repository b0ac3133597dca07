"""Scores of a model's outputs; larger is better."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

Score = Callable[[Float[Tensor, "batch seq n_outputs"]], float]
"""A function outputs -> score; larger is better."""


def agreement(outputs: Float[Tensor, "n seq n_outputs"]) -> Score:
    """Score by the share of positions with the same argmax as `outputs`; by `explained` if there is one output."""
    if outputs.shape[-1] == 1:
        return explained(outputs)
    answers = outputs.argmax(-1)
    return lambda others: float((others.argmax(-1) == answers).double().mean())


def accuracy(labels: Tensor) -> Score:
    """Score by accuracy over labelled positions.

    Args:
        labels: classes (n, seq), -100 for none.
    """
    labelled = labels != -100

    def score(outputs: Tensor) -> float:
        right = outputs.argmax(-1) == labels
        return float(right[labelled].double().mean())

    return score


def explained(labels: Tensor) -> Score:
    """Score by R^2, the share of the labels' variance that the outputs explain, defined as in training.

    Args:
        labels: targets (n, seq, n_outputs), NaN for none; the variance is about the mean of each output.
    """
    labelled, wanted = ~labels.isnan(), labels.double()
    size = (wanted - wanted.nanmean((0, 1))).square()[labelled].sum()

    def score(outputs: Tensor) -> float:
        return float(1 - (outputs - wanted).square()[labelled].sum() / size)

    return score
