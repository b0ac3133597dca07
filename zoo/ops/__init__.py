"""The mathematics of the mixers, once each, as pure functions on tensors. Importing it imports nothing else."""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
