"""Names that resolve lazily: `name -> "module:attribute"` tables a person can read, imported only when used.

Standard library only: `train.py --help` prints these tables without importing torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any


class UnknownNameError(ValueError):
    """A name that is not in a registry; the message lists the valid ones and the nearest."""


def unknown(kind: str, name: object, valid: Iterable[str]) -> str:
    """One line for a misspelt name: what was given, the nearest valid name, all valid names."""
    valid = list(valid)
    near = difflib.get_close_matches(str(name), valid, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {kind} {name!r}{hint}; choose from: {', '.join(valid)}"


class Registry(Mapping[str, Any]):
    """A literal table `name -> ("module:attribute", one line of summary)`; looking a name up imports it."""

    def __init__(self, kind: str, entries: Mapping[str, tuple[str, str]]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        self.check(name)
        module, _, attribute = self._entries[name][0].partition(":")
        return getattr(import_module(module), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: object) -> None:
        """Raise UnknownNameError unless `name` is registered; imports nothing."""
        if name not in self._entries:
            raise UnknownNameError(unknown(self.kind, name, self._entries))

    def summary(self, name: str) -> str:
        """The line that describes `name`; imports nothing."""
        self.check(name)
        return self._entries[name][1]
