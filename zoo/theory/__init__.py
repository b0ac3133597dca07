"""The theory made measurable: operators, lag operators, head counts. Names are imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.theory.lags import head_count, head_count_bound, lag_operators
    from zoo.theory.teacher import balanced_teacher

__all__ = [
    "balanced_teacher",
    "head_count",
    "head_count_bound",
    "lag_operators",
]

_HOMES = {
    "balanced_teacher": "zoo.theory.teacher",
    "head_count": "zoo.theory.lags",
    "head_count_bound": "zoo.theory.lags",
    "lag_operators": "zoo.theory.lags",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
