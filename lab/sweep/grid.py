"""Expand an experiment into the grid of its runs, and check all of them before the first one starts.

train.py's parser (`lab.config.parse`) checks the values of flags, and each model is built once without storage.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.config import REGISTRIES, Command, Option, choose, declared, parse
from lab.config.layers import TOP
from lab.plain import flag_text
from lab.run.folder import RunFolder
from lab.sweep.experiment import Experiment
from lab.sweep.matching import matched, misses, sizes
from lab.sweep.tuning import Window
from zoo.errors import UsageError
from zoo.report.numbers import plain

_NAMING = ("config", "mixer", "task")
"""Flags that decide which options exist."""
NOT_SWEPT = {"run_dir", *TOP} - {"config"}
"""Flags that a sweep sets for each run, or that are useless for several runs."""


@dataclass(frozen=True)
class Configuration:
    """A run without its seed: checked flags, and the sizes of their model.

    Attributes:
        options: flags of train.py with their values, without seed and run_dir.
        command: the command that train.py parses from them.
        params: number of trainable parameters.
        state_bytes: bytes of the state after the task's sequence, batch of one.
    """

    options: dict[str, Any]
    command: Command
    params: int
    state_bytes: int | None

    @classmethod
    def of(cls, options: Mapping[str, Any], run_dir: Path) -> Configuration:
        """Parse the flags as train.py does, and build the task and, without storage, the model.

        Raises:
            UsageError: options that train.py rejects; the message describes the run.
        """
        try:
            command = parse([*arguments(options), f"--run_dir={run_dir}"])
            return cls(dict(options), command, **sizes(command.config))
        except (ValueError, TypeError) as error:
            raise UsageError(f"{label(options)}: {error}") from error

    def matched(self, match: Mapping[str, float], declared: Iterable[str], run_dir: Path) -> Configuration:
        """Return the configuration with widths that match the sizes; see `lab.sweep.matching.matched`.

        Raises:
            UsageError: no widths match; the message describes the run.
        """
        if not match:
            return self
        try:
            widths = matched(self.command.config, match, self.options, declared)
        except ValueError as error:
            raise UsageError(f"{label(self.options)}: {error}") from error
        found = Configuration.of(self.options | widths, run_dir)
        if missed := misses(found.command.config, match):
            raise UsageError(f"{label(found.options)}: cannot match {', '.join(missed)}: other options fix the width")
        return found

    @property
    def key(self) -> str:
        """A key that configurations with the same runs share."""
        return self._folder.name

    def folder(self, seed: int) -> RunFolder:
        """Return the folder of the run with a seed."""
        return replace(self._folder, seed=seed)

    @functools.cached_property
    def _folder(self) -> RunFolder:
        return RunFolder.of(self.command)


@dataclass
class GridPoint:
    """A configuration of the grid with its seeds and, with --tune, its trials.

    Attributes:
        configuration: the configuration without tuned options.
        seeds: seeds of its runs.
        tune_seeds: seeds of its trials.
        trials: the configuration with each combination of tuned values.
        left: the trials that no rung has dropped, best first.
        picked: the best trial, to be run on every seed; None until it is known.
        window: window of the learning rates; None until one is picked.
    """

    configuration: Configuration
    seeds: list[int]
    tune_seeds: Sequence[int] = ()
    trials: list[Configuration] = field(default_factory=list)
    left: list[Configuration] = field(default_factory=list)
    picked: Configuration | None = None
    window: Window | None = None

    @property
    def chosen(self) -> Configuration | None:
        """The configuration to run on every seed; None if a trial has not been picked."""
        return self.picked if self.trials else self.configuration


@dataclass(frozen=True)
class Grid:
    """The points of an experiment's grid, and notes on omitted options."""

    points: list[GridPoint]
    left_out: list[str]

    def __iter__(self) -> Iterator[tuple[Configuration, list[int]]]:
        return ((point.configuration, point.seeds) for point in self.points)

    @property
    def n_runs(self) -> int:
        """Number of runs of all configurations and seeds, without trials."""
        return sum(len(point.seeds) for point in self.points)


def expand(experiment: Experiment, run_dir: Path) -> Grid:
    """Return all runs of an experiment. Options that a mixer or task lacks are left out; equal runs are merged.

    For an option that takes a list, several values form one list, as in train.py, unless one of them is a list.

    Raises:
        UsageError: an option that no mixer of the grid has, values that train.py rejects, sizes that cannot be matched.
    """
    for key in {*experiment.flags, *experiment.tune} & NOT_SWEPT:
        raise UsageError(f"--{key} cannot be swept; use it with train.py")

    @functools.cache
    def declared_for(naming: tuple[str, ...]) -> tuple[dict[str, Option], dict[str, str]]:
        choice = choose(naming)
        return declared(choice.names, choice.entries, REGISTRIES), choice.names

    def declarations_of(cell: Mapping[str, Any], *more: str) -> tuple[dict[str, Option], dict[str, str]]:
        return declared_for(tuple(arguments({key: cell[key] for key in (*_NAMING, *more) if key in cell})))

    def of_size(options: Mapping[str, Any]) -> Configuration:
        there, _ = declarations_of(options, "mixer.pattern")
        return Configuration.of(options, run_dir).matched(experiment.match, there, run_dir)

    def trials_of(configuration: Configuration, options: Mapping[str, Any]) -> list[Configuration]:
        found: dict[str, Configuration] = {}
        for choice in product(experiment.tune) if experiment.tune else ():
            trial = Configuration.of(configuration.options | choice, run_dir)
            if experiment.match and misses(trial.command.config, experiment.match):  # a tuned option changes the size
                trial = of_size({**options, **choice})
            found.setdefault(trial.key, trial)
        return [*found.values()]

    cells = []
    for grid in experiment.grids:
        named = product({key: grid[key] for key in _NAMING if key in grid})
        options = [option for cell in named for option in declarations_of(experiment.fixed | cell)[0].values()]
        lists = {option.key for option in options if option.takes_list}
        whole = {
            key for key in lists & set(grid) if len(grid[key]) > 1 and not any(isinstance(v, list) for v in grid[key])
        }
        cells += [experiment.fixed | cell for cell in product(grid | {key: [grid[key]] for key in whole})]
    declarations = [declarations_of(cell, "mixer.pattern") for cell in cells]
    known = set().union(*(there for there, _ in declarations))
    left_out: dict[str, None] = {}
    points: dict[str, GridPoint] = {}
    by_options: dict[str, Configuration] = {}
    for cell, (there, names) in zip(cells, declarations, strict=True):
        options = {}
        for key, value in cell.items():
            group = key.partition(".")[0]
            if "." in key and group in REGISTRIES and key in known and key not in there:
                left_out[f"{key} is left out for {names[group]}, which has no such option"] = None
            elif key != "seed":
                options[key] = value
        text = json.dumps(options, sort_keys=True)
        if text not in by_options:
            by_options[text] = of_size(options)
        configuration = by_options[text]
        if configuration.key not in points:
            trials = trials_of(configuration, options)
            points[configuration.key] = GridPoint(configuration, [], trials=trials)
        point = points[configuration.key]
        seed = cell.get("seed", configuration.command.config["seed"])
        if not re.fullmatch(r"\d+", str(seed)):
            raise UsageError(f"seed must be whole numbers >= 0, such as 0,1,2 or 0-4, got {seed!r}")
        if int(seed) not in point.seeds:
            point.seeds.append(int(seed))
    return Grid([*points.values()], [*left_out])


def product(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each combination of the values as a mapping."""
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Return options as flags of train.py."""
    return [
        f"--{key}={flag_text(value)}"
        for key, values in options.items()
        for value in (values if key == "config" and isinstance(values, list) else [values])
    ]


def label(options: Mapping[str, Any]) -> str:
    """Describe a configuration: attention mixer.n_heads=2."""
    names = [str(options[key]) for key in REGISTRIES if key in options]
    rest = [f"{key}={plain(value)}" for key, value in options.items() if key not in REGISTRIES]
    return " ".join([*names, *rest]) or "the default"
