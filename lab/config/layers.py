"""Layers of plain data, nested as in YAML: what a file says, what flags say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lab.nested import flatten
from zoo.errors import UsageError


class Text(str):
    """A flag's value as it was typed; the type of its option decides what it means."""

    __slots__ = ()


@dataclass(frozen=True)
class Layer:
    """Values from one source, nested as in YAML.

    Attributes:
        source: names the layer in errors; flags, which name themselves, have none.
        values: of a file nested, of flags by dotted name.
    """

    source: str
    values: dict[str, Any]

    def group(self, name: str) -> dict[str, Any]:
        """Return the values of one group; empty where the layer has none."""
        return self.values.get(name, {})

    def without(self, group: str, options: Sequence[str] | set[str]) -> Layer:
        """Return the same layer without some options of a group."""
        kept = {key: value for key, value in self.group(group).items() if key not in options}
        return Layer(self.source, self.values | ({group: kept} if group in self.values else {}))

    def leaves(self, declared: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Return dotted names and values; what lies below a declared name is its value."""
        return flatten(self.values, declared)


def read_flags(
    argv: Sequence[str], switches: Sequence[str], others: list[str] | None = None
) -> list[tuple[str, Text | None]]:
    """Return names without dashes, each with its value: the part after `=`, or the next word unless that is a flag.

    Args:
        argv: the words of a command line; -h is --help.
        switches: names of flags that take no value.
        others: where words go that belong to no flag; default refused.

    Raises:
        UsageError: a word that belongs to no flag, a switch with a value.
    """
    flags: list[tuple[str, Text | None]] = []
    words = list(reversed(argv))
    while words:
        word = words.pop()
        word = "--help" if word == "-h" else word
        if not word.startswith("--"):
            if others is None:
                raise UsageError(f"unrecognized arguments: {word}")
            others.append(word)
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        if name in switches:
            if equals:
                raise UsageError(f"--{name} takes no value, got {value}")
            flags.append((name, None))
        elif equals or (words and not words[-1].startswith("--")):
            flags.append((name, Text(value if equals else words.pop())))
        else:
            flags.append((name, None))
    return flags


def read_layer(path: str | Path, flag: str = "") -> Layer:
    """Read the values of one YAML file.

    Args:
        path: the file.
        flag: what named it, for errors.

    Raises:
        UsageError: a file that is missing, unreadable or not a mapping.
    """
    source = f"{flag}{path}"
    try:
        values = read_yaml(Path(path).read_text(encoding="utf-8"), source)
    except OSError as error:
        raise UsageError(f"{source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source}: cannot be read: not UTF-8 text") from None
    values = {} if values is None else values
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"{source}: must hold a mapping of options, for example 'mixer: {{name: hybrid}}'")
    return Layer(source, values)


def read_yaml(text: str, source: str) -> Any:
    """Read plain data from YAML in which 5e-3 is a number, as it is for flags.

    Raises:
        UsageError: text that is not YAML; says where.
    """
    import yaml

    try:
        return yaml.load(str(text), _yaml()[0])  # the C loader takes no Text
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        where = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source}: not valid YAML{where}: {problem}") from None


def write_yaml(values: Mapping[str, Any]) -> str:
    """YAML that `read_yaml` reads back: a word that looks like a number, such as 1e3, stands in quotes."""
    import yaml

    return yaml.dump(dict(values), Dumper=_yaml()[1], sort_keys=False)


def flag_text(value: Any) -> str:
    """Write plain data as the value of a flag, which `read_yaml` reads back."""
    return value if isinstance(value, str) else json.dumps(value)


@cache
def _yaml() -> tuple[Any, Any]:
    """Return a loader and a dumper that agree on what a number looks like."""
    import yaml

    loader: Any = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    number: Callable[[str], Any] = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")  # pyright: ignore[reportAssignmentType]
    for each in (loader, dumper):
        each.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return loader, dumper
