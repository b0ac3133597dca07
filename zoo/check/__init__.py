"""The contract of a sequence mixer as a library of checks for any module. Names are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.check.adapters.adapter import Adapter
    from zoo.check.catalogue import Property, properties
    from zoo.check.checker import check
    from zoo.check.finding import ConformanceError, Finding, Report

__all__ = ["Adapter", "ConformanceError", "Finding", "Property", "Report", "check", "properties"]

_HOMES = {
    "zoo.check.catalogue": "Property properties",
    "zoo.check.checker": "check",
    "zoo.check.finding": "ConformanceError Finding Report",
    "zoo.check.adapters.adapter": "Adapter",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
