"""Layers of plain data: the values from the recipes in configs/, the --config files and the flags.

Mixer and task names are resolved here, so that `--help` and an unknown name need no import of torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.plain import Text, read_mapping, read_text, read_yaml
from tasks.registry import TASKS
from zoo.errors import UsageError
from zoo.lookup import Registry
from zoo.registry import MIXERS
from zoo.targets import is_target, label

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
REGISTRIES: dict[str, Registry] = {"mixer": MIXERS, "task": TASKS}
GROUPS = ("mixer", "task", "model", "trainer")
HELPS = {f"{group}.help": group for group in GROUPS}
NAMING = {flag: group for group in REGISTRIES for flag in (group, f"{group}.name", f"{group}.help")}
"""Flags that choose a mixer or a task; the last one wins."""
ACTIONS = ("test_only", "no_test", "overwrite")
SWITCHES = ("print_config", *ACTIONS, "traceback")
VALUED = ("config", "ckpt_path", "stop_at")
TOP = (*VALUED, *SWITCHES)
"""Flags that are not options of a run."""


@dataclass(frozen=True)
class Layer:
    """Values from one source.

    Attributes:
        source: the layer's name in errors; empty for flags.
        values: values by dotted option name; a value may itself be nested.
    """

    source: str
    values: dict[str, Any]

    @property
    def names(self) -> dict[str, str]:
        """Names of the mixer and the task, if the layer sets them."""
        return {group: self.values[f"{group}.name"] for group in REGISTRIES if f"{group}.name" in self.values}

    def without(self, groups: Iterable[str]) -> Layer:
        """Return the layer without the values below these dotted names."""
        prefixes = tuple(f"{group}." for group in groups)
        kept = {key: value for key, value in self.values.items() if not f"{key}.".startswith(prefixes)}
        return Layer(self.source, kept)


@dataclass(frozen=True)
class Choice:
    """A command line, split into names, layers and actions.

    Attributes:
        names: names of the mixer and the task.
        shipped: the layers of configs/, from low to high.
        given: the layers of the --config files, then the layer of the flags.
        flags: the flags that set options, in order.
        entries: the complete pattern of a hybrid.
        helps: groups for which help is requested.
        print_config: whether to print the configuration and stop.
        action: the arguments of `Command` besides the configuration.
    """

    names: dict[str, str] = field(default_factory=dict)
    shipped: list[Layer] = field(default_factory=list)
    given: list[Layer] = field(default_factory=list)
    flags: list[tuple[str, Text | None]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    helps: list[str] = field(default_factory=list)
    print_config: bool = False
    action: dict[str, Any] = field(default_factory=dict)


def choose(argv: Sequence[str]) -> Choice:
    """Return the mixer, the task and the layers of a command line.

    Raises:
        UsageError: unknown names, unreadable files, a hybrid's pattern that is not valid.
    """
    flags = read_flags(argv, ("help", *SWITCHES))
    if any(name == "help" for name, _ in flags):
        # The overview does not list the options of your own class, so --help with such a class shows them instead.
        flags = [
            (f"{name}.help", each) for name, each in flags if name in REGISTRIES and each and is_target(each.typed)
        ]
        if not flags:
            return Choice(helps=["help"])
    for name, text in flags:
        if text is None and name in (*REGISTRIES, *VALUED):
            raise UsageError(f"--{name}: expected one argument")
        if text and HELPS.get(name, "mixer") not in REGISTRIES:
            raise UsageError(f"--{name} takes no value, got {text.typed}")
    typed = {name: text.typed for name, text in flags if text}
    named = _registered({group: typed[flag] for flag, group in NAMING.items() if flag in typed})
    options = [(name, text) for name, text in flags if name not in (*TOP, *HELPS, *NAMING)]
    action: dict[str, Any] = {name: True for name, _ in flags if name in ACTIONS}
    action |= {"ckpt_path": typed.get("ckpt_path"), "stop_at": _stop(typed["stop_at"]) if "stop_at" in typed else None}
    if "test_only" in action and (others := [name for name in ("no_test", "overwrite", "stop_at") if action.get(name)]):
        raise UsageError(f"--test_only trains nothing and tests: leave out --{others[0]}")
    values: dict[str, Any] = dict(options)
    default = _read(CONFIGS / "default.yaml")
    files = [_read(text.typed, f"--config {text.typed}") for name, text in flags if name == "config" and text]
    named = {group: name for layer in files for group, name in layer.names.items()} | named
    recipe = _shipped("task", (default.names | named)["task"])
    names = default.names | recipe.names | named  # a task made for one mixer sets the mixer in its recipe
    layers = [default, _shipped("mixer", names["mixer"]), recipe, *files]
    layers = [layer.without(group for group, name in layer.names.items() if name != names[group]) for layer in layers]

    entries, n_below = [], 0
    if _is_hybrid(names["mixer"]):
        if "mixer.pattern" in typed:
            values["mixer.pattern"] = read_yaml(typed["mixer.pattern"], "--mixer.pattern")
        given = [*(layer.values for layer in layers), values]
        for each in given:
            if "mixer.pattern" in each:
                each["mixer.pattern"] = _without_aliases(each["mixer.pattern"])
        entries, n_below = _pattern(names["mixer"], [each.get("mixer.pattern") for each in given])
    absent = [f"mixer.{name}" for name in MIXERS.keys() - {label(entry["name"]) for entry in entries}]
    layers = [*(layer.without(absent) for layer in layers[:n_below]), *layers[n_below:]]
    return Choice(
        names=names,
        shipped=layers[:3],
        given=[*layers[3:], Layer("", values)],
        flags=options,
        entries=entries,
        helps=[HELPS[name] for name, _ in flags if name in HELPS],
        print_config=("print_config", None) in flags,
        action=action,
    )


def _registered(names: Mapping[str, Any], source: str = "") -> dict[str, str]:
    """Resolve aliases of mixers and tasks to their registered names."""
    for group, name in names.items():
        if isinstance(name, str) and "," in name and all(each in REGISTRIES[group] for each in name.split(",")):
            raise UsageError(f"{source}--{group} {name}: to run several, use sweep.py")
    try:
        return {group: REGISTRIES[group].check(name) for group, name in names.items()}
    except ValueError as error:
        raise UsageError(f"{source}{error}") from None


def _without_aliases(pattern: Any) -> Any:
    """Return a hybrid's pattern with each alias replaced by its registered name."""
    if isinstance(pattern, str):
        return MIXERS.check(pattern) if pattern in MIXERS else pattern
    if isinstance(pattern, list):
        return [_without_aliases(entry) for entry in pattern]
    if isinstance(pattern, dict):
        return {key: _without_aliases(each) if key == "name" else each for key, each in pattern.items()}
    return pattern


def _read(path: str | Path, source: str = "") -> Layer:
    """Read a layer: flatten the options of mixer, task and trainer, resolve aliases, and accept `mixer: lstm`."""
    source = source or str(path)
    values: dict[str, Any] = {}
    for key, value in read_mapping(path, source).items():
        if key not in (*REGISTRIES, "trainer"):
            values[key] = value
            continue
        options = {"name": value} if isinstance(value, str) and key in REGISTRIES else {} if value is None else value
        if not isinstance(options, dict):
            raise UsageError(f"{source}: {key} must be a mapping of options, got {value!r}")
        values |= {f"{key}.{name}": each for name, each in options.items()}
    names = _registered(Layer(source, values).names, f"{source}: ")
    values |= {f"{group}.name": name for group, name in names.items()}
    return Layer(source, values)


def _shipped(group: str, name: str) -> Layer:
    """Return the recipe in configs/ for a mixer or a task; empty if there is none."""
    path = CONFIGS / group / f"{name}.yaml"
    return _read(path) if path.is_file() else Layer(str(path), {})


def _is_hybrid(mixer: str) -> bool:
    """Return whether a mixer is a hybrid: its option `pattern` lists other mixers."""
    from zoo.mixers.hybrid import Hybrid
    from zoo.mixers.parallel_hybrid import ParallelHybrid

    return issubclass(MIXERS[mixer], Hybrid | ParallelHybrid)


def _pattern(mixer: str, patterns: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the complete entries of a hybrid's pattern, and the number of layers below it.

    Args:
        mixer: name of the hybrid.
        patterns: pattern of each layer, from low to high; None if the layer sets none.

    Raises:
        UsageError: an invalid pattern.
    """
    from zoo.mixers.hybrid import Hybrid

    default = inspect.signature(MIXERS[mixer]).parameters["pattern"].default
    n_below = max((i for i, pattern in enumerate(patterns) if pattern is not None), default=0)
    pattern = default if patterns[n_below] is None else patterns[n_below]
    if not isinstance(pattern, list | tuple) or not all(isinstance(entry, str | dict) for entry in pattern):
        raise UsageError(f"mixer.pattern must be a list of mixers, such as [selective_ssm, attention], got {pattern!r}")
    try:
        return Hybrid.distribute(pattern, {}), n_below
    except ValueError as error:
        raise UsageError(f"mixer.pattern: {error}") from None


def _stop(text: str) -> int | float:
    """Read a number of steps, or a share of all steps."""
    value = read_yaml(text, "--stop_at")
    if (type(value) is int and value >= 1) or (type(value) is float and 0 < value <= 1):
        return value
    raise UsageError(f"--stop_at must be a number of steps such as 100, or a share of them such as 0.25, got {text}")


def read_flags(
    argv: Sequence[str], switches: Sequence[str], others: list[str] | None = None
) -> list[tuple[str, Text | None]]:
    """Split words into flags, each a name without dashes and a value: after `=`, or the next word if it is no flag.

    Args:
        argv: the words of a command line; -h is --help.
        switches: names of flags that take no value.
        others: list that receives the words that belong to no flag; by default they are errors.

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
                group = next((group for group, registry in REGISTRIES.items() if word in registry), None)
                raise UsageError(f"unrecognized argument: {word}" + (f"; give --{group} {word}" if group else ""))
            others.append(word)
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        if name in switches:
            if equals:
                raise UsageError(f"--{name} takes no value, got {value}")
            flags.append((name, None))
        elif equals or (words and not words[-1].startswith("--")):
            flags.append((name, read_text(value if equals else words.pop())))
        else:
            flags.append((name, None))
    return flags
