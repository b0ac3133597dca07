"""The contract of a sequence mixer as properties that any module can be checked for. Names are imported when used.

    report = zoo.check.check(module, d_model=64)   every property, as plain data
    zoo.check.properties()                         the properties, to parametrise a test suite

A new property is a function under the decorator `checks` of `zoo.check.property`, in the file of its topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.check.adapters import Adapter
    from zoo.check.checker import check, properties
    from zoo.check.finding import ConformanceError, Finding, Report
    from zoo.check.property import Property
    from zoo.check.subject import Subject

__all__ = ["Adapter", "ConformanceError", "Finding", "Property", "Report", "Subject", "check", "properties"]

_HOMES = {
    "zoo.check.adapters": "Adapter",
    "zoo.check.checker": "check properties",
    "zoo.check.finding": "ConformanceError Finding Report",
    "zoo.check.property": "Property",
    "zoo.check.subject": "Subject",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
