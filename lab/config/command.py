"""Parse a command line of train.py into the complete configuration of a run and the action to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.config.bind import bind, check_entries, constructor_defaults
from lab.config.help import describe, overview
from lab.config.layers import GROUPS, choose
from lab.config.objects import object_options, read_objects
from lab.config.options import declared
from lab.plain import flatten, nested, write_yaml


@dataclass(frozen=True)
class Command:
    """A parsed command line: the configuration of a run, and whether to train, test or replace it.

    Attributes:
        config: every option as plain data, nested as in YAML; the content of `config.yaml`.
        defaults: the configuration without --config files and flags.
        trainer: options of Lightning's Trainer, with classes instantiated.
        ckpt_path: checkpoint to resume from or to test.
        stop_at: the step, or the share of all steps, at which training pauses; not part of the run's identity.
        test_only: test without training.
        no_test: train and validate without using the test split.
        overwrite: replace an existing run.
    """

    config: dict[str, Any]
    defaults: dict[str, Any]
    trainer: dict[str, Any]
    ckpt_path: str | None = None
    stop_at: int | float | None = None
    test_only: bool = False
    no_test: bool = False
    overwrite: bool = False


def parse(argv: Sequence[str]) -> Command:
    """Parse a command line; for help or --print_config, print and exit with status 0.

    Layers of plain data, from low to high: constructors' defaults, configs/default.yaml, configs/mixer/NAME.yaml,
    configs/task/NAME.yaml, each --config file, flags.

    Raises:
        UsageError: an invalid command line or configuration file.
    """
    choice = choose(argv)
    if "help" in choice.helps:
        print(overview(), end="")
        raise SystemExit(0)
    options = declared(choice.names, choice.entries, choice.helps or GROUPS)
    if choice.helps:
        recipe = dict(value for layer in choice.shipped for value in flatten(layer.values, options))
        print(describe(options.values(), recipe), end="")
        raise SystemExit(0)
    check_entries(choice.entries, options)
    layers = [*choice.shipped, *choice.given]
    trainer = [item for layer in layers for item in layer.values.items() if item[0].startswith("trainer.")]
    classes = object_options(trainer, options)
    defaults = bind(choice.shipped, options, constructor_defaults(options), classes)
    config = nested(bind(choice.given, options, defaults, classes))
    defaults, objects = nested(defaults), {}
    if classes:
        default_objects, plain_objects, objects = read_objects(choice, classes)
        defaults["trainer"] |= default_objects
        config["trainer"] |= plain_objects
    if choice.print_config:
        print(write_yaml(config), end="")
        raise SystemExit(0)
    return Command(config, defaults, config["trainer"] | objects, **choice.action)
