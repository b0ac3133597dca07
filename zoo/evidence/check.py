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
"""One measurement for each seed; pair what shares a seed with `paired`."""
Measured: TypeAlias = Number | Samples | Estimate
"""A number is exact, by algebra or by a deterministic measurement: it has no interval."""


@dataclass(frozen=True)
class Check:
    """One quantity: what was measured, with its interval, and the region in which the prediction puts it.

    Attributes:
        quantity: its name.
        value: what was measured; of samples, their median.
        low: least predicted value.
        high: largest predicted value.
        interval: 95 % interval of the value; None where it is exact, or undecided for the reason given.
        seeds: those of the samples.
        reason: why nothing can be decided, whatever was measured.
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
        """Holds with the whole interval in the predicted region, fails with all of it outside; NaN decides nothing."""
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
    def known(self) -> str:
        """The interval in words."""
        if self.interval is None:
            return NOTHING if self.reason else "exact"
        return " to ".join(map(number, self.interval))


def within(quantity: str, measured: Measured, low: Number = -math.inf, high: Number = math.inf) -> Check:
    """Predict no less than `low` and no more than `high`."""
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
    """Predict exactly `value`."""
    return within(quantity, measured, value, value)


def at_most(quantity: str, measured: Measured, value: Number) -> Check:
    """Predict no more than `value`."""
    return within(quantity, measured, high=value)


def at_least(quantity: str, measured: Measured, value: Number) -> Check:
    """Predict no less than `value`."""
    return within(quantity, measured, low=value)


def near(quantity: str, measured: Measured, value: Number, relative: float) -> Check:
    """Predict `value`, to within `relative` of it."""
    room = abs(value) * relative
    return within(quantity, measured, value - room, value + room)


def paired(function: Callable[..., Number], *samples: Samples) -> Samples:
    """Return what a function makes of the measurements of each seed that all samples have: a difference, a ratio.

    >>> paired(lambda a, b: a - b, {0: 3.0, 1: 5.0}, {1: 4.0, 2: 0.0})
    {1: 1.0}
    """
    seeds = [seed for seed in samples[0] if all(seed in each for each in samples)]
    return {seed: function(*(each[seed] for each in samples)) for seed in seeds}


def given(check: Check, *premises: Check) -> Check:
    """Return a check of what is said only of those that meet the premises: undecided, unless each of these holds."""
    for premise in premises:
        if premise.verdict != "holds":
            why = f", with {premise.reason}" if premise.reason else ""
            value = f"{number(premise.value)} ({premise.known})" if premise.interval else number(premise.value)
            missed = f"{premise.quantity} is {value}, predicted {premise.predicted}{why}"
            return replace(check, reason=f"says nothing, because its control does not hold: {missed}")
    return check


def controlled(negative: Check, *controls: Check) -> Check:
    """Return a check that something is not learned, undecided unless each control holds: it says nothing then.

    A control is what the same mixer must have learned under the same budget, named before the runs: the task made
    easier by a shorter distance, fewer pairs, a smaller group; or that four times the training changes nothing. What
    was learned after all refutes, whatever its controls.
    """
    return given(negative, *controls) if negative.verdict == "holds" else negative
