"""Nested mappings of plain data, and the dotted names of their values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nest values by dotted name as YAML does: {"mixer.n_heads": 4} gives {"mixer": {"n_heads": 4}}."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        put(tree, key.split("."), value)
    return tree


def put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value under these names, one within the other; missing mappings are made."""
    *groups, name = path
    for group in groups:
        tree = tree.setdefault(group, {})
    tree[name] = value
