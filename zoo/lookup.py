"""Registries: literal tables `name -> ("module:attribute", one line of summary, ...)`, imported when a name is used.

Standard library only: `train.py --help` prints these tables without importing torch.
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
    """A literal table `name -> ("module:attribute", one line of summary, ...)`; looking a name up imports it.

    Args:
        kind: noun for the entries, used in messages.
        entries: the table.
        aliases: other names of entries; `check` translates them, and iteration leaves them out.
    """

    def __init__(self, kind: str, entries: Mapping[str, E], aliases: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._aliases = dict(aliases or {})

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self.entry(name)[0].partition(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: object) -> str:
        """Return the registered name that `name` means; imports nothing.

        Raises:
            UnknownNameError: no entry and no alias has this name.
        """
        found = self._aliases.get(name, name) if isinstance(name, str) else name
        if not isinstance(found, str) or found not in self._entries:
            raise UnknownNameError(unknown(self.kind, name, self._entries))
        return found

    def entry(self, name: str) -> E:
        """Return the line of the table for `name`; imports nothing."""
        return self._entries[self.check(name)]

    def summary(self, name: str) -> str:
        """Return the line that describes `name`, with its aliases; imports nothing."""
        name = self.check(name)
        others = [alias for alias, meant in self._aliases.items() if meant == name]
        return self.entry(name)[1] + (f" (or {', '.join(others)})" if others else "")


class OpenRegistry(Registry[E]):
    """A registry that takes targets too, and names that others add: by `add`, or as entry points of their packages.

    Iteration is over the built-in names only; `own` has the added ones.

    Args:
        kind: see `Registry`.
        entries: the built-in names.
        aliases: see `Registry`.
        group: group of the entry points. They are searched for a name that is not built in, or for a list of all.
        describe: the entry for a target.
        adopt: converts the object of a target, called with both; it refuses objects that do not fit.
    """

    forms = FORMS
    """The forms other than a name that may be given."""

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
        """The entries that were added; imports none of them. A name that is taken is left out with a warning."""
        if not self._looked:
            self._looked = True
            for name, target in entry_points(self._group):
                try:
                    self.add(name, self._describe(target))
                except UsageError as error:
                    warnings.warn(f"entry point {name} = {target} is left out: {error}", stacklevel=2)
        return self._own

    def add(self, name: str, entry: E, found: Any = None) -> None:
        """Add a name for the target that the entry begins with, or for the object that is given.

        Raises:
            UsageError: no identifier, or a name that something else has.
        """
        if not name.isidentifier():
            raise UsageError(f"{name!r} cannot name a {self.kind}: give letters, digits and underscores")
        taken = None if super().__contains__(name) else self.own.get(name, entry)
        if taken is None or taken[0] != entry[0]:
            whose = "is built in" if taken is None else f"already names {taken[0]}"
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
        raise UnknownNameError(f"{unknown(self.kind, name, [*self, *self.own])}; or give {self.forms}")

    def entry(self, name: str) -> E:
        name = self.check(name)
        if name in self._entries:
            return super().entry(name)
        return self._describe(name) if is_target(name) else self.own[name]


def entry_points(group: str) -> list[tuple[str, str]]:
    """Name and target of each entry point that installed packages declare in a group; imports none of them."""
    # importlib.metadata takes longer than train.py --help may: asked only where some package has the group.
    files = (file for folder in sys.path for file in Path(folder).glob("*-info/entry_points.txt"))
    if not any(f"[{group}]" in file.read_text(encoding="utf-8", errors="replace") for file in files):
        return []
    from importlib import metadata

    return [(each.name, f"{each.module}:{each.attr}") for each in metadata.entry_points(group=group)]


def offered(group: str) -> dict[str, Any]:
    """Return {name: object} of the entry points in a group, imported; without those whose package is not installed."""
    found = {}
    for name, target in entry_points(group):
        module, _, attribute = target.partition(":")
        if (home := find_module(module)) is not None:
            found[name] = getattr(home, attribute)
    return found
