"""The mathematics of the mixers as pure functions of tensors. Importing this package loads none of its modules."""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
