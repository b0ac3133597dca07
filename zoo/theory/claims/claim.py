"""What a claim is: a prediction as intervals, a measurement, and a verdict that follows from these two only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from zoo.report.numbers import Number, number
from zoo.theory.gradients import FEWEST_SEEDS

Status: TypeAlias = Literal["holds", "fails", "refuted as predicted", "not refuted"]
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


@dataclass(frozen=True)
class Check:
    """One quantity: what was measured, and the interval in which the prediction puts it."""

    quantity: str
    measured: Number
    low: Number = -math.inf
    high: Number = math.inf

    @property
    def holds(self) -> bool:
        """Whether the measurement lies in the interval; NaN lies in none."""
        return self.low <= self.measured <= self.high

    @property
    def refutes(self) -> bool:
        """Whether the measurement lies outside of the interval; NaN refutes nothing."""
        return math.isfinite(self.measured) and not self.holds

    @property
    def predicted(self) -> str:
        """The interval in words."""
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


def equals(quantity: str, measured: Number, value: Number) -> Check:
    """Prediction: exactly `value`."""
    return Check(quantity, measured, value, value)


def at_most(quantity: str, measured: Number, value: Number) -> Check:
    """Prediction: no more than `value`."""
    return Check(quantity, measured, high=value)


def at_least(quantity: str, measured: Number, value: Number) -> Check:
    """Prediction: no less than `value`."""
    return Check(quantity, measured, low=value)


def near(quantity: str, measured: Number, value: Number, relative: float) -> Check:
    """Prediction: `value`, to within `relative` of it."""
    room = abs(value) * relative
    return Check(quantity, measured, value - room, value + room)


@dataclass(frozen=True)
class Curve:
    """One line of a plot."""

    label: str
    x: tuple[Number, ...]
    y: tuple[Number, ...]
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
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = True
    whole_x: bool = False  # the abscissa counts: ticks at integers only
    x_names: tuple[str, ...] = ()  # what stands at the abscissae 0, 1, ..., in place of a legend
    lowest: float = 1e-18  # a log axis ends somewhere: what is smaller, zero above all, is drawn here


@dataclass(frozen=True)
class Evidence:
    """What a measurement returns."""

    checks: tuple[Check, ...]
    panels: tuple[Panel, ...] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("a measurement must check something")


@dataclass(frozen=True)
class Claim:
    """A prediction that can turn out false.

    Args:
        name: what `zoo claims` calls it.
        statement: the prediction in one or two sentences.
        source: where it comes from.
        refuted_by: the measurement that would refute it.
        measure: makes that measurement.
        slogan: a sentence that is often said and is false: its checks say what it would imply, and it is refuted as
            predicted when none of them holds.
    """

    name: str
    statement: str
    source: str
    refuted_by: str
    measure: Callable[[Settings], Evidence]
    slogan: bool = False

    def judge(self, evidence: Evidence) -> Status:
        """Return the verdict that the evidence compels."""
        if self.slogan:
            return "refuted as predicted" if all(check.refutes for check in evidence.checks) else "not refuted"
        return "holds" if all(check.holds for check in evidence.checks) else "fails"


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
