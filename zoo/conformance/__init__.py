"""The contract of a sequence mixer as a library of checks for any module. Names are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.naming import lazy_names

if TYPE_CHECKING:
    from zoo.conformance.catalogue import Property, properties
    from zoo.conformance.checker import check
    from zoo.conformance.finding import ConformanceError, Finding, Report
    from zoo.protocols.adapter import Adapter

__all__ = ["Adapter", "ConformanceError", "Finding", "Property", "Report", "check", "properties"]

_HOMES = {
    "zoo.conformance.catalogue": "Property properties",
    "zoo.conformance.checker": "check",
    "zoo.conformance.finding": "ConformanceError Finding Report",
    "zoo.protocols.adapter": "Adapter",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
