"""The command line of train.py, in two passes.

Pass one is argparse over names alone: which mixer, which task, which YAML files. It answers `--help` and a wrong name
without importing torch. Pass two declares, with jsonargparse, the options of the chosen mixer and task, of the model
and of Lightning's Trainer: their flags, types, defaults and help are the constructors' own.

Values are layered, later ones winning: the constructors' defaults, configs/default.yaml, configs/mixer/NAME.yaml,
configs/task/NAME.yaml, each --config file, flags.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from tasks.registry import TASKS
from zoo.naming import Registry
from zoo.registry import MIXERS

PROGRAM = "train.py"
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
REGISTRIES: dict[str, Registry] = {"mixer": MIXERS, "task": TASKS}
GROUPS = ("mixer", "task", "model", "trainer")
# What train.py fills in: from --mixer, --seed and the task's spec.
MODEL_FILLED = {"mixer", "vocab_size", "d_input", "n_outputs", "loss", "facts", "perplexity", "seed"}
DATA_FILLED = {"task", "batch_size", "seed"}
COMMA_LISTS = {"--task.test_lengths"}

HELP = """\
usage: train.py [--mixer NAME] [--task NAME] [--config FILE] [--FLAG VALUE ...]

Train one sequence mixer on one task, test the best checkpoint, print one table.

mixers:
{mixers}

tasks:
{tasks}

common flags:
  --d_model N  --n_layers N       size of the model          --lr X          peak learning rate
  --mixer.OPTION VALUE            see --mixer.help           --batch_size N  sequences per step
  --task.OPTION VALUE             see --task.help            --seed N        weights, data and order
  --task.n_train N (n_val, n_test)  number of examples       --run_dir DIR   where runs are kept
  --task.test_lengths 64,256,1024 test at further lengths    --task.fresh true  new examples for ever
  --trainer.OPTION VALUE          Lightning's own names: --trainer.max_steps 200, --trainer.accelerator gpu,
                                  --trainer.precision bf16-mixed; see --trainer.help
  --compile true                  train through torch.compile
  --config FILE                   YAML with the same names; may be repeated, later files win, flags win over files
  --ckpt_path FILE                resume from a checkpoint, or test it
  --test_only                     test a finished run, or --ckpt_path, without training
  --no_test                       leave the test split alone; the same command without it then tests the run
  --overwrite                     start anew where a run exists

more help:
  --mixer.help [NAME]  options of a mixer           --trainer.help  options of Lightning's Trainer
  --task.help [NAME]   options of a task            --model.help    options of the model and its training
  --print_config       print the complete YAML of this run and stop; --config reads it back

The same command goes on with a run that was stopped, however it was. Exit status: 0 done; 1 failed; 2 a command line
that cannot be followed; 75 stopped by SIGTERM or SIGUSR1, state saved: schedule the same command again; 130 Ctrl-C.

Values come from the constructors' defaults, then configs/default.yaml, configs/mixer/NAME.yaml, configs/task/NAME.yaml
(the recipe for that mixer and that task), then --config files, then flags; later ones win.

examples:
  train.py --mixer hybrid
  train.py --mixer attention --mixer.n_heads 2 --task needle --task.distance 64
  train.py --mixer hybrid --mixer.pattern '[diagonal_ssm, attention]' --mixer.attention.n_heads 2
  train.py --config my.yaml --seed 1
"""


class UsageError(ValueError):
    """A command line that cannot be followed; the message is one line that says what is valid."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))


@dataclass(frozen=True)
class Layer:
    """Values from one source, nested as in YAML; `source` names it in errors."""

    source: str
    values: dict[str, Any]

    def group(self, name: str) -> dict[str, Any]:
        """The values of one group; empty where the layer has none."""
        return self.values.get(name, {})

    def without(self, group: str, options: Iterable[str]) -> Layer:
        """The same layer without some options of a group."""
        kept = {key: value for key, value in self.group(group).items() if key not in set(options)}
        return Layer(self.source, self.values | {group: kept})


@dataclass(frozen=True)
class Choice:
    """What pass one found: names, layers from low to high, flags left for pass two, and what to do."""

    names: dict[str, str]
    shipped: list[Layer]
    user: list[Layer]
    flags: list[str]
    pattern: Any
    print_config: bool
    ckpt_path: str | None
    test_only: bool
    no_test: bool
    overwrite: bool


@dataclass(frozen=True)
class Command:
    """A run, complete.

    Attributes:
        config: every option as plain data, nested as in YAML; what `config.yaml` holds.
        defaults: the same without --config files and flags.
        trainer: options of Lightning's Trainer, with classes instantiated.
        ckpt_path: checkpoint to resume from or to test.
        test_only: test without training.
        no_test: train and validate, and leave the test split alone.
        overwrite: replace an existing run.
    """

    config: dict[str, Any]
    defaults: dict[str, Any]
    trainer: dict[str, Any]
    ckpt_path: str | None = None
    test_only: bool = False
    no_test: bool = False
    overwrite: bool = False


def parse(argv: Sequence[str]) -> Command:
    """Read the command line; prints and exits with status 0 where help or the configuration is asked for.

    Raises:
        UsageError: anything that cannot be followed.
    """
    choice = choose(argv)
    options = Options(choice)
    defaults = options.layered(options.choice.shipped)
    config = options.with_flags(choice.flags, options.layered(options.choice.user, defaults))
    if choice.print_config:
        print(options.parser.dump(config, skip_unset=False), end="")
        raise SystemExit(0)
    return Command(
        config=options.plain(config),
        defaults=options.plain(defaults),
        trainer=options.parser.instantiate(config).trainer.as_dict(),
        ckpt_path=choice.ckpt_path,
        test_only=choice.test_only,
        no_test=choice.no_test,
        overwrite=choice.overwrite,
    )


# Pass one: names and files


class _FirstPass(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _first_pass() -> argparse.ArgumentParser:
    first = _FirstPass(prog=PROGRAM, add_help=False, allow_abbrev=False)
    first.add_argument("-h", "--help", action="store_true")
    first.add_argument("--config", action="append", default=[])
    first.add_argument("--ckpt_path")
    for switch in ("print_config", "test_only", "no_test", "overwrite"):
        first.add_argument(f"--{switch}", action="store_true")
    for group in REGISTRIES:
        first.add_argument(f"--{group}", f"--{group}.name", dest=group)
        first.add_argument(f"--{group}.help", dest=f"{group}_help", nargs="?", const="")
    for group in ("model", "trainer"):
        first.add_argument(f"--{group}.help", dest=f"{group}_help", action="store_const", const="")
    first.add_argument("--mixer.pattern", dest="pattern")
    return first


def _switches() -> list[str]:
    """Flags of pass one that are no names of mixers and tasks: config, ckpt_path and so on."""
    flags = [flag.removeprefix("--") for action in _first_pass()._actions for flag in action.option_strings]
    return [flag for flag in flags if flag not in REGISTRIES and "." not in flag and not flag.startswith("-")]


def choose(argv: Sequence[str]) -> Choice:
    """Which mixer, task and YAML layers a command line means; imports neither torch nor jsonargparse.

    Raises:
        UsageError: unknown names, unreadable files.
    """
    known, flags = _first_pass().parse_known_args(list(argv))
    if known.help:
        print(HELP.format(mixers=_table(MIXERS), tasks=_table(TASKS)), end="")
        raise SystemExit(0)
    asked = {group: name for group in GROUPS if (name := getattr(known, f"{group}_help")) is not None}
    given = {group: name for group in REGISTRIES if (name := asked.get(group) or getattr(known, group)) is not None}
    given = _check_names(given)
    default, user = read_layer(CONFIGS / "default.yaml"), [read_layer(path, "--config ") for path in known.config]
    names: dict[str, str] = {}
    for layer in (default, *user):
        named = {group: layer.group(group)["name"] for group in REGISTRIES if "name" in layer.group(group)}
        names |= _check_names(named, layer.source)
    names |= given
    pattern = None if known.pattern is None else _registered(read_yaml(known.pattern, "--mixer.pattern"))
    recipe = _shipped("task", names["task"])
    if "mixer" not in given and not any("name" in layer.group("mixer") for layer in user):
        # A task that is made for one mixer names it in its recipe.
        names["mixer"] = recipe.group("mixer").get("name", names["mixer"])
    shipped = [default, _shipped("mixer", names["mixer"]), recipe]
    choice = Choice(
        names=names,
        shipped=[drop_other_names(layer, names) for layer in shipped],
        user=[drop_other_names(layer, names) for layer in user],
        flags=flags if known.pattern is None else [*flags, f"--mixer.pattern={json.dumps(pattern)}"],
        pattern=pattern,
        print_config=known.print_config,
        ckpt_path=known.ckpt_path,
        test_only=known.test_only,
        no_test=known.no_test,
        overwrite=known.overwrite,
    )
    for group in asked:
        print(Options(choice, only=group).parser.format_help(), end="")
        raise SystemExit(0)
    return choice


def _shipped(group: str, name: str) -> Layer:
    """The recipe that configs/ holds for a mixer or a task; empty where there is none."""
    path = CONFIGS / group / f"{name}.yaml"
    return read_layer(path) if path.is_file() else Layer(str(path), {})


def _table(registry: Registry) -> str:
    width = max(map(len, registry)) + 2
    return "\n".join(f"  {name:<{width}}{registry.summary(name)}" for name in registry)


def _check_names(names: Mapping[str, Any], source: str | None = None) -> dict[str, str]:
    """The registered names that these mean."""
    try:
        return {group: REGISTRIES[group].check(name) for group, name in names.items()}
    except ValueError as error:
        raise UsageError(error if source is None else f"{source}: {error}") from None


def _registered(value: Any) -> Any:
    """A mixer's options with each alias, its own and those in a pattern, replaced by the name that it means."""
    if isinstance(value, str):
        return MIXERS.check(value) if value in MIXERS else value
    if isinstance(value, list):
        return [_registered(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _registered(each) if key in ("name", "pattern") else each for key, each in value.items()}
    return value


def drop_other_names(layer: Layer, names: Mapping[str, str]) -> Layer:
    """The layer without its mixer group where that group names another mixer; likewise the task."""
    other = {group for group, name in names.items() if layer.group(group).get("name", name) != name}
    return Layer(layer.source, {key: value for key, value in layer.values.items() if key not in other})


def read_layer(path: str | Path, flag: str = "") -> Layer:
    """Values of one YAML file.

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
    for group in {*REGISTRIES, "trainer"} & values.keys():
        if isinstance(values[group], str) and group in REGISTRIES:
            values[group] = {"name": values[group]}
        values[group] = {} if values[group] is None else values[group]
        if not isinstance(values[group], dict):
            raise UsageError(f"{source}: {group} must be a mapping of options, got {values[group]!r}")
    if "mixer" in values:
        values["mixer"] = _registered(values["mixer"])
    return Layer(source, values)


def read_yaml(text: str, source: str) -> Any:
    """Plain data from YAML in which 5e-3 is a number, as it is for flags.

    Raises:
        UsageError: text that is not YAML; says where.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    number = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        where = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source}: not valid YAML{where}: {problem}") from None


# Pass two: options


class Options:
    """Flags and YAML keys of one mixer and one task, of the model that they meet in, and of the Trainer.

    Args:
        choice: what pass one found.
        only: declare one group alone, for its help.

    Raises:
        UsageError: a pattern of a hybrid that cannot be followed.
    """

    def __init__(self, choice: Choice, only: str | None = None) -> None:
        import jsonargparse

        self.choice = choice
        self.parser = jsonargparse.ArgumentParser(
            prog=PROGRAM, usage=argparse.SUPPRESS, add_help=False, exit_on_error=False
        )
        self.declared: list[str] = []
        self.members: list[str] = []
        declare = (self._declare_mixer, self._declare_task, self._declare_model, self._declare_trainer)
        for group, method in zip(GROUPS, declare, strict=True):
            if only in (None, group):
                method()

    def layered(self, layers: Iterable[Layer], base: Any = None) -> Any:
        """The configuration after `layers`, from low to high, over `base` (the constructors' defaults).

        Raises:
            UsageError: an unknown key or a bad value; names the layer.
        """
        for layer in layers:
            source = f"{layer.source}: " if layer.source else ""
            for key in _leaves(layer.values, self.declared):
                if key not in self.declared:
                    raise UsageError(f"{source}{self._unknown('key', key)}")
            values = layer.values
            if self.members:
                values = values | {"mixer": self._spread(layer.group("mixer"), base)}
            base = self._checked(source, self.parser.parse_object, values, namespace=base)
        return base

    def with_flags(self, flags: Sequence[str], base: Any) -> Any:
        """The configuration after `flags` over `base`.

        Raises:
            UsageError: an unknown flag or a bad value.
        """
        parts: dict[bool, list[str]] = {True: [], False: []}
        ours = False
        for flag in _with_lists(flags):
            if flag.startswith("--"):
                key = flag.removeprefix("--").split("=")[0].removesuffix("+")
                # Lightning's loggers and the like take options of their own: --trainer.logger.save_dir.
                if not any(key == name or key.startswith(f"{name}.") for name in self.declared):
                    raise UsageError(self._unknown("flag", key, "--"))
                ours = key.startswith("mixer.")
            parts[ours].append(flag)
        # The mixer's flags are one more layer, so that a hybrid's options are handed out by one rule.
        mixer = self._checked("", self.parser.parse_args, parts[True], defaults=False).as_dict()
        return self._checked("", self.parser.parse_args, parts[False], namespace=self.layered([Layer("", mixer)], base))

    def plain(self, config: Any) -> dict[str, Any]:
        """The configuration as plain data that YAML holds."""
        return read_yaml(self.parser.dump(config, skip_unset=False), "configuration")

    def _checked(self, source: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except argparse.ArgumentError as error:
            raise UsageError(source + _shortened(str(error))) from None

    def _unknown(self, kind: str, key: str, prefix: str = "") -> str:
        group, _, leaf = key.rpartition(".")
        names = [*REGISTRIES, *(_switches() if kind == "flag" else ())]
        names += [name for name in self.declared if not name.endswith(".name")]
        siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == group}
        # A forgotten group (n_heads for mixer.n_heads) is nearer than anything spelt alike.
        near = [name for name in names if name.endswith(f".{key}")]
        near += [siblings[name] for name in difflib.get_close_matches(leaf, siblings, 1)]
        near += difflib.get_close_matches(key, names, 1) if not (group and siblings) else []
        hint = f" (did you mean {prefix}{near[0]}?)" if near else ""
        if group and siblings:
            valid = f"see --{group}.help" if group == "trainer" else f"choose from: {', '.join(siblings.values())}"
        else:
            top = [name for name in names if "." not in name]
            valid = f"choose from: {', '.join([*top, 'mixer.*', 'task.*', 'trainer.*'])}"
        return f"unknown {kind} {prefix}{key}{hint}; {valid}"

    def _declare(self, title: str, target: type, prefix: str | None, skip: Iterable[str]) -> list[str]:
        group = self.parser.add_argument_group(title)
        names = group.add_class_arguments(target, prefix, as_group=False, skip={*skip}, instantiate=False)
        self.declared += names
        return names

    def _declare_name(self, group: str) -> None:
        self.parser.add_argument(f"--{group}.name", default=self.choice.names[group], help="set by --" + group)
        self.declared.append(f"{group}.name")

    def _declare_mixer(self) -> None:
        name = self.choice.names["mixer"]
        self._declare_name("mixer")
        own = self._declare(f"mixer {name}", MIXERS[name], "mixer", {"d_model"})
        self._default("mixer", name)
        if "mixer.pattern" in own:
            self._declare_members(own)

    def _default(self, prefix: str, name: str) -> None:
        """What a mixer's name means besides its class."""
        self.parser.set_defaults({f"{prefix}.{key}": value for key, value in MIXERS.entry(name).options.items()})

    def _declare_members(self, own: list[str]) -> None:
        entries = self._layout()
        self.members = list(dict.fromkeys(entry["name"] for entry in entries))
        taken = {"d_model"} | {key.removeprefix("mixer.") for key in own}
        for member in self.members:
            bare = self._declare(f"of every member that has it, as in {member}", MIXERS[member], "mixer", taken)
            taken |= {key.removeprefix("mixer.") for key in bare}
            for action in self.parser._actions:
                if action.dest in bare:
                    action.default = argparse.SUPPRESS
        for member in self.members:
            self._declare(f"of {member} alone", MIXERS[member], f"mixer.{member}", {"d_model"})
            self._default(f"mixer.{member}", member)
        for entry in entries:
            self.layered([Layer("mixer.pattern", {"mixer": {entry.pop("name"): entry}})])

    def _spread(self, options: Mapping[str, Any], base: Any) -> dict[str, Any]:
        """One layer's options of a hybrid, bare ones handed to the members, so that a higher layer wins in any form."""
        from zoo.mixers.hybrid import Hybrid

        rest = dict(options)
        own = {key: rest.pop(key) for key in ("name", "pattern") if key in rest}
        spread = {entry.pop("name"): entry for entry in Hybrid.distribute(self.members, rest)}
        if base is not None and "pattern" not in own:
            own["pattern"] = [
                entry
                if isinstance(entry, str)
                else {k: v for k, v in entry.items() if k not in spread.get(entry["name"], {})}
                for entry in base.mixer.pattern
            ]
        return own | spread

    def _layout(self) -> list[dict[str, Any]]:
        """The hybrid's pattern; values that layers below it hold for mixers it has not are dropped."""
        from zoo.mixers.hybrid import Hybrid

        layers = [*self.choice.shipped, *self.choice.user]
        mixer = MIXERS[self.choice.names["mixer"]]
        pattern, n_below = inspect.signature(mixer).parameters["pattern"].default, 0
        for i, layer in enumerate(layers):
            if "pattern" in layer.group("mixer"):
                pattern, n_below = layer.group("mixer")["pattern"], i
        if self.choice.pattern is not None:
            pattern, n_below = self.choice.pattern, len(layers)
        if not isinstance(pattern, list | tuple) or not all(isinstance(entry, str | dict) for entry in pattern):
            raise UsageError(
                f"mixer.pattern must be a list of mixers, such as [selective_ssm, attention], got {pattern!r}"
            )
        try:
            entries = Hybrid.distribute(pattern, {})
        except ValueError as error:
            raise UsageError(f"mixer.pattern: {error}") from None
        absent = MIXERS.keys() - {entry["name"] for entry in entries}
        layers[:n_below] = [layer.without("mixer", absent) for layer in layers[:n_below]]
        n_shipped = len(self.choice.shipped)
        self.choice = replace(self.choice, shipped=layers[:n_shipped], user=layers[n_shipped:])
        return entries

    def _declare_task(self) -> None:
        from tasks.datamodule import TaskDataModule

        name = self.choice.names["task"]
        self._declare_name("task")
        self._declare(f"task {name}", TASKS[name], "task", set())
        self._declare("examples", TaskDataModule, "task", DATA_FILLED)

    def _declare_model(self) -> None:
        from zoo.training import SequenceModule

        self._declare("model and training", SequenceModule, None, MODEL_FILLED)
        run = self.parser.add_argument_group("run")
        run.add_argument("--batch_size", type=int, default=64, help="sequences per step")
        run.add_argument("--seed", type=int, default=0, help="decides the weights, the data and their order")
        run.add_argument("--run_dir", type=str, default="runs", help="folder that holds the runs")
        run.add_argument(
            "--figures_every",
            type=int | None,
            default=None,
            help="figures of each layer's operator, spectrum and gradient every so many steps; "
            "at the end alone when absent, never for 0",
        )
        self.declared += ["batch_size", "seed", "run_dir", "figures_every"]

    def _declare_trainer(self) -> None:
        from lightning.pytorch import Trainer

        self._declare("Lightning's Trainer", Trainer, "trainer", set())


def _with_lists(flags: Sequence[str]) -> Iterator[str]:
    """The flags, with a comma list after those that take one as YAML: 64,256 is [64,256]."""
    for before, flag in pairwise(["", *flags]):
        name, equals, value = flag.partition("=")
        if before in COMMA_LISTS and not flag.startswith("["):
            yield f"[{flag}]"
        elif name in COMMA_LISTS and equals and not value.startswith("["):
            yield f"{name}=[{value}]"
        else:
            yield flag


def _shortened(message: str) -> str:
    """What jsonargparse says of a bad value, in a line a person reads at once."""
    message = " ".join(message.split())
    for pattern, short in (
        (r'Parser key "([^"]+)":', r"\1:"),
        (
            r"Does not validate against any of the Union subtypes Subtypes: \[(.*)\] Errors: .* Given value: (.*)",
            r"expected one of \1; got \2",
        ),
        (r"Expected an? (.*)\. Got value: (.*)", r"expected \1; got \2"),
        (r"<class '(\w+)'>|typing\.", r"\1"),
        (r"Literal\[(.*?)\]", r"one of \1"),
        ("NoneType", "null"),
    ):
        message = re.sub(pattern, short, message)
    return message


def _leaves(values: Mapping[str, Any], declared: Iterable[str], prefix: str = "") -> Iterator[str]:
    """Dotted keys of nested values; what lies below a declared key is its value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in declared:
            yield from _leaves(value, declared, f"{key}.")
        else:
            yield key
