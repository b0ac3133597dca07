"""Scores of a model's outputs; larger is better."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

Score = Callable[[Float[Tensor, "batch seq n_outputs"]], float]
"""How good the outputs of a model are."""


def agreement(outputs: Float[Tensor, "n seq n_outputs"]) -> Score:
    """Score by the share of positions with the same largest output as `outputs`."""
    answers = outputs.argmax(-1)
    return lambda others: float((others.argmax(-1) == answers).double().mean())


def accuracy(labels: Tensor) -> Score:
    """Score by the share of labelled positions that are answered right.

    Args:
        labels: classes (n, seq), -100 for none.
    """
    labelled = labels != -100

    def score(outputs: Tensor) -> float:
        right = outputs.argmax(-1) == labels
        return float(right[labelled].double().mean())

    return score


def explained(labels: Tensor) -> Score:
    """Score by the share of the labels' variance that the outputs explain, R^2.

    Args:
        labels: (n, seq, n_outputs), NaN for none.
    """
    labelled = ~labels.isnan()

    def score(outputs: Tensor) -> float:
        wanted = labels[labelled].double()
        left = (outputs[labelled] - wanted).square().sum()
        return float(1 - left / (wanted - wanted.mean()).square().sum())

    return score
