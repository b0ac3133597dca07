"""An experiment: flags of train.py with their values, read from a command line or a YAML file.

The keys of the file:

    name: staircase                   # default: the file's name
    prediction: one sentence
    changed: changes made after results had been seen, and why
    fixed: {task: ssm_teacher, trainer.max_steps: 300}     # flags of every run
    grid: {mixer.n_heads: [1, 2, 4], seed: 0-4}            # flags with several values; all combinations
    grids: [{...}, {...}]                                  # the union of several grids; grid then has shared flags
    tune: {lr: 1e-4..1e-2}            # or a list
    tune_seeds: 100,101               # see --tune_seeds
    rungs: [1/8, 1/4, 1/2]            # see --rungs
    match: {params: 1e6}
    score: [accuracy_macro, accuracy]                      # one number per model over all tasks (lab.sweep.scores)
    settings: {small: {...}, full: {...}}                  # overrides of any key above, chosen by --setting
    setting: full                                          # the default of --setting

Flags of train.py have no dashes here, and may be dotted or nested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.plain import digest, flatten, read_mapping, read_yaml
from lab.run.score import SCORES
from lab.sweep.matching import target
from lab.sweep.tuning import rungs_of
from zoo.errors import UsageError, unknown

JUDGED = (
    *("question", "source", "refuted_by", "probes", "checks", "plot", "found", "effect"),
    *("recipe", "published"),
)
"""Keys of an experiment's file that a sweep ignores and `lab.experiments.spec` reads."""
OF_A_SETTING = (
    *("prediction", "changed", "fixed", "grid", "grids", "tune", "tune_seeds", "rungs", "match", "score"),
    *JUDGED,
)
KEYS = ("name", *OF_A_SETTING, "settings", "setting")


@dataclass(frozen=True)
class Experiment:
    """Flags with their values, before they are checked.

    Attributes:
        name: name of the sweep's folder.
        grids: mappings of flags to lists of values; the runs are the union of the grids' products.
        fixed: flags of every run; the value of a grid takes precedence.
        tune: flags with values from which validation picks one for each configuration.
        tune_seeds: seeds for tuning only; default the first seed of the runs.
        rungs: shares of the steps after which the better half of the trials continues; default `usual_rungs`.
        match: target of "params" or "state" (bytes), for which each mixer's width is chosen.
        setting: the chosen setting of the file.
        prediction: the expected result, in words.
        changed: changes made after results had been seen, and why.
        score: test metrics, each averaged over all tasks for each model; tuning ranks trials by the first one.
        judged: the values of `JUDGED`, as read.
    """

    name: str
    grids: tuple[dict[str, list[Any]], ...] = ({},)
    fixed: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, list[Any]] = field(default_factory=dict)
    tune_seeds: tuple[int, ...] = ()
    rungs: tuple[float, ...] | None = None
    match: dict[str, float] = field(default_factory=dict)
    setting: str | None = None
    prediction: str = ""
    changed: str = ""
    score: tuple[str, ...] = ()
    judged: dict[str, Any] = field(default_factory=dict)

    @property
    def flags(self) -> set[str]:
        """The flags of `fixed` and `grids`, but not of `tune`."""
        return {*self.fixed, *(key for grid in self.grids for key in grid)}

    @property
    def shape(self) -> str:
        """A digest of everything that decides the results, except the grid."""
        parts = [self.fixed, self.match, self.tune, self.rungs, *([self.tune_seeds] if self.tune_seeds else [])]
        return digest(parts, 12)

    def overridden(self, flags: Mapping[str, list[Any]]) -> Experiment:
        """Return the experiment with these flags in place of its own."""

        def rest(values: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in values.items() if key not in flags}

        grids = tuple(rest(grid) | dict(flags) for grid in self.grids)
        return replace(self, grids=grids, fixed=rest(self.fixed), tune=rest(self.tune))


def read_experiment(path: str | Path, setting: str | None = None) -> Experiment:
    """Read the file of an experiment, in one of its settings.

    Raises:
        UsageError: an unreadable file, an unknown key, an unknown or missing setting, a flag without values.
    """
    values, source = read_mapping(path), str(path)
    check_keys(source, values, KEYS)
    settings = _mapping(source, "settings", values.pop("settings", None))
    default = values.pop("setting", None)
    setting = default if setting is None else setting
    over: dict[str, Any] = {}
    if setting is not None:
        if setting not in settings:
            raise UsageError(f"{source}: {unknown('setting', setting, settings or ['none: the file has no settings'])}")
        over = _mapping(source, f"settings.{setting}", settings[setting])
        check_keys(f"{source}: settings.{setting}", over, OF_A_SETTING)
    elif settings:
        raise UsageError(f"{source} has settings: give --setting {' or '.join(settings)}")
    if "grids" in over:
        values.pop("grid", None)
    fixed, shared, tune, match = (
        _flags(source, key, values.get(key)) | _flags(source, key, over.get(key))
        for key in ("fixed", "grid", "tune", "match")
    )
    values |= over
    listed, rungs, score = values.get("grids", [{}]), values.get("rungs"), values.get("score", [])
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{source}: grids must be a list of mappings of flags to values, got {listed!r}")
    grids = [_flags(source, "grids", grid) for grid in listed]
    if twice := [flag for flag in shared if any(flag in grid for grid in grids)]:
        raise UsageError(f"{source}: {twice[0]} has values in grid and in grids; leave one out")
    metrics = score if isinstance(score, list) else [score]
    if wrong := [metric for metric in metrics if metric not in SCORES]:
        raise UsageError(f"{source}: {unknown('score', str(wrong[0]), SCORES)}")

    def with_values(flags: Mapping[str, Any]) -> dict[str, list[Any]]:
        return {key: values_of(source, key, value) for key, value in flags.items()}

    experiment = Experiment(
        name=str(values.get("name") or Path(path).stem),
        grids=tuple(with_values(grid | shared) for grid in grids),
        fixed=fixed,
        tune=with_values(tune),
        tune_seeds=seeds_of(source, "tune_seeds", values["tune_seeds"]) if "tune_seeds" in values else (),
        rungs=None if rungs is None else rungs_of(f"{source}: rungs", rungs),
        match={key: target(key, value) for key, value in match.items()},
        setting=setting,
        score=tuple(metrics),
        judged={key: values.get(key) for key in JUDGED},
        **{key: " ".join(str(values.get(key) or "").split()) for key in ("prediction", "changed")},
    )
    if not experiment.flags:
        example = "'grid: {mixer: [attention]}'"
        raise UsageError(f"{source}: the grid is empty: give it flags and values, such as {example}")
    return experiment


def check_keys(source: str, values: Any, valid: Sequence[str]) -> None:
    """Check that values are a mapping with valid keys.

    Raises:
        UsageError: no mapping, or an unknown key.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{source}: expected a mapping, got {values!r}")
    for key in values:
        if key not in valid:
            raise UsageError(f"{source}: {unknown('key', key, valid)}")


def _mapping(source: str, key: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{source}: {key} must be a mapping, got {value!r}")
    return value


def _flags(source: str, key: str, value: Any) -> dict[str, Any]:
    """Flatten nested flags to dotted ones, and shorten mixer.name to mixer and task.name to task."""
    return {usual_flag(name): each for name, each in flatten(_mapping(source, key, value))}


def usual_flag(name: str) -> str:
    """Return mixer for mixer.name, and task for task.name; any other flag as it is."""
    return name.removesuffix(".name") if name in ("mixer.name", "task.name") else name


def values_of(source: str, flag: str, value: Any) -> list[Any]:
    """Return the values of a flag, given as a list or as text with commas.

    In both, 0-4 or 0..4 is a range with both ends; 1e-4..1e-2:5 means five log-spaced values, rounded to two digits
    between the ends; without a number there are two per decade.

    >>> values_of("", "seed", "0-2,7"), values_of("", "mixer.pattern", "[lstm,attention],[lstm]")
    ([0, 1, 2, 7], [['lstm', 'attention'], ['lstm']])
    >>> values_of("", "lr", "1e-4..1e-2"), values_of("", "lr", "1e-3..8e-3:4")
    ([0.0001, 0.00032, 0.001, 0.0032, 0.01], [0.001, 0.002, 0.004, 0.008])

    Raises:
        UsageError: no values, or a range whose ends do not ascend or that has a single value.
    """
    if isinstance(value, str):
        try:
            value = read_yaml(f"[{value.strip(' ,')}]", flag)
        except UsageError:
            raise UsageError(f"{flag}: give values with one comma between them, such as 1,2,4, got {value!r}") from None
    values = [each for item in (value if isinstance(value, list) else [value]) for each in _range(item, flag)]
    if not values:
        raise UsageError(f"{source}: {flag} has no values" if source else f"{flag} has no values")
    return values


def seeds_of(source: str, flag: str, value: Any) -> tuple[int, ...]:
    """Return the seeds of a flag, in the syntax of `values_of`.

    Raises:
        UsageError: a seed that is not a whole number.
    """
    seeds = values_of(source, flag, value)
    for seed in seeds:
        if type(seed) is not int or seed < 0:
            raise UsageError(f"{flag} must be whole numbers >= 0, such as 100,101 or 100-104, got {seed!r}")
    return tuple(dict.fromkeys(seeds))


def _range(value: Any, flag: str) -> list[Any]:
    if not isinstance(value, str):
        return [value]
    if ends := re.fullmatch(r"(\d+)(?:-|\.\.)(\d+)", value):
        return list(range(int(ends[1]), int(ends[2]) + 1))
    if not (ends := re.fullmatch(r"([\d.]+(?:[eE][-+]?\d+)?)\.\.([\d.]+(?:[eE][-+]?\d+)?)(?::(\d+))?", value)):
        return [value]
    try:
        low, high = float(ends[1]), float(ends[2])
        n = int(ends[3]) if ends[3] else 1 + max(1, round(2 * math.log10(high / low)))
        if not 0 < low < high or n < 2:
            raise ValueError
    except (ValueError, ZeroDivisionError, OverflowError):
        rule = "expected ascending ends above 0 and at least 2 values"
        raise UsageError(f"{flag}: {rule}, such as 1e-4..1e-2:5, got {value}") from None
    return [low, *(float(f"{low * (high / low) ** (i / (n - 1)):.2g}") for i in range(1, n - 1)), high]
