"""Intervals for verdicts, by scipy.stats; simulations at five and ten seeds check their coverage.

Scores over seeds are seldom normal: they crowd below 1, and some seeds learn nothing. An interval of the mean, by
Student's t or by resampling, then covers the mean too seldom. Hence the estimands: the share of seeds that solve a task
(`of_share`), whether one model solves it sooner (`of_superiority`), a shift between paired seeds (`of_shift`), the
median of a quantity (`of_median`), and the interquartile mean over several tasks (`of_interquartile_mean`).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from zoo.extras import require_extra
from zoo.report.numbers import Number

FEWEST_SEEDS = 5
"""Samples that an interval needs: of four, the range covers the median with probability 0.875 only."""
_OUTSIDE = 1 / 32  # on each side; five samples can do no better than 15/16 in all, which their range has
_CONFIDENCE = 0.95
FEWEST_PAIRS = 5
FEWEST_TASKS, FEWEST_SCORES = 6, 8


class Estimate(NamedTuple):
    """A quantity with its 95 % interval."""

    value: Number
    low: Number
    high: Number


_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def of_median(samples: Sequence[Number]) -> Estimate:
    """Return the median, between two of the samples: the k-th smallest and the k-th largest.

    Between them lies the median of what the samples are drawn from, of any distribution, with a probability of at least
    15/16: of five samples k = 1 with 0.9375, of ten k = 2 with 0.979. Differences of pairs make it a paired interval.
    NaN if a sample is.

    Raises:
        ValueError: fewer than five samples.
        MissingExtraError: scipy is not installed.
    """
    n, ordered = len(samples), sorted(samples)
    if n < FEWEST_SEEDS:
        raise ValueError(f"an interval needs at least {FEWEST_SEEDS} samples, got {n}")
    if any(map(math.isnan, samples)):  # which have no order
        return _UNKNOWN
    below = require_extra("scipy.stats").binom.cdf(range(n), n, 0.5)
    k = int((below <= _OUTSIDE * (1 + 1e-9)).sum())
    return Estimate(statistics.median(ordered), ordered[k - 1], ordered[-k])


def of_shift(differences: Sequence[Number]) -> Estimate:
    """Return the shift between paired samples by Hodges and Lehmann (1963), with the interval of the signed-rank test.

    The shift is the median of the means of all pairs of differences, each with itself too. Its interval ends at two of
    these means: of five differences it covers the shift with 0.9375, if they are symmetric around it. It is narrower
    than the interval of the median difference, since it uses the size of the differences. NaN if a difference is.

    Args:
        differences: one for each seed that both samples have.

    Raises:
        ValueError: fewer than five differences.
    """
    n = len(differences)
    if n < FEWEST_SEEDS:
        raise ValueError(f"an interval needs at least {FEWEST_SEEDS} differences, got {n}")
    if any(map(math.isnan, differences)):
        return _UNKNOWN
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(differences, 2))
    ways = [1]  # in which a signed-rank sum of 0, 1, 2, ... comes about
    for rank in range(1, n + 1):
        ways = [a + b for a, b in itertools.zip_longest(ways, [0] * rank + ways, fillvalue=0)]
    k = sum(below / 2**n <= _OUTSIDE for below in itertools.accumulate(ways))
    return Estimate(statistics.median(means), means[k - 1], means[-k])


def of_interquartile_mean(tasks: Sequence[Sequence[Number]]) -> Estimate:
    """Return the mean of the middle half of all scores, with a bootstrap interval stratified by task.

    The aggregate of Agarwal et al. (arXiv 2108.13264, `rliable`): seeds are drawn again within each task. Draws are
    seeded, so that equal scores have equal intervals. With fewer tasks or seeds the interval covers too seldom.

    Args:
        tasks: scores by seed for each task, on one scale.

    Raises:
        ValueError: fewer than six tasks, or fewer than eight scores of one.
        MissingExtraError: scipy is not installed.
    """
    if len(tasks) < FEWEST_TASKS or min(map(len, tasks)) < FEWEST_SCORES:
        sizes = ", ".join(str(len(scores)) for scores in tasks) or "none"
        raise ValueError(f"needs {FEWEST_TASKS} tasks or more with {FEWEST_SCORES} scores or more each; got {sizes}")
    stats, np = require_extra("scipy.stats"), require_extra("numpy")

    def middle(*scores: Any, axis: int = -1) -> Any:
        return stats.trim_mean(np.concatenate(scores, axis=axis), 0.25, axis=axis)

    found = stats.bootstrap(
        [list(scores) for scores in tasks],
        middle,
        n_resamples=2000,
        vectorized=True,
        confidence_level=_CONFIDENCE,
        method="percentile",
        rng=0,
    )
    low, high = map(float, found.confidence_interval)
    return Estimate(float(middle(*map(list, tasks))), low, high)


def of_share(successes: int, n: int) -> Estimate:
    """Return the share of successes among n attempts, by Clopper and Pearson (1934): 0 of 10 is at most 0.31.

    Raises:
        ValueError: no attempts, or more successes than attempts.
        MissingExtraError: scipy is not installed.
    """
    found = require_extra("scipy.stats").binomtest(successes, n)
    low, high = found.proportion_ci(_CONFIDENCE, "exact")
    return Estimate(found.statistic, float(low), float(high))


def of_rank_correlation(x: Sequence[Number], y: Sequence[Number]) -> Estimate:
    """Return Spearman's correlation over pairs, by Fisher's z with the variance of Bonett and Wright (2000).

    A correlation of one is taken for the middle between one and the next smaller that so many pairs can have. Where a
    side is constant there is no correlation: all three numbers are NaN.

    Raises:
        ValueError: fewer than five pairs, or sides of different lengths.
        MissingExtraError: scipy is not installed.
    """
    stats, n = require_extra("scipy.stats"), len(x)
    if n < FEWEST_PAIRS or len(y) != n:
        raise ValueError(f"a rank correlation needs at least {FEWEST_PAIRS} pairs, got {n} and {len(y)} numbers")
    if len(set(x)) == 1 or len(set(y)) == 1:
        return _UNKNOWN
    value = float(stats.spearmanr(x, y).statistic)
    most = 1 - 3 / (n * (n * n - 1))
    inner = min(max(value, -most), most)
    room = float(stats.norm.ppf((1 + _CONFIDENCE) / 2)) * math.sqrt((1 + inner**2 / 2) / (n - 3))
    return Estimate(value, math.tanh(math.atanh(inner) - room), math.tanh(math.atanh(inner) + room))


def of_superiority(upper: Sequence[Number], lower: Sequence[Number]) -> Estimate:
    """Return the probability that an upper number exceeds a lower one; ties count half. NaN without numbers.

    Wilson's interval, as if there were only as many pairs as the shorter side has numbers: the variance is never
    larger than that (Birnbaum and Klose 1957), whatever the distributions are.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    n = min(len(upper), len(lower))
    if n == 0:
        return _UNKNOWN
    value = sum((u > v) + (u == v) / 2 for u in upper for v in lower) / (len(upper) * len(lower))
    z2 = float(require_extra("scipy.stats").norm.ppf((1 + _CONFIDENCE) / 2)) ** 2
    middle, room = value + z2 / (2 * n), math.sqrt(z2 * (value * (1 - value) / n + z2 / (4 * n * n)))
    return Estimate(value, (middle - room) / (1 + z2 / n), (middle + room) / (1 + z2 / n))


def of_variance_ratio(groups: Sequence[Sequence[Number]]) -> Estimate:
    """Return the variance of what groups differ by, over that within them: analysis of variance with random effects.

    The interval is exact where both are normal (Searle 1971); below zero the ratio and its ends are cut off.

    Args:
        groups: two groups or more, of one size, two or more.

    Raises:
        ValueError: too few groups or numbers, groups of different sizes.
        MissingExtraError: scipy is not installed.
    """
    a, n = len(groups), len(groups[0]) if groups else 0
    if a < 2 or n < 2 or any(len(group) != n for group in groups):
        sizes = ", ".join(str(len(group)) for group in groups) or "none"
        raise ValueError(f"a ratio of variances needs two or more groups of as many numbers, two or more; got {sizes}")
    within = statistics.fmean(statistics.variance(group) for group in groups)
    if within == 0:
        return _UNKNOWN
    f = n * statistics.variance([statistics.fmean(group) for group in groups]) / within
    ends = require_extra("scipy.stats").f.ppf([(1 + _CONFIDENCE) / 2, (1 - _CONFIDENCE) / 2], a - 1, a * (n - 1))
    value, low, high = (max(0.0, (f / by - 1) / n) for by in (1.0, *map(float, ends)))
    return Estimate(value, low, high)
