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
    "Adapter": "zoo.protocols.adapter",
    "ConformanceError": "zoo.conformance.finding",
    "Finding": "zoo.conformance.finding",
    "Property": "zoo.conformance.catalogue",
    "Report": "zoo.conformance.finding",
    "check": "zoo.conformance.checker",
    "properties": "zoo.conformance.catalogue",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
