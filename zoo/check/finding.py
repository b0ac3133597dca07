"""Results of a check: findings and reports, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from zoo.report.files import as_json

Verdict = Literal["passed", "failed", "not_applicable"]


class ConformanceError(AssertionError):
    """A property does not hold; the message is the finding and the command that reproduces it."""


@dataclass(frozen=True)
class Finding:
    """The verdict on one property of a module.

    Attributes:
        property: name of the property.
        verdict: passed, failed or not_applicable.
        detail: one line: the test, its result, and for failures the expected result; or why it does not apply.
        reproduce: the command that checks this property again.
        measured: the measured numbers, as plain data.
    """

    property: str
    verdict: Verdict
    detail: str
    reproduce: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.property}: {self.detail}\n  {self.reproduce}"

    def raise_if_failed(self) -> None:
        """Raise ConformanceError if the verdict is failed."""
        if self.verdict == "failed":
            raise ConformanceError(str(self))


@dataclass(frozen=True)
class Report:
    """All findings about one module.

    Attributes:
        target: name of the module.
        setting: d_model, seq_len, options, device, dtype, seed, protocol, torch's version.
        findings: one finding per property.
    """

    target: str
    setting: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that failed."""
        return tuple(finding for finding in self.findings if finding.verdict == "failed")

    def raise_if_failed(self) -> None:
        """Raise ConformanceError with all failed findings, if any."""
        if self.failed:
            found = "\n\n".join(map(str, self.failed))
            raise ConformanceError(f"{self.target}: {len(self.failed)} of {len(self.findings)} fail\n\n{found}")

    def to_json(self) -> str:
        """Return the report as JSON text; a number that is not finite is null."""
        return as_json(asdict(self))
