"""Interchangeable sequence mixers behind one interface. Public names are imported on first use."""

from __future__ import annotations

from zoo.lazy import lazy_names

__version__ = "1.0.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
