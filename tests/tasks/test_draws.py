"""The vectorised draws: chi-square at a fixed seed; bounds are the 1 - 1e-6 quantiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.draws import distinct, weighted_distinct
from tests.tasks.case import chi_square


def test_slots_are_drawn_successively_by_weight(rng: np.random.Generator) -> None:
    weights = np.arange(1, 5) ** (0.01 - 1)
    first, second = weighted_distinct(rng, 60_000, weights, 2).T
    counts = np.zeros((4, 4))
    np.add.at(counts, (first, second), 1)
    p = weights / weights.sum()
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    expected = np.array([p[i] * p[j] / (1 - p[i]) for i, j in pairs])
    assert counts.diagonal().sum() == 0
    assert chi_square(np.array([counts[pair] for pair in pairs]), expected) < 51.1  # 11 degrees of freedom


@pytest.mark.parametrize(("population", "size"), [(4, 3), (3, 3)])
def test_draws_without_replacement_are_uniform_over_ordered_tuples(
    population: int, size: int, rng: np.random.Generator
) -> None:
    drawn = distinct(rng, 48_000, population, size)
    codes = drawn @ population ** np.arange(size)
    tuples, counts = np.unique(codes, return_counts=True)
    n_tuples = np.prod(range(population - size + 1, population + 1))
    assert len(tuples) == n_tuples
    assert chi_square(counts, np.full(n_tuples, 1 / n_tuples)) < {24: 73.3, 6: 35.9}[n_tuples]


@settings(max_examples=40)
@given(population=st.integers(1, 60), data=st.data())
def test_draws_without_replacement_are_distinct(population: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, population))
    drawn = distinct(np.random.default_rng(0), 5, population, size)
    assert ((drawn >= 0) & (drawn < population)).all()
    assert all(len(set(row)) == size for row in drawn.tolist())
    raced = weighted_distinct(np.random.default_rng(0), 5, np.arange(1.0, population + 1), size)
    assert all(len(set(row)) == size for row in raced.tolist())
