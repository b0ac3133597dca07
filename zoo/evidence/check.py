"""Checks: compare a measured quantity and its interval with the predicted region."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, TypeAlias

from zoo.evidence.interval import FEWEST_SEEDS, Estimate, of_median
from zoo.report.numbers import NOTHING, Number, count, number

CheckStatus: TypeAlias = Literal["holds", "fails", "undecided"]
Samples: TypeAlias = Mapping[int, Number]
"""One measurement per seed; `paired` combines measurements of the same seed."""
Measured: TypeAlias = Number | Samples | Estimate
"""A measurement. Numbers are exact (by algebra or a deterministic measurement) and have no interval."""


@dataclass(frozen=True)
class Check:
    """A measured quantity with its interval, and its predicted region.

    Attributes:
        quantity: name of the quantity.
        value: measured value; for samples their median, NaN if a sample is NaN.
        low: smallest predicted value.
        high: largest predicted value.
        interval: 95 % interval of the value; None if the value is exact, or the samples do not allow one.
        seeds: seeds of the samples.
        reason: if not empty, the check is undecided for this reason, whatever the value.
    """

    quantity: str
    value: Number
    low: Number = -math.inf
    high: Number = math.inf
    interval: tuple[Number, Number] | None = None
    seeds: tuple[int, ...] = ()
    reason: str = ""

    @property
    def verdict(self) -> CheckStatus:
        """Holds if the whole interval is in the predicted region, fails if all of it is outside; undecided for NaN."""
        low, high = self.interval or (self.value, self.value)
        if self.reason:
            return "undecided"
        if self.low <= low and high <= self.high:
            return "holds"
        return "fails" if high < self.low or low > self.high else "undecided"

    @property
    def predicted(self) -> str:
        """The predicted region as text."""
        if self.low == self.high:
            return f"= {number(self.low)}"
        if self.low == -math.inf:
            return f"≤ {number(self.high)}"
        if self.high == math.inf:
            return f"≥ {number(self.low)}"
        middle, room = (self.low + self.high) / 2, (self.high - self.low) / 2
        if room < 0.05 * abs(middle) or middle == 0:
            return f"{number(middle)} ± {number(room, 3)}"
        return f"{number(self.low)} to {number(self.high)}"

    @property
    def interval_text(self) -> str:
        """The interval as text."""
        if self.interval is None:
            return NOTHING if self.reason else "exact"
        return " to ".join(map(number, self.interval))


def within(quantity: str, measured: Measured, low: Number = -math.inf, high: Number = math.inf) -> Check:
    """Check that the measurement lies in [low, high]; undecided if an end is NaN, such as the limit of a lost run."""
    if math.isnan(low) or math.isnan(high):  # a record cannot distinguish it from an open end: it needs a reason
        found = within(quantity, measured)
        return replace(found, low=low, high=high, reason=found.reason or "its predicted limit is not a number")
    if isinstance(measured, Estimate):
        return Check(quantity, measured.value, low, high, measured[1:])
    if not isinstance(measured, Mapping):
        return Check(quantity, measured, low, high)
    seeds, reason = tuple(sorted(measured)), ""
    if lost := [seed for seed in seeds if not math.isfinite(measured[seed])]:
        reason = f"no number for seed {', '.join(map(str, lost))}"
    elif len(seeds) < FEWEST_SEEDS:
        reason = f"{count(len(seeds), 'seed')}, but an interval needs {FEWEST_SEEDS}"
    if reason:
        is_known = seeds and not any(map(math.isnan, measured.values()))  # NaN has no order
        return Check(quantity, median(measured.values()) if is_known else math.nan, low, high, None, seeds, reason)
    found = of_median(list(measured.values()))
    return Check(quantity, found.value, low, high, found[1:], seeds)


def equals(quantity: str, measured: Number, value: Number) -> Check:
    """Check that the measurement equals `value`."""
    return within(quantity, measured, value, value)


def at_most(quantity: str, measured: Measured, value: Number) -> Check:
    """Check that the measurement is at most `value`."""
    return within(quantity, measured, high=value)


def at_least(quantity: str, measured: Measured, value: Number) -> Check:
    """Check that the measurement is at least `value`."""
    return within(quantity, measured, low=value)


def near(quantity: str, measured: Measured, value: Number, relative: float) -> Check:
    """Check that the measurement equals `value` up to a relative error."""
    room = abs(value) * relative
    return within(quantity, measured, value - room, value + room)


def paired(function: Callable[..., Number], *samples: Samples) -> Samples:
    """Apply a function, such as a difference or a ratio, to the measurements of each common seed.

    >>> paired(lambda a, b: a - b, {0: 3.0, 1: 5.0}, {1: 4.0, 2: 0.0})
    {1: 1.0}
    """
    seeds = [seed for seed in samples[0] if all(seed in each for each in samples)]
    return {seed: function(*(each[seed] for each in samples)) for seed in seeds}


def given(check: Check, *premises: Check) -> Check:
    """Return the check; it is undecided unless all premises hold."""
    for premise in premises:
        if premise.verdict != "holds":
            why = f", with {premise.reason}" if premise.reason else ""
            value = f"{number(premise.value)} ({premise.interval_text})" if premise.interval else number(premise.value)
            missed = f"{premise.quantity} is {value}, predicted {premise.predicted}{why}"
            return replace(check, reason=f"its control does not hold: {missed}")
    return check


def controlled(negative: Check, *controls: Check) -> Check:
    """Return a check that a task is not learned; it is undecided unless all controls hold.

    A control is an easier task that the same mixer learns with the same budget (a shorter distance, fewer pairs, a
    smaller group), or the same result after four times the training. If the task is learned, the prediction fails,
    whatever the controls.
    """
    return given(negative, *controls) if negative.verdict == "holds" else negative
