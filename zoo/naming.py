"""Names that resolve lazily: `name -> "module:attribute"` tables a person can read, imported only when used; extras.

Standard library only: `train.py --help` prints these tables without importing torch.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose public names are imported when used (PEP 562).

    Args:
        package: the package's `__name__`.
        homes: module -> the public names that it defines, with spaces between them.
    """
    home_of = {name: module for module, defined in homes.items() for name in defined.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names


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


class UnknownNameError(ValueError):
    """A name that is not in a registry; the message lists the valid ones and the nearest."""


class UsageError(ValueError):
    """A command line that cannot be followed; the message is one line that says what is valid."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))


def unknown(kind: str, name: object, valid: Iterable[str], most: int | None = None) -> str:
    """Return one line for a misspelt name: what was given, the nearest valid one, and the first `most` valid ones."""
    valid = list(valid)
    lower = {each.lower(): each for each in reversed(valid)}
    near = difflib.get_close_matches(str(name).lower(), lower, 1)
    hint = f" (did you mean {lower[near[0]]!r}?)" if near else ""
    more = f" and {len(valid) - most} more" if most is not None and len(valid) > most else ""
    return f"unknown {kind} {name!r}{hint}; choose from: {', '.join(valid[:most])}{more}"


E = TypeVar("E", bound=tuple[Any, ...])


class Registry(Mapping[str, Any], Generic[E]):
    """A literal table `name -> ("module:attribute", one line of summary, ...)`; looking a name up imports it.

    Args:
        kind: what the names are of, for messages.
        entries: the table.
        aliases: other names that are taken for those of the table; `check` translates, and iteration leaves them out.
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
            UnknownNameError: it is neither registered nor an alias.
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


class MissingExtraError(ImportError):
    """A package of an extra is not installed."""


def require_extra(module: str, extra: str = "report") -> Any:
    """Import the module, of a package of an extra.

    Raises:
        MissingExtraError: it is not installed; the message says what to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(f"{package} is not installed: pip install 'mixer-zoo[{extra}]'") from error


def find_module(name: str) -> Any:
    """Return the module, or None where its package is not installed; what the package fails to import still raises."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
