"""Confidence intervals: known values, coverage by simulation at the experiments' numbers of seeds, errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests import slow
from zoo.evidence import interval as intervals

LEAST = 0.93
"""Least coverage of an interval of nominally 95 %."""


def test_intervals_of_medians() -> None:
    assert intervals.of_median([3, 1, 2, 5, 9]) == (3, 1, 9)
    assert intervals.of_median(range(10)) == (4.5, 1, 8)  # these ends cover it with 0.979, the next inner ones 0.891
    assert intervals.of_median(range(20)) == (9.5, 5, 14)
    assert intervals.of_median([0.7] * 5) == (0.7, 0.7, 0.7)
    with pytest.raises(ValueError, match="at least 5 samples, got 4"):
        intervals.of_median([1, 2, 3, 4])


def test_a_shift_is_the_median_of_the_means_of_pairs() -> None:
    assert intervals.of_shift([1, 2, 3, 4, 5]) == (3, 1, 5)
    assert intervals.of_shift(range(8)) == (3.5, 1.5, 5.5)  # a signed-rank sum of at most 4 has probability 7 / 256
    with pytest.raises(ValueError, match="at least 5 differences, got 4"):
        intervals.of_shift([1, 2, 3, 4])


@pytest.mark.parametrize("of", [intervals.of_median, intervals.of_shift])
def test_a_nan_among_the_numbers_makes_the_interval_nan(of: Callable[[Sequence[float]], Any]) -> None:
    for order in itertools.permutations([0.1, 0.2, 0.3, 0.4, math.nan]):
        assert all(map(math.isnan, of(order)))


@pytest.mark.slow
def test_the_interval_of_an_interquartile_mean_covers_it(rng: np.random.Generator) -> None:
    levels = np.linspace(0.1, 0.9, 6)

    def draw(n: int) -> list[list[float]]:
        return [rng.normal(level, 0.1, n).tolist() for level in levels]

    truth = np.sort(np.concatenate(draw(20_000)))[30_000:90_000].mean()
    found = [intervals.of_interquartile_mean(draw(8)) for _ in range(300)]
    assert np.mean([low <= truth <= high for _, low, high in found]) >= LEAST - 0.02
    assert np.mean([each.value for each in found]) == pytest.approx(truth, abs=0.01)


def test_an_interquartile_mean_ignores_the_outer_quarters() -> None:
    scores = [[0.0] * 8, [1.0] * 8, *[[0.5] * 8] * 4]
    assert intervals.of_interquartile_mean(scores) == (0.5, 0.5, 0.5)
    for few in ([], scores[:5], [[1.0] * 7] * 6):
        with pytest.raises(ValueError, match="needs at least 6 tasks with at least 8 scores each; got "):
            intervals.of_interquartile_mean(few)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"), [(0, 10, 0, 0.3085), (5, 5, 0.4782, 1), (3, 6, 0.118, 0.882)]
)
def test_intervals_of_shares(successes: int, n: int, low: float, high: float) -> None:
    """Exact binomial intervals: at either end the observed or a more extreme count has a probability of 2.5 %."""
    found = intervals.of_share(successes, n)
    assert found == pytest.approx((successes / n, low, high), abs=2e-4)


def correlated(rng: np.random.Generator, n: int, rho: float) -> tuple[list[float], list[float]]:
    x, noise = rng.normal(size=(2, n))
    return x.tolist(), (rho * x + math.sqrt(1 - rho**2) * noise).tolist()


@pytest.mark.parametrize(
    ("n", "rho", "n_draws"),
    [(10, 0.6, 400), *(slow(n, rho, 2000) for n in (6, 15) for rho in (0, 0.9))],
)
def test_the_interval_of_a_rank_correlation_covers_it(
    n: int, rho: float, n_draws: int, rng: np.random.Generator
) -> None:
    spearman = 6 / math.pi * math.asin(rho / 2)
    found = (intervals.of_rank_correlation(*correlated(rng, n, rho)) for _ in range(n_draws))
    assert np.mean([low <= spearman <= high for _, low, high in found]) >= LEAST


def test_rank_correlations() -> None:
    value, low, high = intervals.of_rank_correlation(range(10), [x**3 for x in range(10)])
    assert value == pytest.approx(1)
    assert 0.9 < low < high < 1
    backwards = intervals.of_rank_correlation(range(10), [-x for x in range(10)])
    assert backwards == pytest.approx((-1, -high, -low))
    assert all(math.isnan(number) for number in intervals.of_rank_correlation(range(5), [1] * 5))
    with pytest.raises(ValueError, match="at least 5 pairs, got 4 and 4"):
        intervals.of_rank_correlation(range(4), range(4))


def test_intervals_of_superiority() -> None:
    assert intervals.of_superiority([3, 2], [1]).value == 1
    assert intervals.of_superiority([1], [1]).value == 0.5
    assert intervals.of_superiority([1] * 5, [0] * 9) == pytest.approx((1, 0.5655, 1), abs=1e-4)
    assert math.isnan(intervals.of_superiority([1], []).low)


def test_a_ratio_of_variances_of_groups_of_equal_size() -> None:
    # Variances 100 between and 2 within; F tables: F(0.975; 2, 3) = 16.044, F(0.975; 3, 2) = 39.165.
    found = intervals.of_variance_ratio([[0, 2], [10, 12], [20, 22]])
    assert found == pytest.approx((49.5, (100 / 16.044 - 1) / 2, (100 * 39.165 - 1) / 2), rel=1e-3)
    for unknown in ([[1, 1], [2, 2]], [[0, 2], [math.nan, 12]], [[math.nan, 2], [10, 12]]):
        assert all(map(math.isnan, intervals.of_variance_ratio(unknown)))
    for groups in ([], [[1, 2]], [[1], [2]], [[1, 2], [3, 4, 5]]):
        with pytest.raises(ValueError, match="at least two groups of equal size >= 2; got sizes "):
            intervals.of_variance_ratio(groups)
