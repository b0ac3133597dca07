"""Vectorised draws, mostly without replacement, one independent draw per row."""

from __future__ import annotations

import numpy as np


def distinct(rng: np.random.Generator, n: int, population: int, size: int) -> np.ndarray:
    """Draw uniformly without replacement from `range(population)`.

    Draws with replacement, then redraws every entry that repeats an earlier one of its row. Relabelling the population
    does not change which entries are redrawn, so every ordered tuple of distinct numbers is equally likely. A row costs
    O(size log size), independent of the population.

    Args:
        rng: source of randomness.
        n: number of rows.
        population: number of values to draw from.
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
    """Return bool (n, size): whether an entry equals an earlier one of its row."""
    n, size = rows.shape
    # Value and position in one integer: sorting puts equal values side by side, the leftmost first.
    ordered = np.sort(rows * size + np.arange(size), axis=1)
    same = ordered[:, 1:] // size == ordered[:, :-1] // size
    repeated = np.zeros((n, size), dtype=bool)
    row, place = np.nonzero(same)
    repeated[row, ordered[row, place + 1] % size] = True
    return repeated


def shuffled(rng: np.random.Generator, n: int, population: int) -> np.ndarray:
    """Draw permutations of `range(population)`, int64 (n, population); for fewer numbers use `distinct`."""
    return rng.permuted(np.tile(np.arange(population), (n, 1)), axis=1)


def one_of(rng: np.random.Generator, eligible: np.ndarray) -> np.ndarray:
    """Draw uniformly, in each row, an index at which `eligible`, bool (n, population), is true; every row needs one.

    Returns:
        int64 indices (n,).
    """
    chosen = rng.integers(eligible.sum(axis=1))
    return (np.cumsum(eligible, axis=1) == chosen[:, None] + 1).argmax(axis=1)


def weighted_distinct(rng: np.random.Generator, n: int, weights: np.ndarray, size: int) -> np.ndarray:
    """Draw without replacement, each time proportionally to the weights of the remaining entries.

    An exponential race: entries arrive at times Exp(weight), and the `size` earliest are returned in order of arrival.
    By the memoryless property, the next arrival is drawn proportionally to the remaining weights (the exponential form
    of the Gumbel top-k trick, Efraimidis and Spirakis 2006).

    Args:
        rng: source of randomness.
        n: number of rows.
        weights: (population,), or (n, population) for weights per row; they need not sum to one. Entries of weight 0
            come last, in arbitrary order, if they are drawn at all.
        size: draws per row, at most the population.

    Returns:
        int64 indices (n, size), in the order drawn.
    """
    with np.errstate(divide="ignore"):
        arrival = rng.standard_exponential((n, weights.shape[-1])) / weights
    earliest = np.argpartition(arrival, size - 1, axis=1)[:, :size]
    order = np.argsort(np.take_along_axis(arrival, earliest, axis=1), axis=1)
    return np.take_along_axis(earliest, order, axis=1)
