"""`pytest --zoo-check package.module:Class`: each property of the contract is a test.

A pytest plugin, which pytest finds once the package is installed (entry point pytest11). Nothing of torch is imported
before a target is checked.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add = parser.getgroup("zoo", "the contract of sequence mixers").addoption
    what = "check this mixer as `zoo check` does, a test for each property: package.module:Class or file.py:Class"
    add("--zoo-check", action="append", default=[], metavar="TARGET", help=f"{what}; repeatable")
    add("--zoo-check-d-model", type=int, default=16, metavar="N", help="width of its input; default 16")
    add("--zoo-check-option", action="append", default=[], metavar="NAME=VALUE", help="option of its class; repeatable")


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the tests of each target to those that were collected."""
    for target in config.option.zoo_check:
        items += Target.from_parent(session, name=target).collect()


class Target(pytest.Collector):
    """A mixer that is checked; its module is made when the first property is."""

    def collect(self) -> list[pytest.Item]:
        """Return a test for each property."""
        from zoo.check import properties

        return [Holds.from_parent(self, name=each.name, checked=each) for each in properties()]

    @cached_property
    def subject(self) -> Any:
        """The subject of `zoo.check`.

        Raises:
            ValueError: a target, an option or a width that `zoo check` refuses.
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
        """Check the property; skip what does not apply.

        Raises:
            ConformanceError: it does not hold.
        """
        assert isinstance(self.parent, Target)
        finding = self.checked.find(self.parent.subject)
        if finding.verdict == "not_applicable":
            pytest.skip(finding.detail)
        finding.raise_if_failed()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """Return the finding, with the command that reproduces it, or the line of a target that cannot be checked."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Any, None, str]:
        """Return what is named in reports."""
        assert self.parent is not None
        return self.path, None, f"{self.parent.name}: {self.name}"
