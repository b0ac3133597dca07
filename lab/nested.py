"""Nested mappings of plain data, and the dotted names of their values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any


def flatten(values: Mapping[str, Any], whole: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield pairs of dotted name and value: {"mixer": {"n_heads": 4}} gives ("mixer.n_heads", 4).

    A list is a value, and so is a mapping under one of the dotted names in `whole`.
    """
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in whole:
            yield from flatten(value, whole, f"{key}.")
        else:
            yield key, value
