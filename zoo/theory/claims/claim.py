"""What a claim is: a prediction as intervals, a measurement, and a verdict that follows from these two only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from statistics import median
from typing import Literal, TypeAlias

import torch

from zoo.report.numbers import NOTHING, Number, count, number
from zoo.theory.gradients import draw_seeds
from zoo.theory.intervals import FEWEST_SEEDS, Estimate, of_median

CheckStatus: TypeAlias = Literal["holds", "fails", "undecided"]
Status: TypeAlias = Literal["holds", "fails", "refuted as predicted", "not refuted", "undecided"]
CurveStyle: TypeAlias = Literal["line", "points", "marked", "stars", "dashed"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the measurements.

    Args:
        seed: of every draw.
        n_seeds: repetitions of whatever is trained or drawn, five or more; medians are taken over them.
        steps: of Adam, where something is trained.
        seq_len: of gradient profiles and of the table of heads for an error; rates are tail rates, and below about 200
            positions the tail is not yet reached.
        ranks: interaction ranks of the teachers in the claims about head counts, from 1 to 16.
        starts: of an optimiser of a loss that is not convex; times n_seeds where a minimum is to be believed.
        device: where layers and tensors live.

    Raises:
        ValueError: a size too small to measure anything.
    """

    seed: int = 0
    n_seeds: int = 5
    steps: int = 300
    seq_len: int = 256
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    starts: int = 2
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("n_seeds", FEWEST_SEEDS), ("steps", 1), ("seq_len", 32), ("starts", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not self.ranks or not all(1 <= rank <= 16 for rank in self.ranks):
            raise ValueError(f"ranks must be integers from 1 to 16, at least one, got {self.ranks}")

    def generator(self, *stream: int) -> torch.Generator:
        """Return a generator on the CPU, of this seed and of the numbers that tell one use from another."""
        mixed = self.seed
        for use in stream:
            mixed = (mixed * 1_000_003 + use + 1) % (2**63 - 1)
        return torch.Generator().manual_seed(mixed)


QUICK = Settings()
FULL = Settings(n_seeds=9, steps=600, seq_len=1024, ranks=(1, 2, 4, 8, 12), starts=4)


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


@dataclass(frozen=True)
class Curve:
    """One line of a plot."""

    label: str
    x: Sequence[Number]
    y: Sequence[Number]
    style: CurveStyle = "line"

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.label!r} has {len(self.x)} abscissae and {len(self.y)} ordinates")


@dataclass(frozen=True)
class Panel:
    """One plot: axes with their units, and what is drawn on them."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = True
    whole_x: bool = False  # the abscissa counts: ticks at integers only
    x_names: tuple[str, ...] = ()  # what stands at the abscissae 0, 1, ...
    lowest: float = 1e-18  # a log axis ends somewhere: what is smaller, zero above all, is drawn here
    share: bool = False  # the ordinate is a share: it reaches from 0 to 1, however close the values are


@dataclass(frozen=True)
class Evidence:
    """What a measurement returns; `missing` names what was planned and is not there, so that nothing is decided."""

    checks: tuple[Check, ...]
    panels: tuple[Panel, ...] = ()
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("a measurement must check something")


@dataclass(frozen=True)
class Claim:
    """A prediction that can turn out false.

    Args:
        name: what `zoo claims` calls it.
        statement: the prediction in one or two sentences.
        source: where it comes from; `zoo claims --paper` finds it by the arXiv numbers in it.
        refuted_by: the measurement that would refute it.
        measure: makes that measurement.
        slogan: a sentence that is often said and is false: its checks say what it would imply, and it is refuted as
            predicted when all of them fail.
    """

    name: str
    statement: str
    source: str
    refuted_by: str
    measure: Callable[[Settings], Evidence]
    slogan: bool = False

    @property
    def papers(self) -> tuple[str, ...]:
        """The arXiv numbers that the source names."""
        return tuple(re.findall(r"\b\d{4}\.\d{4,5}\b", self.source))

    def judge(self, evidence: Evidence) -> Status:
        """Return the verdict that the evidence compels."""
        found = {check.verdict for check in evidence.checks}
        if evidence.missing:
            return "undecided"
        if self.slogan:
            return "not refuted" if "holds" in found else "refuted as predicted" if found == {"fails"} else "undecided"
        return "fails" if "fails" in found else "holds" if found == {"holds"} else "undecided"


Findings: TypeAlias = Iterator[Check | Panel]
"""What a measurement yields: checks, and plots of what they are about."""


def claim(
    statement: str, source: str, refuted_by: str, slogan: bool = False
) -> Callable[[Callable[[Settings], Findings]], Claim]:
    """Return what turns the function that measures a claim into a `Claim` of its name, with these attributes."""

    def named(measure: Callable[[Settings], Findings]) -> Claim:
        def gathered(settings: Settings) -> Evidence:
            found = list(measure(settings))
            checks = tuple(each for each in found if isinstance(each, Check))
            return Evidence(checks, tuple(each for each in found if isinstance(each, Panel)))

        return Claim(measure.__name__, statement, source, refuted_by, gathered, slogan)

    return named


def redrawn(measure: Callable[[Settings], Findings]) -> Callable[[Settings], Findings]:
    """Return a measurement whose exact checks are repeated with n_seeds seeds and become checks of samples.

    Its plots are those of the first seed.
    """

    @wraps(measure)
    def repeated(settings: Settings) -> Findings:
        samples: dict[tuple[str, Number, Number], dict[int, Number]] = {}
        for repeat, seed in enumerate(draw_seeds(settings.seed, settings.n_seeds)):
            for found in measure(replace(settings, seed=seed)):
                if isinstance(found, Check):
                    samples.setdefault((found.quantity, found.low, found.high), {})[repeat] = found.value
                elif repeat == 0:
                    yield found
        for (quantity, low, high), values in samples.items():
            yield within(quantity, values, low, high)

    return repeated


@dataclass(frozen=True)
class Verdict:
    """A claim after its measurement."""

    claim: Claim
    evidence: Evidence
    status: Status
    seconds: float

    @property
    def as_expected(self) -> bool:
        """True for a claim that holds and for a slogan that is refuted."""
        return self.status in ("holds", "refuted as predicted")
