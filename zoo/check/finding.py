"""The result of a check: findings and the report that holds them, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from zoo.report.files import as_json

Verdict = Literal["passed", "failed", "not_applicable"]


class ConformanceError(AssertionError):
    """A property does not hold; the message is the finding, with the lines that reproduce it."""


class NotApplicableError(Exception):
    """A property does not apply to this module; the message says why, in one line."""


@dataclass(frozen=True)
class Observation:
    """The outcome of checking one property.

    Attributes:
        passed: whether the outcome is the expected one.
        did: what was done to the module.
        found: what came out, with its size.
        expected: what ought to have come out, with the size that is allowed.
        lines: Python that reproduces it, given `module` and `draw` (see `Subject.script`).
        measured: the numbers that it rests on, plain data.
    """

    passed: bool
    did: str
    found: str
    expected: str
    lines: Sequence[str] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One property of one module.

    Attributes:
        property: its name.
        verdict: passed, failed or not_applicable.
        detail: one line: what was done, what came out, what was expected, by how much.
        reproduce: Python that reproduces it; empty where nothing was run.
        measured: the numbers that it rests on, plain data.
    """

    property: str
    verdict: Verdict
    detail: str
    reproduce: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)

    def raise_if_failed(self) -> None:
        """Raise ConformanceError where the verdict is failed."""
        if self.verdict == "failed":
            raise ConformanceError(f"{self.property}: {self.detail}\n\n{self.reproduce}".rstrip())


@dataclass(frozen=True)
class Report:
    """All findings about one module.

    Attributes:
        target: what was checked.
        setting: d_model, seq_len, device, dtype, how it streams, how it takes padding, versions.
        findings: one for each property.
    """

    target: str
    setting: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that failed."""
        return tuple(finding for finding in self.findings if finding.verdict == "failed")

    def raise_if_failed(self) -> None:
        """Raise ConformanceError with every failed finding; do nothing if all properties hold."""
        if self.failed:
            found = "\n\n".join(f"{f.property}: {f.detail}\n{f.reproduce}".rstrip() for f in self.failed)
            raise ConformanceError(f"{self.target}: {len(self.failed)} of {len(self.findings)} fail\n\n{found}")

    def to_json(self) -> str:
        """Return the report as JSON text; a number that is not finite is null."""
        return as_json(asdict(self))


class FailedError(Exception):
    """An observation that ends a property early."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(observation.found)
        self.observation = observation


@contextmanager
def attempting(did: str, expected: str, lines: Sequence[str]) -> Iterator[None]:
    """Turn any exception of the block into a failed observation: an unknown module may raise anything."""
    try:
        yield
    except (NotApplicableError, FailedError):
        raise
    except Exception as error:
        raise FailedError(Observation(False, did, describe_error(error), expected, lines)) from error


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line of limited length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'...' if len(text) > 200 else ''}"
