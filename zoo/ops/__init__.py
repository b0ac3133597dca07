"""The mathematics of the mixers, once each, as pure functions on tensors. Importing it imports nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.ops.scan import selective_scan

_HOMES = {"zoo.ops.scan": "selective_scan"}

__all__ = ["selective_scan"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
