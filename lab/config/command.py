"""A command line, read: what to do with which configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.config.bind import Options
from lab.config.choice import choose, with_members
from lab.config.help import describe, overview
from lab.config.layers import write_yaml
from lab.nested import nested


@dataclass(frozen=True)
class Command:
    """A run, complete.

    Attributes:
        config: every option as plain data, nested as in YAML; what `config.yaml` holds.
        defaults: the same without --config files and flags.
        trainer: options of Lightning's Trainer, with classes instantiated.
        ckpt_path: checkpoint to resume from or to test.
        stop_at: the step, or the share of all steps, at which training stops for now; no part of the run's identity.
        test_only: test without training.
        no_test: train and validate, and do not use the test split.
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
    """Read the command line; prints and exits with status 0 where help or the configuration is asked for.

    Layers of plain data, from low to high: constructors' defaults, configs/default.yaml, configs/mixer/NAME.yaml,
    configs/task/NAME.yaml, each --config file, flags.

    Raises:
        UsageError: anything that cannot be followed.
    """
    choice = choose(argv)
    if "help" in choice.helps:
        print(overview(), end="")
        raise SystemExit(0)
    choice = with_members(choice)
    if choice.helps:
        options = Options(choice, choice.helps)
        recipe = dict(value for layer in choice.shipped for value in layer.leaves(options.declared))
        print(describe(options.declared.values(), recipe), end="")
        raise SystemExit(0)
    options = Options(choice)
    objects = options.objects(choice)
    defaults = options.layered(choice.shipped, options.defaults())
    config = nested(options.layered(choice.given, defaults))
    defaults = nested(defaults)
    defaults["trainer"] |= objects.defaults
    config["trainer"] |= objects.config
    if "print_config" in choice.switches:
        print(write_yaml(config), end="")
        raise SystemExit(0)
    return Command(
        config=config,
        defaults=defaults,
        trainer=config["trainer"] | objects.built,
        ckpt_path=choice.ckpt_path,
        stop_at=choice.stop_at,
        test_only="test_only" in choice.switches,
        no_test="no_test" in choice.switches,
        overwrite="overwrite" in choice.switches,
    )
