"""Find earlier occurrences of the entries of a row, and count shares of tokens and labels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tasks.base import Task
from tasks.spec import IGNORED

COUNTED_ROWS, COUNTED_POSITIONS = 2000, 1 << 24
"""Maximum numbers of sequences and positions in which to count the most frequent token."""


def first_and_previous(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the previous occurrence of each entry in its row; `rows` are integers >= 0, (n, size).

    Returns:
        Index of the first occurrence, which may be the entry itself; index of the previous occurrence, -1 without one.
        Both int64 (n, size).
    """
    size = rows.shape[1]
    # Value and position in one integer: sorting puts equal values side by side, in order of position.
    ordered = np.sort(rows * size + np.arange(size), axis=1)
    value, place = np.divmod(ordered, size)
    again = np.zeros(rows.shape, dtype=bool)
    again[:, 1:] = value[:, 1:] == value[:, :-1]
    run_start = np.maximum.accumulate(np.where(again, 0, np.arange(size)), axis=1)
    before = np.full(rows.shape, -1, dtype=np.int64)
    before[:, 1:] = np.where(again[:, 1:], place[:, :-1], -1)
    first, previous = np.empty_like(before), np.empty_like(before)
    np.put_along_axis(first, place, np.take_along_axis(place, run_start, axis=1), axis=1)
    np.put_along_axis(previous, place, before, axis=1)
    return first, previous


def most_frequent_share(task: Task, n_tokens: int) -> float:
    """Return the mean share of the most frequent of a sequence's tokens below `n_tokens`.

    The mean is over 2,000 sequences; over fewer if a sequence is longer than 8,388.
    """
    n = min(COUNTED_ROWS, max(1, COUNTED_POSITIONS // task.spec.seq_len))
    inputs = task.sample(np.random.default_rng(0), n)["inputs"]
    rows, at = np.nonzero(inputs < n_tokens)
    counts = np.bincount(rows * n_tokens + inputs[rows, at], minlength=n * n_tokens).reshape(n, n_tokens)
    return float((counts.max(1) / counts.sum(1)).mean())


def label_shares(task: Task, rows: int, draws: int = 1) -> np.ndarray:
    """Return the share of each class, up to the largest label, among the labels of `draws` times `rows` sequences.

    For tasks whose chance level has no closed form; cached by the options of the task.
    """
    return _label_shares(type(task), tuple(task.options().items()), rows, draws)


@lru_cache
def _label_shares(kind: type[Task], options: tuple[tuple[str, Any], ...], rows: int, draws: int) -> np.ndarray:
    task, rng = kind(**dict(options)), np.random.default_rng(0)
    labels = np.concatenate([task.sample(rng, rows)["labels"] for _ in range(draws)])
    counts = np.bincount(labels[labels != IGNORED])
    return counts / counts.sum()
