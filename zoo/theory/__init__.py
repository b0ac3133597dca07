"""Measurements on mixers: operators, lag operators, head counts, gradients. Names are imported on first use."""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
