"""The vectorised draws follow their laws, by chi-square tests at level 1e-6 with fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.generators.draws import distinct, one_of, weighted_distinct
from tasks.generators.occurrences import first_and_previous
from tests.tasks.case import assert_even, assert_law


def test_weighted_distinct_draws_one_after_the_other_by_weight(rng: np.random.Generator) -> None:
    weights = np.arange(1, 5) ** (0.01 - 1)
    first, second = weighted_distinct(rng, 60_000, weights, 2).T
    counts = np.zeros((4, 4))
    np.add.at(counts, (first, second), 1)
    p = weights / weights.sum()
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    expected = np.array([p[i] * p[j] / (1 - p[i]) for i, j in pairs])
    assert counts.diagonal().sum() == 0
    assert_law(np.array([counts[pair] for pair in pairs]), expected)


@pytest.mark.parametrize(("population", "size"), [(4, 3), (3, 3)])
def test_draws_without_replacement_are_uniform_over_ordered_tuples(
    population: int, size: int, rng: np.random.Generator
) -> None:
    drawn = distinct(rng, 48_000, population, size)
    codes = drawn @ population ** np.arange(size)
    counts = np.unique(codes, return_counts=True)[1]
    n_tuples = np.prod(range(population - size + 1, population + 1))
    assert_even(counts, n_tuples)


def test_items_of_weight_zero_come_last(rng: np.random.Generator) -> None:
    weights = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]])[rng.integers(2, size=500)]
    drawn = weighted_distinct(rng, 500, weights, 3)
    weight_drawn = np.take_along_axis(weights, drawn, axis=1)
    assert (np.diff(weight_drawn, axis=1) <= 0).all()
    assert (weight_drawn.sum(axis=1) == weights.sum(axis=1)).all()
    for row in drawn:
        assert len(set(row.tolist())) == 3


def test_one_of_draws_evenly_among_the_eligible(rng: np.random.Generator) -> None:
    eligible = np.array([[False, True, True, False, True], [True, False, False, False, False]])
    chosen = one_of(rng, np.repeat(eligible, 9_000, axis=0))
    assert_even(np.bincount(chosen[:9_000], minlength=5)[[1, 2, 4]], 3)
    assert eligible[0, chosen[:9_000]].all()
    assert (chosen[9_000:] == 0).all()


@settings(max_examples=20)
@given(rows=st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7), min_size=0, max_size=4))
def test_first_and_previous_occurrences_equal_a_plain_loop(rows: list[list[int]]) -> None:
    first, previous = first_and_previous(np.array(rows, dtype=np.int64).reshape(-1, 7))
    for r, row in enumerate(rows):
        for place, value in enumerate(row):
            earlier = [p for p in range(place) if row[p] == value]
            assert first[r, place] == (earlier[0] if earlier else place)
            assert previous[r, place] == (earlier[-1] if earlier else -1)
