"""What a command line names before any option is read: a mixer, a task, YAML files, and what to do.

Nothing here imports torch: `--help` and a wrong name are answered at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.config.layers import Layer, Text, UsageError, read_flags, read_layer, read_yaml
from tasks.registry import TASKS
from zoo.lookup import Registry
from zoo.registry import MIXERS
from zoo.targets import is_target, label

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
REGISTRIES: dict[str, Registry] = {"mixer": MIXERS, "task": TASKS}
GROUPS = ("mixer", "task", "model", "trainer")
SWITCHES = ("print_config", "test_only", "no_test", "overwrite")
TOP = ("config", "ckpt_path", "stop_at", *SWITCHES)
"""Flags that are no options of a run."""


@dataclass(frozen=True)
class Choice:
    """What a command line names.

    Attributes:
        names: of mixer and task.
        shipped: the layers of configs/, from low to high.
        given: the --config files, then the flags.
        flags: of options, in their order.
        entries: the complete pattern of a hybrid, set by `with_members`.
        helps: groups whose help is asked for.
        switches: those that are set.
        ckpt_path: checkpoint to resume from or to test.
        stop_at: where training stops for now.
    """

    names: dict[str, str]
    shipped: list[Layer]
    given: list[Layer]
    flags: list[tuple[str, Text | None]]
    helps: list[str]
    switches: set[str]
    ckpt_path: str | None
    stop_at: int | float | None = None
    entries: tuple[dict[str, Any], ...] = ()


def choose(argv: Sequence[str]) -> Choice:
    """Return which mixer, task and layers a command line means.

    Raises:
        UsageError: unknown names, unreadable files.
    """
    flags = read_flags(argv, ("help", *SWITCHES))
    if any(name == "help" for name, _ in flags):
        flags = [(f"{name}.help", value) for name, value in flags if name in REGISTRIES and is_target(value)]
        if not flags:
            return Choice({}, [], [], [], ["help"], set(), None)
    options, files, helps = [], [], []
    named: dict[str, Any] = {}
    ckpt_path = stop_at = None
    for name, value in flags:
        group = name.removesuffix(".help").removesuffix(".name")
        if name in {f"{each}.help" for each in GROUPS}:
            helps.append(group)
            if value is not None:
                if group not in REGISTRIES:
                    raise UsageError(f"--{name} takes no value, got {value}")
                named[group] = str(value)
        elif name in SWITCHES:
            continue
        elif name in ("config", "ckpt_path", "stop_at") or group in REGISTRIES:
            if value is None:
                raise UsageError(f"--{name}: expected one argument")
            if group in REGISTRIES:
                named.setdefault(group, str(value)) if group in helps else named.update({group: str(value)})
            elif name == "config":
                files.append(str(value))
            elif name == "stop_at":
                stop_at = _stop(value)
            else:
                ckpt_path = str(value)
        else:
            options.append((name, value))
    named = _check_names(named)
    default, *given = [_read(CONFIGS / "default.yaml"), *(_read(file, "--config ") for file in files)]
    names: dict[str, str] = {}
    for layer in (default, *given):
        in_layer = {group: layer.group(group)["name"] for group in REGISTRIES if "name" in layer.group(group)}
        names |= _check_names(in_layer, layer.source)
    names |= named
    recipe = _shipped("task", names["task"])
    if "mixer" not in named and not any("name" in layer.group("mixer") for layer in given):
        # A task that is made for one mixer names it in its recipe.
        names["mixer"] = recipe.group("mixer").get("name", names["mixer"])
    layers = [default, _shipped("mixer", names["mixer"]), recipe, *given]
    layers = [_without_other_names(layer, names) for layer in layers]
    return Choice(
        names=names,
        shipped=layers[:3],
        given=[*layers[3:], Layer("", dict(options))],
        flags=options,
        helps=helps,
        switches={name for name, _ in flags if name in SWITCHES},
        ckpt_path=ckpt_path,
        stop_at=stop_at,
    )


def _stop(text: str) -> int | float:
    """Read a number of steps, or a share of all steps."""
    value = read_yaml(text, "--stop_at")
    if (type(value) is int and value >= 1) or (type(value) is float and 0 < value <= 1):
        return value
    raise UsageError(f"--stop_at must be a number of steps such as 100, or a share of them such as 0.25, got {text}")


def with_members(choice: Choice) -> Choice:
    """Return the choice with its hybrid's pattern, and without what layers below the pattern say of mixers it has not.

    Raises:
        UsageError: a pattern that cannot be followed.
    """
    from zoo.mixers.hybrid import Hybrid

    parameters = inspect.signature(MIXERS[choice.names["mixer"]]).parameters
    if "pattern" not in parameters:
        return choice
    *files, flags = [*choice.shipped, *choice.given]
    if isinstance(text := flags.values.get("mixer.pattern"), Text):
        flags = Layer("", flags.values | {"mixer.pattern": _registered(read_yaml(text, "--mixer.pattern"))})
    patterns = [(layer.group("mixer").get("pattern"), i) for i, layer in enumerate(files)]
    patterns.append((flags.values.get("mixer.pattern"), len(files)))
    stated = [(pattern, i) for pattern, i in patterns if pattern is not None]
    pattern, n_below = stated[-1] if stated else (parameters["pattern"].default, 0)
    if not isinstance(pattern, list | tuple) or not all(isinstance(entry, str | dict) for entry in pattern):
        raise UsageError(f"mixer.pattern must be a list of mixers, such as [selective_ssm, attention], got {pattern!r}")
    try:
        entries = Hybrid.distribute(pattern, {})
    except ValueError as error:
        raise UsageError(f"mixer.pattern: {error}") from None
    absent = MIXERS.keys() - {label(entry["name"]) for entry in entries}
    layers = [*(layer.without("mixer", absent) for layer in files[:n_below]), *files[n_below:], flags]
    n_shipped = len(choice.shipped)
    return replace(choice, shipped=layers[:n_shipped], given=layers[n_shipped:], entries=tuple(entries))


def _shipped(group: str, name: str) -> Layer:
    """Return the recipe that configs/ holds for a mixer or a task; empty where there is none."""
    path = CONFIGS / group / f"{name}.yaml"
    return _read(path) if path.is_file() else Layer(str(path), {})


def _read(path: str | Path, flag: str = "") -> Layer:
    """Turn the groups into mappings (`mixer: lstm` is `mixer: {name: lstm}`) and replace aliases."""
    layer = read_layer(path, flag)
    for group in {*REGISTRIES, "trainer"} & layer.values.keys():
        value = layer.values[group]
        if isinstance(value, str) and group in REGISTRIES:
            value = {"name": value}
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise UsageError(f"{layer.source}: {group} must be a mapping of options, got {value!r}")
        layer.values[group] = _registered(value) if group == "mixer" else value
    return layer


def _check_names(names: Mapping[str, Any], source: str | None = None) -> dict[str, str]:
    """Return the registered names that these mean."""
    try:
        return {group: REGISTRIES[group].check(name) for group, name in names.items()}
    except ValueError as error:
        raise UsageError(error if source is None else f"{source}: {error}") from None


def _registered(value: Any) -> Any:
    """Return a mixer's options with each alias, its own and those in a pattern, replaced by the name that it means."""
    if isinstance(value, str):
        return MIXERS.check(value) if value in MIXERS else value
    if isinstance(value, list):
        return [_registered(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _registered(each) if key in ("name", "pattern") else each for key, each in value.items()}
    return value


def _without_other_names(layer: Layer, names: Mapping[str, str]) -> Layer:
    """Return the layer without its mixer group where that group names another mixer; likewise the task."""
    other = {group for group, name in names.items() if layer.group(group).get("name", name) != name}
    return Layer(layer.source, {key: value for key, value in layer.values.items() if key not in other})
