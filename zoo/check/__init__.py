"""Check any module against the contract of a sequence mixer, a list of properties. Names are imported on first use.

    report = zoo.check.check(module, d_model=64)   check all properties; the report is plain data
    zoo.check.properties()                         all properties, to parametrise a test suite

To add a property, write a function with the decorator `checks` of `zoo.check.property` in the file of its topic.
"""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
