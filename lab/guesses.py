"""Trivial baselines of a task: the best guesses from which tokens have been read, whatever their order."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache

import numpy as np

from tasks.base import Task
from tasks.groups import multiplication_table

_EXAMPLES = 2000
_MOST_BAGS = 10**5


def without_order(task: Task) -> float | None:
    """Return the accuracy of the best guess that ignores order; None where it is not known."""
    known = vars(task)
    match task.name:
        case "needle":
            return None if known["n_distractors"] else 1.0
        case "parity":
            return 1.0
        case "group_words":
            return _of_words(known["group"], task.spec.seq_len)
        case _:
            return among_read(task)


def among_read(task: Task) -> float | None:
    """Return the accuracy of naming one of the tokens that were read and may be asked for; None where none is.

    Models stay there for long before they recall anything. Of MQAR it is that of one of the values that were given,
    since the filler can only make it harder.
    """
    known, length = vars(task), task.spec.seq_len
    match task.name:
        case "mqar":
            return 1 / max(1, known["n_pairs"] or length // 4)
        case "k_hop":
            return 1 / (length // 2 - known["n_questions"] - 1)
        case "selective_copying":
            return _most_frequent(task, known["vocab_size"] - 2)
        case "induction_heads":
            return _most_frequent(task, known["vocab_size"] - 1)
        case _:
            return None


def _most_frequent(task: Task, n_tokens: int) -> float:
    """Return the mean share of the most frequent among the first `n_tokens` tokens of a sequence."""
    inputs = task.sample(np.random.default_rng(0), _EXAMPLES)["inputs"]
    counts = (inputs[:, :, None] == np.arange(n_tokens)).sum(1)
    return float((counts.max(1) / counts.sum(1)).mean())


@cache
def _of_words(group: str, length: int) -> float | None:
    """Count the words of each product by what they are made of, and take the commonest product."""
    table = multiplication_table(group)
    order = len(table)
    if math.comb(order + length - 1, length) > _MOST_BAGS:
        return None
    ways = {(0,) * order: np.eye(order)[0]}
    right = []
    for at in range(1, length + 1):
        longer: dict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros(order))
        for bag, by_product in ways.items():
            for x in range(order):
                longer[*bag[:x], bag[x] + 1, *bag[x + 1 :]][table[:, x]] += by_product
        ways = dict(longer)
        right.append(sum(found.max() for found in ways.values()) / order**at)
    return float(np.mean(right))
