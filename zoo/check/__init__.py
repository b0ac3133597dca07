"""The contract of a sequence mixer as properties that any module can be checked for. Names are imported when used.

    report = zoo.check.check(module, d_model=64)   every property, as plain data
    zoo.check.properties()                         the properties, to parametrise a test suite

A new property is a function under the decorator `checks` of `zoo.check.property`, in the file of its topic.
"""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
