"""Loops that numba compiles, run as the Python they are written in: there an index past an array's end raises."""

from __future__ import annotations

from types import ModuleType

import pytest


def run_as_python(monkeypatch: pytest.MonkeyPatch, loops: ModuleType, **sizes: int) -> None:
    """Replace the compiled functions of `loops` by their source, and sizes of blocks by some that tests fill."""
    for name, value in list(vars(loops).items()):
        if hasattr(value, "py_func"):
            monkeypatch.setattr(loops, name, value.py_func)
    for name, size in sizes.items():
        monkeypatch.setattr(loops, name, size)
