"""A pytest plugin: `pytest --zoo-check package.module:Class` runs each property of the contract as a test.

pytest finds it by the entry point pytest11 of the installed package. torch is not imported before a target is checked.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add = parser.getgroup("zoo", "the contract of sequence mixers").addoption
    what = "run the checks of `zoo check` on this mixer, one test per property: package.module:Class or file.py:Class"
    add("--zoo-check", action="append", default=[], metavar="TARGET", help=f"{what}; repeatable")
    add("--zoo-check-d-model", type=int, default=16, metavar="N", help="width of its input; default 16")
    add("--zoo-check-option", action="append", default=[], metavar="NAME=VALUE", help="option of its class; repeatable")


@pytest.hookimpl(tryfirst=True)  # before -k and -m select tests
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the tests of each target to the collected tests."""
    for target in config.option.zoo_check:
        items += Target.from_parent(session, name=target).collect()


class Target(pytest.Collector):
    """A mixer to check; its module is built at the first test."""

    def collect(self) -> list[pytest.Item]:
        """Return a test per property."""
        from zoo.check import properties

        return [Holds.from_parent(self, name=each.name, checked=each) for each in properties()]

    @cached_property
    def subject(self) -> Any:
        """The subject of `zoo.check`.

        Raises:
            ValueError: a target, an option or a width that `zoo check` rejects.
        """
        from zoo.check import Subject
        from zoo.check.command import read_option

        options = dict(map(read_option, self.config.option.zoo_check_option))
        return Subject(self.name, d_model=self.config.option.zoo_check_d_model, options=options)


class Holds(pytest.Item):
    """One property of a target."""

    def __init__(self, *, checked: Any, **given: Any) -> None:
        super().__init__(**given)
        self.checked = checked

    def runtest(self) -> None:
        """Check the property; skip the test if it does not apply.

        Raises:
            ConformanceError: the property does not hold.
        """
        assert isinstance(self.parent, Target)
        finding = self.checked.find(self.parent.subject)
        if finding.verdict == "not_applicable":
            pytest.skip(finding.detail)
        finding.raise_if_failed()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """Return the finding with the command that reproduces it, or the error of a target that cannot be checked."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Any, None, str]:
        """Return path, line and title of the test for reports."""
        assert self.parent is not None
        return self.path, None, f"{self.parent.name}: {self.name}"
