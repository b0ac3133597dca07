"""Registries: tables of names whose objects are imported on first use, and entry points of installed packages.

Standard library only, because `train.py --help` prints these tables without importing torch.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from zoo.errors import UnknownNameError, UsageError, unknown
from zoo.extras import find_module
from zoo.targets import FORMS, absolute, is_target, load

E = TypeVar("E", bound=tuple[Any, ...])


class Registry(Mapping[str, Any], Generic[E]):
    """A table {name: ("module:attribute", one-line summary, ...)}; looking up a name imports its object.

    Args:
        kind: noun for the entries, for messages.
        entries: the table.
        aliases: {alias: name}; `check` resolves them, iteration omits them.
    """

    def __init__(self, kind: str, entries: Mapping[str, E], aliases: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._aliases = dict(aliases or {})

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self.entry(name)[0].partition(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._entries or name in self._aliases)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: object) -> str:
        """Return the registered name for a name or an alias; import nothing.

        Raises:
            UnknownNameError: no entry or alias has this name.
        """
        found = self._aliases.get(name, name) if isinstance(name, str) else name
        if not isinstance(found, str) or found not in self._entries:
            raise UnknownNameError(unknown(self.kind, name, self._entries))
        return found

    def entry(self, name: str) -> E:
        """Return the table's entry for `name`; import nothing."""
        return self._entries[self.check(name)]

    def summary(self, name: str) -> str:
        """Return the summary of `name`, with its aliases; import nothing."""
        name = self.check(name)
        others = [alias for alias, target in self._aliases.items() if target == name]
        return self.entry(name)[1] + (f" (or {', '.join(others)})" if others else "")


class OpenRegistry(Registry[E]):
    """A registry to which users can add names, by `add` or by entry points, and which also accepts targets.

    A target is `package.module:Class` or `path/file.py:Class`. Iteration covers the built-in names only; `own` has the
    added ones.

    Args:
        kind: see `Registry`.
        entries: the built-in names.
        aliases: see `Registry`.
        group: group of the entry points; read when a name is not built in, or when `own` is used.
        describe: returns the entry for a target.
        adopt: called with a target and its object; converts the object, or raises if it is unsuitable.
    """

    forms = FORMS
    """Accepted forms besides a name, for messages."""

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, E],
        aliases: Mapping[str, str] | None = None,
        *,
        group: str,
        describe: Callable[[str], E],
        adopt: Callable[[str, Any], Any],
    ) -> None:
        super().__init__(kind, entries, aliases)
        self._group, self._describe, self._adopt = group, describe, adopt
        self._own: dict[str, E] = {}
        self._objects: dict[str, Any] = {}
        self._looked = False

    @property
    def own(self) -> Mapping[str, E]:
        """The added entries; none is imported. An entry point whose name is taken is skipped with a warning."""
        if not self._looked:
            self._looked = True
            for name, target in entry_points(self._group):
                try:
                    self.add(name, self._describe(target))
                except UsageError as error:
                    warnings.warn(f"entry point {name} = {target} is ignored: {error}", stacklevel=2)
        return self._own

    def add(self, name: str, entry: E, found: Any = None) -> None:
        """Add a name for the object `found`, or for the target `entry[0]`, which is imported on first use.

        Raises:
            UsageError: the name is not an identifier, or is taken.
        """
        if not name.isidentifier():
            raise UsageError(
                f"{name!r} is not a valid name for a {self.kind}: use letters, digits and underscores, no digit first"
            )
        taken = None if super().__contains__(name) else self.own.get(name, entry)
        if taken is None or taken[0] != entry[0]:
            whose = "is built in" if taken is None else f"is already registered for {taken[0]}"
            raise UsageError(f"{self.kind} {name!r} {whose}: choose another name for {entry[0]}")
        self._own[name] = entry
        self._objects[name] = found

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or is_target(name) or name in self.own

    def __getitem__(self, name: str) -> Any:
        name = self.check(name)
        if name in self._entries:
            return super().__getitem__(name)
        found, target = self._objects.get(name), self.entry(name)[0]
        return self._adopt(target, load(target) if found is None else found)

    def check(self, name: object) -> str:
        if super().__contains__(name):
            return super().check(name)
        if isinstance(name, str) and (is_target(name) or name in self.own):
            return absolute(name)
        place, dot, last = str(name).rpartition(".")
        if dot and last[:1].isupper() and all(part.isidentifier() for part in (*place.split("."), last)):
            raise UnknownNameError(f"unknown {self.kind} {name!r} (did you mean '{place}:{last}'?)")
        raise UnknownNameError(f"{unknown(self.kind, name, [*self, *self.own])}; or give {self.forms}")

    def entry(self, name: str) -> E:
        name = self.check(name)
        if name in self._entries:
            return super().entry(name)
        return self._describe(name) if is_target(name) else self.own[name]


def entry_points(group: str) -> list[tuple[str, str]]:
    """Return name and target of each entry point in a group; import none of them."""
    # importlib.metadata is slow to import for --help, so we first check whether any package declares the group.
    files = (file for folder in sys.path for file in Path(folder).glob("*-info/entry_points.txt"))
    if not any(f"[{group}]" in file.read_text(encoding="utf-8", errors="replace") for file in files):
        return []
    from importlib import metadata

    return [(each.name, f"{each.module}:{each.attr}") for each in metadata.entry_points(group=group)]


def offered(group: str) -> dict[str, Any]:
    """Import the entry points of a group as {name: object}; skip those whose package is not installed."""
    found = {}
    for name, target in entry_points(group):
        module, _, attribute = target.partition(":")
        if (home := find_module(module)) is not None:
            found[name] = getattr(home, attribute)
    return found
