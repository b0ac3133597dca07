"""A check: one measured quantity with its interval, and the region in which a prediction puts it."""

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
"""One measurement for each seed; `paired` combines those of equal seeds."""
Measured: TypeAlias = Number | Samples | Estimate
"""A number is exact, by algebra or by a deterministic measurement: it has no interval."""


@dataclass(frozen=True)
class Check:
    """One measured quantity, with its interval, and the region that the prediction gives it.

    Attributes:
        quantity: name of the quantity.
        value: measured value; the median if there are samples.
        low: least predicted value.
        high: largest predicted value.
        interval: 95 % interval of the value; None if the value is exact, or if there is a reason to decide nothing.
        seeds: seeds of the samples.
        reason: reason why the check is undecided whatever the value; empty without one.
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
        """The predicted region in words."""
        if self.low == self.high:
            return f"= {number(self.low)}"
        if self.low == -math.inf:
            return f"≤ {number(self.high)}"
        if self.high == math.inf:
            return f"≥ {number(self.low)}"
        middle, room = (self.low + self.high) / 2, (self.high - self.low) / 2
        if room < 0.05 * abs(middle) or middle == 0:
            return f"{number(middle)} ± {room:.1g}"
        return f"{number(self.low)} to {number(self.high)}"

    @property
    def interval_text(self) -> str:
        """The interval in words."""
        if self.interval is None:
            return NOTHING if self.reason else "exact"
        return " to ".join(map(number, self.interval))


def within(quantity: str, measured: Measured, low: Number = -math.inf, high: Number = math.inf) -> Check:
    """Check that the measurement is between `low` and `high`."""
    if isinstance(measured, Estimate):
        return Check(quantity, measured.value, low, high, measured[1:])
    if not isinstance(measured, Mapping):
        return Check(quantity, measured, low, high)
    seeds, reason = tuple(sorted(measured)), ""
    if lost := [seed for seed in seeds if not math.isfinite(measured[seed])]:
        reason = f"no number for seed {', '.join(map(str, lost))}"
    elif len(seeds) < FEWEST_SEEDS:
        reason = f"{count(len(seeds), 'seed')} of the {FEWEST_SEEDS} that an interval needs"
    if reason:
        return Check(quantity, median(measured.values()) if seeds else math.nan, low, high, None, seeds, reason)
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
    """Check that the measurement differs from `value` by at most the relative error."""
    room = abs(value) * relative
    return within(quantity, measured, value - room, value + room)


def paired(function: Callable[..., Number], *samples: Samples) -> Samples:
    """Apply a function, such as a difference or a ratio, to the measurements of each seed that all samples share.

    >>> paired(lambda a, b: a - b, {0: 3.0, 1: 5.0}, {1: 4.0, 2: 0.0})
    {1: 1.0}
    """
    seeds = [seed for seed in samples[0] if all(seed in each for each in samples)]
    return {seed: function(*(each[seed] for each in samples)) for seed in seeds}


def given(check: Check, *premises: Check) -> Check:
    """Return the check, undecided unless each premise holds."""
    for premise in premises:
        if premise.verdict != "holds":
            why = f", with {premise.reason}" if premise.reason else ""
            value = f"{number(premise.value)} ({premise.interval_text})" if premise.interval else number(premise.value)
            missed = f"{premise.quantity} is {value}, predicted {premise.predicted}{why}"
            return replace(check, reason=f"its control does not hold: {missed}")
    return check


def controlled(negative: Check, *controls: Check) -> Check:
    """Return a check that something is not learned, undecided unless each control holds.

    A control is a task that the same mixer must learn in the same budget, such as a shorter distance, fewer pairs or a
    smaller group; or that four times the training changes nothing. A task that was learned after all refutes the
    prediction, whatever its controls.
    """
    return given(negative, *controls) if negative.verdict == "holds" else negative
