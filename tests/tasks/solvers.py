"""Slow solvers that know the tasks' definitions and nothing of their generators: plain loops over one example."""

from __future__ import annotations

from typing import Any

import numpy as np


def solve_mqar(options: dict[str, Any], inputs: list[int], asked: list[int]) -> dict[int, int]:
    """Look each token that is asked about up in the list of pairs at the front."""
    pairs = {}
    for j in range(options["n_pairs"]):
        pairs[inputs[2 * j]] = inputs[2 * j + 1]
    return {position: pairs[inputs[position]] for position in asked}


def solve_needle(options: dict[str, Any], inputs: list[int], asked: list[int]) -> dict[int, int]:
    """Name the only token of the sequence that is a class."""
    [needle] = [token for token in inputs if token < options["n_classes"]]
    return dict.fromkeys(asked, needle)


SOLVERS = {"mqar": solve_mqar, "needle": solve_needle}


def respond(lags: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """y_i = sum_tau G_tau x_{i - tau}, term by term: lags (seq, d_out, d_in), inputs (seq, d_in)."""
    outputs = np.zeros((len(inputs), lags.shape[1]))
    for i in range(len(inputs)):
        for tau in range(i + 1):
            outputs[i] += lags[tau] @ inputs[i - tau].astype(np.float64)
    return outputs
