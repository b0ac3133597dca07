"""Properties: functions that yield outcomes, registered by the decorator `checks`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch import nn

from zoo.adapters.factories import Factory
from zoo.check.finding import Finding
from zoo.check.outcome import FailedError, NotApplicableError, Outcome, Outcomes, describe_error
from zoo.check.subject import Subject
from zoo.threads import threads

Topic = Literal["calls", "streaming", "padding", "parameters", "precision", "compilers", "operator", "measurements"]
"""Topics of properties, in the order of a report."""

Observe: TypeAlias = Callable[[Subject], Outcomes]

PROPERTIES: list[Property] = []
"""All properties; filled by `checks` when the files of properties are imported."""


@dataclass(frozen=True)
class Property:
    """One property that a sequence mixer must have.

    Attributes:
        name: name in reports.
        topic: group in reports.
        summary: one sentence that describes the check or the measurement.
        observe: the function that performs it.
        measures: whether it only measures and never fails.
        slow: whether it takes seconds.
    """

    name: str
    topic: Topic
    summary: str
    observe: Observe
    measures: bool = False
    slow: bool = False

    def __str__(self) -> str:
        return self.name

    def check(self, target: nn.Module | Factory | str, *, d_model: int, **setting: Any) -> Finding:
        """Check one module; for the arguments and errors see `zoo.check.check`."""
        return self.find(Subject(target, d_model=d_model, **setting))

    def find(self, subject: Subject) -> Finding:
        """Return the finding about a subject: the first failed outcome, else the last outcome.

        We use one thread, because with tensors this small several threads mostly wait for each other.
        """
        seen: Outcome | None = None
        again = subject.command(self.name)
        try:
            with threads(1):
                for seen in self.observe(subject):
                    if not seen.passed:
                        break
        except NotApplicableError as reason:
            return Finding(self.name, "not_applicable", str(reason), again)
        except FailedError as failed:
            seen = failed.outcome
        except Exception as error:  # noqa: BLE001 - a foreign module may raise anything
            expected = self.summary.removeprefix("Check that ")
            seen = Outcome(False, "the module raised", describe_error(error), expected)
        assert seen is not None
        detail = f"{seen.did}: {seen.found}"
        if seen.passed:
            return Finding(self.name, "passed", detail, again, seen.measured)
        return Finding(self.name, "failed", f"{detail}; expected: {seen.expected}", again, seen.measured)


def checks(
    topic: Topic, *, measures: bool = False, slow: bool = False
) -> Callable[[Any], Callable[[Subject], Outcomes]]:
    """Register a function as a property, with the function's name and the first line of its docstring as summary."""

    def register(observe: Observe) -> Observe:
        name, summary = observe.__name__, (observe.__doc__ or "").partition("\n")[0].rstrip(".")
        PROPERTIES.append(Property(name, topic, summary, observe, measures, slow))
        return observe

    return register
