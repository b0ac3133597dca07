"""`check`: check all properties of a module and return a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from torch import nn

from zoo.adapters.factories import Factory
from zoo.check import (  # noqa: F401 - importing them registers their properties
    calls,
    compilers,
    gradients,
    measurements,
    padding,
    parameters,
    precision,
    sizes,
    streaming,
)
from zoo.check.finding import Report
from zoo.check.property import PROPERTIES, Property, Topic
from zoo.check.subject import Subject
from zoo.errors import unknown


def properties(*names: str) -> tuple[Property, ...]:
    """Return all properties, or those with the given names, for example to parametrise a test.

    Raises:
        ValueError: an unknown property.
    """
    topics = get_args(Topic)
    found = {each.name: each for each in sorted(PROPERTIES, key=lambda each: topics.index(each.topic))}
    for name in names:
        if name not in found:
            raise ValueError(unknown("property", name, found))
    return tuple(found[name] for name in names or found)


def check(
    target: nn.Module | Factory | str,
    *,
    d_model: int,
    only: str | Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
    **setting: Any,
) -> Report:
    """Check a module against the contract of a sequence mixer.

    Args:
        target: a module, a class or function that makes one, or a name; see `zoo.check.Subject`.
        d_model: width of the input.
        only: name or names of properties to check; default all.
        progress: called with each property's name before its check.
        **setting: other arguments of `Subject`: seq_len, options, device, dtype, adapter, looks_ahead, seed, thorough.

    Returns:
        The report.

    Raises:
        ValueError: invalid sizes or options, a module that cannot be checked, an unknown property.
    """
    chosen = properties(*([only] if isinstance(only, str) else only))
    subject = Subject(target, d_model=d_model, **setting)
    findings = []
    for each in chosen:
        if progress is not None:
            progress(each.name)
        findings.append(each.find(subject))
    return Report(subject.name, subject.setting(), tuple(findings))
