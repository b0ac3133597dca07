"""Confidence intervals for verdicts, by scipy.stats; simulations with five and ten seeds test their coverage.

Scores over seeds are rarely normal: they crowd just below 1, and some seeds learn nothing. Intervals of the mean, by
Student's t or bootstrap, then have too low coverage. So we estimate other quantities: the share of seeds that solve a
task (`of_share`), the probability that one model solves it sooner (`of_superiority`), the shift between paired seeds
(`of_shift`), the median (`of_median`), and the interquartile mean over several tasks (`of_interquartile_mean`).
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
"""Samples that an interval needs: the range of four samples covers the median with probability 0.875 only."""
_OUTSIDE = 1 / 32  # error probability on each side; the range of five samples reaches exactly this, 15/16 in all
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
    """Return the median, with the interval from the k-th smallest to the k-th largest sample.

    It covers the median of any distribution with probability at least 15/16: 0.9375 for five samples (k = 1), 0.979 for
    ten (k = 2). For a paired interval, pass differences of pairs. NaN if a sample is NaN.

    Raises:
        ValueError: fewer than five samples.
        MissingExtraError: scipy is not installed.
    """
    n, ordered = len(samples), sorted(samples)
    if n < FEWEST_SEEDS:
        raise ValueError(f"an interval needs at least {FEWEST_SEEDS} samples, got {n}")
    if any(map(math.isnan, samples)):  # NaN has no order
        return _UNKNOWN
    below = require_extra("scipy.stats").binom.cdf(range(n), n, 0.5)
    k = int((below <= _OUTSIDE * (1 + 1e-9)).sum())
    return Estimate(statistics.median(ordered), ordered[k - 1], ordered[-k])


def of_shift(differences: Sequence[Number]) -> Estimate:
    """Return the Hodges-Lehmann shift (1963) between paired samples, with the interval of the signed-rank test.

    The shift is the median of the Walsh averages, the means of all pairs of differences, including each with itself.
    The ends of the interval are two of these means. For five differences it covers the shift with probability 0.9375,
    if they are distributed symmetrically around it. It uses the sizes of the differences too, so with six or more it is
    mostly narrower than the interval of the median difference. NaN if a difference is NaN.

    Args:
        differences: one difference per common seed.

    Raises:
        ValueError: fewer than five differences.
    """
    n = len(differences)
    if n < FEWEST_SEEDS:
        raise ValueError(f"an interval needs at least {FEWEST_SEEDS} differences, got {n}")
    if any(map(math.isnan, differences)):
        return _UNKNOWN
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(differences, 2))
    ways = [1]  # number of sign patterns with signed-rank sum 0, 1, 2, ...
    for rank in range(1, n + 1):
        ways = [a + b for a, b in itertools.zip_longest(ways, [0] * rank + ways, fillvalue=0)]
    k = sum(below / 2**n <= _OUTSIDE for below in itertools.accumulate(ways))
    return Estimate(statistics.median(means), means[k - 1], means[-k])


def of_interquartile_mean(tasks: Sequence[Sequence[Number]]) -> Estimate:
    """Return the interquartile mean of all scores, with a bootstrap interval stratified by task.

    This is the aggregate of Agarwal et al. (arXiv 2108.13264, `rliable`): seeds are resampled within each task. The
    resampling is seeded, so equal scores give equal intervals. With fewer tasks or seeds the coverage is too low.

    Args:
        tasks: for each task, its scores by seed; all on one scale.

    Raises:
        ValueError: fewer than six tasks, or fewer than eight scores of a task.
        MissingExtraError: scipy is not installed.
    """
    if len(tasks) < FEWEST_TASKS or min(map(len, tasks)) < FEWEST_SCORES:
        sizes = ", ".join(str(len(scores)) for scores in tasks) or "none"
        raise ValueError(
            f"an interquartile mean needs at least {FEWEST_TASKS} tasks with at least {FEWEST_SCORES} scores each; "
            f"got {sizes}"
        )
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
    """Return the share of successes among n attempts, with the interval of Clopper and Pearson (1934).

    For 0 of 10 the upper end is 0.31.

    Raises:
        ValueError: no attempts, or more successes than attempts.
        MissingExtraError: scipy is not installed.
    """
    found = require_extra("scipy.stats").binomtest(successes, n)
    low, high = found.proportion_ci(_CONFIDENCE, "exact")
    return Estimate(found.statistic, float(low), float(high))


def of_rank_correlation(x: Sequence[Number], y: Sequence[Number]) -> Estimate:
    """Return Spearman's rank correlation, with the interval by Fisher's z and the variance of Bonett and Wright (2000).

    For the interval, a correlation of 1 or -1 is moved towards 0 by 3 / (n^3 - n), a quarter of the way to the next
    value that n pairs without ties can have. If x or y is constant, all three numbers are NaN.

    Raises:
        ValueError: fewer than five pairs, or x and y of different lengths.
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
    """Return the probability that a number from `upper` exceeds one from `lower`; ties count half. NaN if one is empty.

    The interval is Wilson's, with the size of the shorter sample as the number of trials. This bounds the variance for
    any distributions (Birnbaum and Klose 1957).

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
    """Return the variance between groups over the variance within groups: analysis of variance with random effects.

    The interval is exact if both are normal (Searle 1971). Negative values are replaced by zero. NaN if a number is
    NaN, or if no group varies.

    Args:
        groups: at least two groups of the same size, which is at least two.

    Raises:
        ValueError: too few groups, groups that are too small or of different sizes.
        MissingExtraError: scipy is not installed.
    """
    a, n = len(groups), len(groups[0]) if groups else 0
    if a < 2 or n < 2 or any(len(group) != n for group in groups):
        sizes = ", ".join(str(len(group)) for group in groups) or "none"
        raise ValueError(f"a ratio of variances needs at least two groups of equal size >= 2; got sizes {sizes}")
    within = statistics.fmean(statistics.variance(group) for group in groups)
    if within == 0 or math.isnan(within):  # max would replace NaN by zero
        return _UNKNOWN
    f = n * statistics.variance([statistics.fmean(group) for group in groups]) / within
    ends = require_extra("scipy.stats").f.ppf([(1 + _CONFIDENCE) / 2, (1 - _CONFIDENCE) / 2], a - 1, a * (n - 1))
    value, low, high = (max(0.0, (f / by - 1) / n) for by in (1.0, *map(float, ends)))
    return Estimate(value, low, high)
