"""Where an entry of a row was met before."""

from __future__ import annotations

import numpy as np


def first_and_previous(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each entry was first and last seen before in its row; `rows` are integers >= 0, (n, size).

    Returns:
        First occurrence, its own place where it has not occurred before; previous occurrence, -1 there. Both int64
        (n, size).
    """
    size = rows.shape[1]
    # Value and place in one integer: a plain sort puts equal values side by side in the order of their places.
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
