"""Bind layers of values to options: the value of each option after all layers, or one line on what is not valid."""

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
"""Flags of other programs, and what they are here."""
SEVERAL = "; several values are for sweep.py"


def constructor_defaults(options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the values that the constructors set, by dotted name."""
    return {key: each.default for key, each in options.items() if each.default is not NO_DEFAULT}


def bind(
    layers: Iterable[Layer], options: Mapping[str, Option], below: Mapping[str, Any], objects: Collection[str] = ()
) -> dict[str, Any]:
    """Return the value of each option, by dotted name, after `layers`, from low to high, over the values `below`.

    Args:
        layers: values by dotted name.
        options: by dotted name.
        below: the values under the lowest layer.
        objects: options that are bound elsewhere.

    Raises:
        UsageError: an unknown name or a bad value; names the layer.
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
                for member in option.members:  # a hybrid's bare option reaches every member that has it
                    bare[member] = fit(value, options[member].hint)
                if not option.members:
                    values[key] = fit(value, option.hint)
            except ValueError as error:
                if isinstance(value, Text) and value.typed[:1] in ("[", "{"):
                    read_yaml(value.typed, f"--{key}")  # perhaps a bracket is missing
                several = isinstance(value, Text) and re.fullmatch(r"\d+(-|\.\.)\d+|[^,\[{]+(,[^,]+)+", value.typed)
                raise UsageError(f"{source}{key}: {error}{SEVERAL if several else ''}") from None
        values = bare | values
        of_members = any(each.members for each in options.values())
        if of_members and "mixer.pattern" in config and "mixer.pattern" not in values:
            config["mixer.pattern"] = without(config["mixer.pattern"], values.keys())
        config |= values
    return config


def without(pattern: Sequence[Any], keys: Collection[str]) -> list[Any]:
    """Return a hybrid's pattern without the options that a higher layer sets in their members."""
    return [
        entry
        if isinstance(entry, str)
        else {name: value for name, value in entry.items() if f"mixer.{label(entry['name'])}.{name}" not in keys}
        for entry in pattern
    ]


def fit(value: Any, hint: Any) -> Any:
    """Return the value as a type takes it.

    >>> from lab.plain import read_text
    >>> fit(read_text("5"), str), fit(read_text("5"), list[int]), fit(5, float)
    ('5', [5], 5.0)

    Raises:
        ValueError: the type does not take the value; names what it takes.
    """
    from beartype.door import is_bearable

    for reading in value.readings if isinstance(value, Text) else [value]:
        for each in alternatives(hint):
            if isinstance(reading, list) and get_origin(each) in (list, Sequence):
                with suppress(ValueError):
                    return [fit(item, get_args(each)[0]) for item in reading]
            elif isinstance(reading, bool) and each not in (bool, Any) and get_origin(each) is not Literal:
                continue  # True is no integer
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
        UsageError: an option that the entry's member lacks, or a bad value.
    """
    for entry in entries:
        own = {f"mixer.{label(entry['name'])}.{key}": value for key, value in entry.items() if key != "name"}
        bind([Layer("mixer.pattern", own)], options, {})


def unknown_option(key: str, options: Mapping[str, Option], is_flag: bool) -> str:
    """Return one line for a misspelt option: the nearest valid one, and those of its group."""
    kind, prefix = ("flag", "--") if is_flag else ("key", "")
    group, _, leaf = key.rpartition(".")
    names = [*REGISTRIES, *(TOP if is_flag else ()), *(name for name in options if not name.endswith(".name"))]
    siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == group}
    # A forgotten group (n_heads for mixer.n_heads) is nearer than any similar spelling.
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
