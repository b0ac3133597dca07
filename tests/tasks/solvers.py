"""Slow solvers that know the tasks' definitions and nothing of their generators: plain loops over one example."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from zoo.theory.teacher import balanced_teacher


def solve_mqar(options: dict[str, Any], inputs: list[int], asked: list[int]) -> dict[int, int]:
    """Look each token that is asked about up in the list of pairs at the front: every key is asked for once."""
    pairs = {}
    for j in range(len(asked)):
        pairs[inputs[2 * j]] = inputs[2 * j + 1]
    return {position: pairs[inputs[position]] for position in asked}


def mqar_distance(options: dict[str, Any], inputs: list[int], asked: list[int]) -> dict[int, int]:
    """Back to the value, which stands behind its key."""
    keys = inputs[0 : 2 * len(asked) : 2]
    return {position: position - (2 * keys.index(inputs[position]) + 1) for position in asked}


def mqar_pairs(options: dict[str, Any], inputs: list[int], asked: list[int]) -> dict[int, int]:
    """As many as are asked for, within the bounds that the options set."""
    most = options["n_pairs"] or options["seq_len"] // 4
    assert (options["min_pairs"] or most) <= len(asked) <= most
    return dict.fromkeys(asked, len(asked))


def solve_needle(options: dict[str, Any], inputs: list[int], asked: list[int]) -> dict[int, int]:
    """Name the class behind the marker, or, where there is none, the only one."""
    needle = inputs[needle_place(options, inputs)]
    return dict.fromkeys(asked, needle)


def needle_distance(options: dict[str, Any], inputs: list[int], asked: list[int]) -> dict[int, int]:
    """Back to that class."""
    place = needle_place(options, inputs)
    return {position: position - place for position in asked}


def needle_place(options: dict[str, Any], inputs: list[int]) -> int:
    question = options["n_classes"] + options["n_noise"]
    classes = [position for position, token in enumerate(inputs) if token < options["n_classes"]]
    markers = [position for position, token in enumerate(inputs) if token > question]
    assert len(classes) == 1 + options["n_distractors"]
    assert len(markers) == (options["n_distractors"] > 0)
    [place] = classes if not markers else [marker + 1 for marker in markers]
    assert place in classes
    return place


def solve_ssm_teacher(options: dict[str, Any], inputs: list[list[float]], asked: list[int]) -> dict[int, list[float]]:
    """The sum over lags, term by term. The lag operators are the theory's, tested there: they are the definition."""
    lags = _lags(*(options[name] for name in ("k", "d_input", "seq_len", "rho", "teacher_seed", "d_output", "period")))
    return {i: respond(lags, np.array(inputs), i).tolist() for i in asked}


@cache
def _lags(k: int, d_input: int, seq_len: int, rho: float, seed: int, d_output: int, period: int) -> np.ndarray:
    return balanced_teacher(k, d_input, seq_len, rho, seed, d_out=d_output, period=period).numpy()


def respond(lags: np.ndarray, inputs: np.ndarray, i: int) -> np.ndarray:
    """y_i = sum_tau G_tau x_{i - tau}, term by term: lags (seq, d_out, d_in), inputs (seq, d_in)."""
    output = np.zeros(lags.shape[1])
    for tau in range(i + 1):
        output += lags[tau] @ inputs[i - tau]
    return output
