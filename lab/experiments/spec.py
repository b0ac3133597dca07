"""An experiment as data: one YAML file with question, prediction, grid, checks and plots. Adding one is adding a file.

    question: How far does a second reflection per token carry words of S3?
    prediction: Two reflections are ahead of one by at least 0.2 in accuracy at four times the length of training.
    source: Siems et al., arXiv 2502.10297
    refuted_by: a lead of less than 0.2
    fixed, grid, grids, tune, rungs, match, settings: the runs, see `lab.sweep.grid`
    checks:
      lead: {at_least: 0.2, metric: accuracy@32, given: z2, diff: [{mixer.n_householder: 2}, {mixer.n_householder: 1}]}
      z2: {at_least: 0.9, metric: accuracy@32, where: {task.group: Z2}}
    plot: {x: length, y: accuracy, line: [task.group, mixer.n_householder]}
    effect: lead
    found: "A second reflection gains {{ check('reflections', 'lead').value | number(2) }}."  # after the runs

A check measures one quantity and puts it in a region. Its keys:

    at_least, at_most: a number, or {column: NAME, times: NUMBER} for the value of a column
    near: [value, relative error], or {column: NAME, relative: NUMBER}
    within: [low, high]
    metric: a column of the list of runs, such as accuracy, state_bytes, accuracy@32 (at that length), accuracy@4x (at
        four times the length of training), steps (to 90 %; all steps if it is never reached), speed (1 / steps to 90 %,
        0 if never), or a quotient of two: state_bytes / task.n_pairs. Default: accuracy.
    where: {column: value}; a list means any of them, {not: [...]} none of them, "< 0.1" and the like compare,
        `least` and `most` mean the least and the largest value among the runs that meet the other conditions
    each: {column: values} or a list of these: one check for each combination; those without runs are left out
    name: the check's name with `each`, such as "k={task.k}"; default: the key and the values

One measurement by seed is the default; instead:

    diff: [a, b]            a - b, by seed; a and b are further conditions for `where`
    ratio: [a, b]           a / b, by seed
    share: [a, b, c]        (a - b) / (a - c), by seed: how much of the way from a to c has b
    solved: 0.9             share of runs whose metric reaches this, by Clopper and Pearson
    spearman: {x, y, over}  rank correlation over cells, with medians over each cell's runs
    superiority: {x, learned, over}         probability that a cell with `learned` has the larger x
    classify: {x, learned, over, fit}       share of the cells outside `fit` that a limit on x, fitted there, tells
    variance_ratio: {over}  variance between the groups over the variance within

An operand such as a or b may be a number; `metric` in it replaces the check's. {take: min, over: COLUMNS} takes the
least of several cells for each seed (or max, median), with `learned: 0.9` of those cells whose median accuracy reaches
this; `take` without `over` gives one exact number over all runs. `over: mixer` means the mixer with all its options.

    given: other checks' keys, or checks in place: undecided unless they hold
    easier: the same, for a negative: what was learned after all refutes it, whatever its control
    longer: 4               a negative counts only if it is one after 4 times the training as well

A control in place inherits the check's metric, `where` and cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lab.experiments.probes import PROBES
from lab.plain import read_mapping
from lab.sweep.grid import JUDGED, Experiment, product, read_experiment, values_of
from zoo.errors import UnknownNameError, UsageError, unknown

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "configs" / "experiment"

REGIONS = ("at_least", "at_most", "near", "within")
QUANTITIES = ("diff", "ratio", "share", "solved", "spearman", "superiority", "classify", "variance_ratio")
CONTROLS = ("given", "easier")
KEYS = (*REGIONS, *QUANTITIES, *CONTROLS, "metric", "where", "each", "name", "longer", "take", "over", "learned")
PLOT_KEYS = ("x", "y", "line", "panel", "log", "where", "bound", "title", "names")


@dataclass(frozen=True)
class Spec:
    """An experiment in one of its settings.

    Attributes:
        experiment: the grid of its runs, for `sweep.py`.
        question: one sentence.
        source: where the prediction comes from.
        refuted_by: the measurement that would refute it.
        probes: names of the probes whose columns its checks use.
        checks: the checks by key.
        plots: the panels of its figure.
        found: what came out, a sentence or two with placeholders; no part of what is frozen.
        effect: name of the check that the page shows first.
    """

    experiment: Experiment
    question: str
    source: str
    refuted_by: str
    probes: tuple[str, ...]
    checks: Mapping[str, Mapping[str, Any]]
    plots: Sequence[Mapping[str, Any]]
    found: str
    effect: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.experiment.name

    @property
    def prediction(self) -> dict[str, Any]:
        """The frozen part as plain data: setting, grid without seeds, checks and versions of probes."""
        grids = [{key: values for key, values in grid.items() if key != "seed"} for grid in self.experiment.grids]
        return {
            "prediction": self.experiment.prediction,
            "setting": self.experiment.setting,
            "grids": grids,
            "fixed": self.experiment.fixed,
            "tune": self.experiment.tune,
            "rungs": self.experiment.rungs,
            "match": self.experiment.match,
            "checks": self.checks,
            "probes": {name: PROBES[name].version for name in self.probes},
        }

    @cached_property
    def hash(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of the prediction; added seeds do not change it."""
        plain = json.dumps(self.prediction, sort_keys=True, default=str)
        return hashlib.sha256(plain.encode()).hexdigest()[:16]


def list_specs() -> dict[str, str]:
    """Return the question of each experiment by its name; files without checks are sweeps, not experiments.

    Raises:
        UsageError: a file that cannot be read.
    """
    found = {file.stem: read_mapping(file) for file in sorted(EXPERIMENTS.glob("*.yaml"))}
    return {name: _text(values.get("question")) for name, values in found.items() if "checks" in values}


def read_spec(name: str, setting: str | None = None) -> Spec:
    """Read an experiment's file in one of its settings.

    Raises:
        UnknownNameError: there is no such experiment.
        UsageError: a file that cannot be read, a key, verb or probe that there is not.
    """
    file = EXPERIMENTS / f"{name}.yaml"
    if not file.is_file() or "checks" not in (values := read_mapping(file)):
        raise UnknownNameError(unknown("experiment", name, list_specs()))
    experiment = read_experiment(file, setting)
    over = values.get("settings", {}).get(setting) or {}
    given = {key: over.get(key, values.get(key)) for key in JUDGED}
    for probe in given["probes"] or ():
        if probe not in PROBES:
            raise UsageError(f"{file}: {unknown('probe', probe, PROBES)}")
    plots = given["plot"] if isinstance(given["plot"], list) else [given["plot"]] if given["plot"] else []
    for plot in plots:
        _check_keys(f"{file}: plot", plot, PLOT_KEYS)
    checks: dict[str, Any] = given["checks"] or {}
    for key, check in checks.items():
        _check_check(f"{file}: check {key}", check, checks)
    texts = {key: _text(given[key]) for key in ("question", "source", "refuted_by", "found", "effect")}
    return Spec(experiment, **texts, probes=tuple(given["probes"] or ()), checks=checks, plots=plots)


def _check_check(source: str, check: Any, others: Mapping[str, Any]) -> None:
    """Check the keys of a check and of the controls in it."""
    _check_keys(source, check, KEYS)
    for kinds, least in ((REGIONS, 1), (QUANTITIES, 0)):
        if not least <= sum(key in check for key in kinds) <= 1:
            wanted = "exactly one" if least else "at most one"
            raise UsageError(f"{source}: give {wanted} of {', '.join(kinds)}")
    for control in (each for kind in CONTROLS for each in controls_of(check, kind)):
        if isinstance(control, str):
            if control not in others:
                raise UsageError(f"{source}: {unknown('check', control, others)}")
        else:
            _check_check(f"{source}: control", control, others)


def _check_keys(source: str, values: Any, valid: Sequence[str]) -> None:
    if not isinstance(values, Mapping):
        raise UsageError(f"{source}: expected a mapping, got {values!r}")
    for key in values:
        if key not in valid:
            raise UsageError(f"{source}: {unknown('key', key, valid)}")


def controls_of(check: Mapping[str, Any], kind: str) -> list[str | Mapping[str, Any]]:
    """Return the controls of one kind: keys of other checks, or checks in place."""
    given = check.get(kind, [])
    return list(given) if isinstance(given, list) else [given]


def cells_of(check: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the conditions of each check that a mapping with `each` means; one empty cell without it."""
    each = check.get("each", {})
    for grid in each if isinstance(each, list) else [each]:
        yield from product({column: values_of("each", column, values) for column, values in grid.items()})


def _text(value: Any) -> str:
    return " ".join(str(value or "").split())
