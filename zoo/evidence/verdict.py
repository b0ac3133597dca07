"""Verdicts: a prediction, its measured evidence, and the resulting status."""

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
    """A curve of a plot; `ends` are optional intervals around its points."""

    label: str
    x: Sequence[Number]
    y: Sequence[Number]
    style: CurveStyle = "line"
    ends: Sequence[tuple[Number, Number]] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.label!r} has {len(self.x)} x values and {len(self.y)} y values")


@dataclass(frozen=True)
class Panel:
    """A plot: axes with units, and curves."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = True
    whole_x: bool = False  # x is a count: ticks at integers only
    x_names: tuple[str, ...] = ()  # names of x = 0, 1, ...
    lowest: float = 1e-18  # on a log axis, smaller values such as zero are drawn here
    share: bool = False  # y is a fraction: the axis spans 0 to 1


@dataclass(frozen=True)
class Evidence:
    """The result of a measurement; with planned runs in `missing`, the verdict is undecided."""

    checks: tuple[Check, ...]
    panels: tuple[Panel, ...] = ()
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("evidence needs at least one check")


@dataclass(frozen=True)
class Prediction:
    """A falsifiable prediction, or a slogan to refute.

    Args:
        name: name of the claim or experiment.
        statement: the prediction in one or two sentences.
        source: publication or derivation; `zoo claims --paper` finds claims by the arXiv numbers in it.
        refuted_by: the measurement that would refute it.
        slogan: whether it is a common but false statement. Its checks are consequences of the statement, and it is
            "refuted as predicted" if all of them fail.
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
        """Return the verdict that follows from the evidence."""
        found = {check.verdict for check in evidence.checks}
        if evidence.missing:
            return "undecided"
        if self.slogan:
            return "not refuted" if "holds" in found else "refuted as predicted" if found == {"fails"} else "undecided"
        return "fails" if "fails" in found else "holds" if found == {"holds"} else "undecided"


@dataclass(frozen=True)
class Verdict:
    """A prediction with its evidence and status."""

    claim: Prediction
    evidence: Evidence
    status: Status
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether a claim holds or a slogan is refuted."""
        return self.status in ("holds", "refuted as predicted")


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """Return 0 if all verdicts are as expected, 3 if the others are all undecided, else 1."""
    against = [verdict.status for verdict in verdicts if not verdict.as_expected]
    return 3 if against and set(against) == {"undecided"} else int(bool(against))
