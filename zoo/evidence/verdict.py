"""A verdict: a prediction, the evidence measured for it, and the status that follows from these two only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from zoo.evidence.check import Check
from zoo.report.numbers import Number

Status: TypeAlias = Literal["holds", "fails", "refuted as predicted", "not refuted", "undecided"]
CurveStyle: TypeAlias = Literal["line", "points", "marked", "stars", "dashed", "beneath"]


@dataclass(frozen=True)
class Curve:
    """One line of a plot, with the ends of an interval around each point where they are given."""

    label: str
    x: Sequence[Number]
    y: Sequence[Number]
    style: CurveStyle = "line"
    ends: Sequence[tuple[Number, Number]] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.label!r} has {len(self.x)} abscissae and {len(self.y)} ordinates")


@dataclass(frozen=True)
class Panel:
    """One plot: axes with their units, and curves."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = True
    whole_x: bool = False  # the abscissa counts: ticks at integers only
    x_names: tuple[str, ...] = ()  # names at the abscissae 0, 1, ...
    lowest: float = 1e-18  # smaller values on a log axis, zero above all, are drawn here
    share: bool = False  # the ordinate is a share: it reaches from 0 to 1, however close the values are


@dataclass(frozen=True)
class Evidence:
    """The result of a measurement; names of planned runs in `missing` make the verdict undecided."""

    checks: tuple[Check, ...]
    panels: tuple[Panel, ...] = ()
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("a measurement must check something")


@dataclass(frozen=True)
class Prediction:
    """A sentence that can turn out false.

    Args:
        name: name of the claim or experiment.
        statement: the prediction in one or two sentences.
        source: where it comes from; `zoo claims --paper` finds a claim by the arXiv numbers in it.
        refuted_by: the measurement that would refute it.
        slogan: a sentence that is often said and is false: its checks are its consequences, and it is refuted as
            predicted when all of them fail.
    """

    name: str
    statement: str
    source: str
    refuted_by: str
    slogan: bool = field(default=False, kw_only=True)

    @property
    def papers(self) -> tuple[str, ...]:
        """The arXiv numbers in the source."""
        return tuple(re.findall(r"\b\d{4}\.\d{4,5}\b", self.source))

    def judge(self, evidence: Evidence) -> Status:
        """Return the verdict that the evidence compels."""
        found = {check.verdict for check in evidence.checks}
        if evidence.missing:
            return "undecided"
        if self.slogan:
            return "not refuted" if "holds" in found else "refuted as predicted" if found == {"fails"} else "undecided"
        return "fails" if "fails" in found else "holds" if found == {"holds"} else "undecided"


@dataclass(frozen=True)
class Verdict:
    """A prediction after its measurement."""

    claim: Prediction
    evidence: Evidence
    status: Status
    seconds: float

    @property
    def as_expected(self) -> bool:
        """True for a claim that holds and for a slogan that is refuted."""
        return self.status in ("holds", "refuted as predicted")


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """Return 0 if all is as expected, 1 if a claim fails or a slogan is not refuted, 3 if some are only undecided."""
    against = [verdict.status for verdict in verdicts if not verdict.as_expected]
    return 3 if against and set(against) == {"undecided"} else int(bool(against))
