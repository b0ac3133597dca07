"""The theory made measurable: operators, lag operators, head counts. Names are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.naming import lazy_names

if TYPE_CHECKING:
    from zoo.theory.lags import head_count, head_count_bound, lag_operators
    from zoo.theory.operator import Interaction, NotAffineError, interaction
    from zoo.theory.teacher import balanced_teacher

__all__ = [
    "Interaction",
    "NotAffineError",
    "balanced_teacher",
    "head_count",
    "head_count_bound",
    "interaction",
    "lag_operators",
]

_HOMES = {
    "Interaction": "zoo.theory.operator",
    "NotAffineError": "zoo.theory.operator",
    "balanced_teacher": "zoo.theory.teacher",
    "head_count": "zoo.theory.lags",
    "head_count_bound": "zoo.theory.lags",
    "interaction": "zoo.theory.operator",
    "lag_operators": "zoo.theory.lags",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
