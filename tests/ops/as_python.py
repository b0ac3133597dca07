"""Run numba-compiled loops as plain Python, where an index out of bounds raises an error."""

from __future__ import annotations

from types import ModuleType

import pytest


def run_as_python(monkeypatch: pytest.MonkeyPatch, loops: ModuleType, **sizes: int) -> None:
    """Replace the compiled functions of `loops` by plain Python, and its block sizes by the smaller `sizes`."""
    for name, value in list(vars(loops).items()):
        if hasattr(value, "py_func"):
            monkeypatch.setattr(loops, name, value.py_func)
    for name, size in sizes.items():
        monkeypatch.setattr(loops, name, size)
