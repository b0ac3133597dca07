"""Vectorised draws, mostly without replacement, one independent draw per row."""

from __future__ import annotations

import numpy as np


def distinct(rng: np.random.Generator, n: int, population: int, size: int) -> np.ndarray:
    """Draw uniformly without replacement from `range(population)`.

    Draws freely and redraws, within a row, every entry that repeats an earlier one. Which entries are redrawn does not
    change when the population is relabelled, so every ordered tuple of distinct numbers is equally likely. Rows cost
    O(size log size), whatever the population.

    Args:
        rng: source of randomness.
        n: rows.
        population: how many numbers there are to choose from.
        size: draws per row, at most `population`.

    Returns:
        int64 (n, size), in the order drawn.
    """
    drawn = rng.integers(population, size=(n, size))
    rows = np.arange(n)
    while True:
        repeated = _repeats(drawn[rows])
        unfinished = repeated.any(axis=1)
        if not unfinished.any():
            return drawn
        rows, repeated = rows[unfinished], repeated[unfinished]
        redrawn = drawn[rows]
        redrawn[repeated] = rng.integers(population, size=np.count_nonzero(repeated))
        drawn[rows] = redrawn


def _repeats(rows: np.ndarray) -> np.ndarray:
    """Bool (n, size): True where an entry equals one further left in its row."""
    n, size = rows.shape
    # Value and place in one integer: a plain sort then puts equal values side by side, the leftmost first.
    ordered = np.sort(rows * size + np.arange(size), axis=1)
    same = ordered[:, 1:] // size == ordered[:, :-1] // size
    repeated = np.zeros((n, size), dtype=bool)
    row, place = np.nonzero(same)
    repeated[row, ordered[row, place + 1] % size] = True
    return repeated


def shuffled(rng: np.random.Generator, n: int, population: int) -> np.ndarray:
    """Draw permutations of `range(population)`, int64 (n, population); `distinct` is for draws of fewer numbers."""
    return rng.permuted(np.tile(np.arange(population), (n, 1)), axis=1)


def one_of(rng: np.random.Generator, eligible: np.ndarray) -> np.ndarray:
    """Draw uniformly, in each row, one place where `eligible`, bool (n, population), is true; each row needs one.

    Returns:
        int64 indices (n,).
    """
    chosen = rng.integers(eligible.sum(axis=1))
    return (np.cumsum(eligible, axis=1) == chosen[:, None] + 1).argmax(axis=1)


def weighted_distinct(rng: np.random.Generator, n: int, weights: np.ndarray, size: int) -> np.ndarray:
    """Draw successively without replacement, each time proportionally to the weights of the entries left.

    An exponential race: arrival times Exp(weight), the `size` earliest in order of arrival. By the memoryless property
    the next to arrive is always drawn with probability proportional to its weight among those not yet arrived
    (the exponential form of the Gumbel top-k trick, Efraimidis and Spirakis 2006).

    Args:
        rng: source of randomness.
        n: rows.
        weights: (population,), or (n, population) for weights per row; need not sum to one. Entries of weight 0 come
            last, in no order, if at all.
        size: draws per row, at most the population.

    Returns:
        int64 indices (n, size), in the order drawn.
    """
    with np.errstate(divide="ignore"):
        arrival = rng.standard_exponential((n, weights.shape[-1])) / weights
    earliest = np.argpartition(arrival, size - 1, axis=1)[:, :size]
    order = np.argsort(np.take_along_axis(arrival, earliest, axis=1), axis=1)
    return np.take_along_axis(earliest, order, axis=1)
