"""Plain data: convert between nested mappings, dotted names, YAML and the text of a flag."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import UsageError


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
        *groups, name = key.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return tree


def read_mapping(path: str | Path, source: str | None = None) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; an empty file gives an empty mapping.

    Args:
        path: the file.
        source: the file's name in errors; default its path.

    Raises:
        UsageError: a file that is missing, unreadable or not a mapping.
    """
    source = str(path) if source is None else source
    try:
        values = read_yaml(Path(path).read_text(encoding="utf-8"), source)
    except OSError as error:
        raise UsageError(f"{source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source}: cannot be read: not UTF-8 text") from None
    values = {} if values is None else values
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"{source}: must contain a mapping of options, for example 'mixer: {{name: hybrid}}'")
    return values


def read_yaml(text: str, source: str) -> Any:
    """Read plain data from YAML, with 5e-3 as a number.

    Raises:
        UsageError: text that is not YAML, or a key twice in one mapping; the message includes the line.
    """
    import yaml

    try:
        _require_single_keys(yaml.compose(text, _yaml()[0]))
        return yaml.load(text, _yaml()[0])
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        where = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source}: not valid YAML{where}: {problem}") from None


def _require_single_keys(node: Any) -> None:
    """Raise a YAMLError if a mapping at or below a node repeats a key: a loader would silently keep the last value."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
                keys.add(key.value)
            _require_single_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _require_single_keys(each)


def write_yaml(values: Mapping[str, Any]) -> str:
    """Write YAML that `read_yaml` reads back: a word that looks like a number, such as 1e3, is quoted."""
    import yaml

    return yaml.dump(dict(values), Dumper=_yaml()[1], sort_keys=False)


@cache
def _yaml() -> tuple[Any, Any]:
    """Return a YAML loader and dumper with the same syntax for numbers."""
    import yaml

    loader: Any = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    number: Callable[[str], Any] = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")  # pyright: ignore[reportAssignmentType]
    for each in (loader, dumper):
        each.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return loader, dumper


def digest(content: Any, n_digits: int) -> str:
    """Return the first hexadecimal digits of the SHA-256 of plain data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:n_digits]


class Text(NamedTuple):
    """The value of a flag.

    Attributes:
        typed: the value as it was typed.
        readings: possible readings as plain data, likeliest first; the type of the option picks one.
    """

    typed: str
    readings: list[Any]


def read_text(typed: str) -> Text:
    """Read the value of a flag as YAML, as a word, and as a list without its brackets.

    >>> read_text("64,256").readings
    ['64,256', '64,256', [64, 256]]
    """
    import yaml

    readings: list[Any] = []
    for spelling in (typed, f"[{typed}]"):
        with suppress(yaml.YAMLError):
            readings.append(yaml.load(spelling, _yaml()[0]))
    return Text(typed, [*readings[:1], typed, *readings[1:]])


def flag_text(value: Any) -> str:
    """Write plain data as the value of a flag, which `read_yaml` reads back.

    Raises:
        TypeError: other data; the message lists the valid kinds.
    """
    return str(value) if isinstance(value, str | Path) else json.dumps(value, default=_as_plain)


def _as_plain(value: Any) -> Any:
    """Convert NumPy's numbers, and paths in a list."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"expected numbers, text, lists or mappings, got {value!r}")
