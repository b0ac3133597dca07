"""Bind layers of values to options: compute the final value of each option, or report an invalid one in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin

from lab.config.layers import REGISTRIES, TOP, Layer
from lab.config.options import NO_DEFAULT, Option, alternatives, is_plain, option_of, type_names
from lab.plain import Text, flatten, read_yaml
from zoo.errors import UsageError
from zoo.targets import label

MEANT = {
    "steps": "trainer.max_steps",
    "epochs": "trainer.max_epochs",
    "device": "trainer.accelerator",
    "gpus": "trainer.devices",
    "learning_rate": "lr",
}
"""Flags of other programs, with their names here."""
SEVERAL = "; for several values, use sweep.py"


def constructor_defaults(options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the default values of the constructors, by dotted name."""
    return {key: each.default for key, each in options.items() if each.default is not NO_DEFAULT}


def bind(
    layers: Iterable[Layer], options: Mapping[str, Option], below: Mapping[str, Any], objects: Collection[str] = ()
) -> dict[str, Any]:
    """Return the value of each option, by dotted name: the values `below`, overridden by each layer in turn.

    Args:
        layers: values by dotted name, from low to high precedence.
        options: options by dotted name.
        below: values that the lowest layer overrides.
        objects: options that `read_objects` binds instead.

    Raises:
        UsageError: an unknown name or an invalid value; the message includes the layer.
    """
    config = dict(below)
    for layer in layers:
        source = f"{layer.source}: " if layer.source else ""
        bare: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for key, value in flatten(layer.values, options):
            if option_of(key) in objects:
                continue
            if (option := options.get(key)) is None:
                raise UsageError(source + unknown_option(key, options, is_flag=not layer.source))
            if value is None and not layer.source:
                raise UsageError(f"--{key}: expected one argument")
            try:
                for member in option.members:  # a hybrid's bare option sets every member that has it
                    bare[member] = fit(value, options[member].hint)
                if not option.members:
                    values[key] = fit(value, option.hint)
            except ValueError as error:
                if isinstance(value, Text) and value.typed[:1] in ("[", "{"):
                    read_yaml(value.typed, f"--{key}")  # reports a syntax error, such as a missing bracket
                several = isinstance(value, Text) and re.fullmatch(r"\d+(-|\.\.)\d+|[^,\[{]+(,[^,]+)+", value.typed)
                raise UsageError(f"{source}{key}: {error}{SEVERAL if several else ''}") from None
        values = bare | values
        of_members = any(each.members for each in options.values())
        if of_members and "mixer.pattern" in config and "mixer.pattern" not in values:
            config["mixer.pattern"] = without(config["mixer.pattern"], values.keys())
        config |= values
    return config


def without(pattern: Sequence[Any], keys: Collection[str]) -> list[Any]:
    """Return a hybrid's pattern without the options of its members that a higher layer sets."""
    return [
        entry
        if isinstance(entry, str)
        else {name: value for name, value in entry.items() if f"mixer.{label(entry['name'])}.{name}" not in keys}
        for entry in pattern
    ]


def fit(value: Any, hint: Any) -> Any:
    """Convert a value to the type of an option.

    >>> from lab.plain import read_text
    >>> fit(read_text("5"), str), fit(read_text("5"), list[int]), fit(5, float)
    ('5', [5], 5.0)

    Raises:
        ValueError: the value does not fit; the message lists the valid types.
    """
    from beartype.door import is_bearable

    for reading in value.readings if isinstance(value, Text) else [value]:
        for each in alternatives(hint):
            if isinstance(reading, list) and get_origin(each) in (list, Sequence):
                with suppress(ValueError):
                    return [fit(item, get_args(each)[0]) for item in reading]
            elif isinstance(reading, bool) and each not in (bool, Any) and get_origin(each) is not Literal:
                continue  # bool is a subclass of int, but True is not a valid number
            elif is_plain(each) and is_bearable(reading, each):
                return reading
        if type(reading) is int and float in alternatives(hint):
            return float(reading)
    names = type_names(hint)
    expected = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    raise ValueError(f"expected {expected}; got {value.typed if isinstance(value, Text) else value}")


def check_entries(entries: Iterable[Mapping[str, Any]], options: Mapping[str, Option]) -> None:
    """Check the options in the entries of a hybrid's pattern.

    Raises:
        UsageError: an option that the entry's member lacks, or an invalid value.
    """
    for entry in entries:
        own = {f"mixer.{label(entry['name'])}.{key}": value for key, value in entry.items() if key != "name"}
        bind([Layer("mixer.pattern", own)], options, {})


def unknown_option(key: str, options: Mapping[str, Option], is_flag: bool) -> str:
    """Return an error of one line for an unknown option, with the closest valid name and the options of its group."""
    kind, prefix = ("flag", "--") if is_flag else ("key", "")
    group, _, leaf = key.rpartition(".")
    names = [*REGISTRIES, *(TOP if is_flag else ()), *(name for name in options if not name.endswith(".name"))]
    siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == group}
    # A forgotten group (n_heads for mixer.n_heads) is likelier than a misspelling.
    near = [MEANT[key]] if key in MEANT else [name for name in names if name.endswith(f".{key}")]
    near += [siblings[name] for name in difflib.get_close_matches(leaf, siblings, 1)]
    near += difflib.get_close_matches(key, names, 1) if not (group and siblings) else []
    hint = f" (did you mean {prefix}{near[0]}?)" if near else ""
    if group == "trainer":
        valid = "see --trainer.help"
    elif group and siblings:
        valid = f"choose from: {', '.join(siblings.values())}"
    else:
        top = [name for name in names if "." not in name]
        valid = f"choose from: {', '.join([*top, 'mixer.*', 'task.*', 'trainer.*'])}"
    return f"unknown {kind} {prefix}{key}{hint}; {valid}"
