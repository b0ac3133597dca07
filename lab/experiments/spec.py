"""An experiment as data: one YAML file with question, prediction, grid, checks and plots (docs/experiments.md)."""

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
from lab.sweep.experiment import JUDGED, Experiment, check_keys, read_experiment, values_of
from lab.sweep.grid import product
from zoo.errors import UnknownNameError, UsageError, unknown

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "configs" / "experiment"

REGIONS = ("at_least", "at_most", "near", "within")
QUANTITIES = (
    *("diff", "ratio", "share", "solved", "lead", "sooner"),
    *("spearman", "superiority", "classify", "variance_ratio"),
)
CONTROLS = ("given", "easier")
KEYS = (
    *REGIONS,
    *QUANTITIES,
    *CONTROLS,
    "metric",
    "where",
    "each",
    "name",
    "longer",
    "take",
    "over",
    "learned",
    "if_true",
)
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
        recipe: of a paper, how its runs are made and where they depart from the authors'.
        published: of a paper, its tables (`lab.experiments.papers`).
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
    recipe: str = ""
    published: Sequence[Mapping[str, Any]] = ()

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
            **({"tune_seeds": self.experiment.tune_seeds} if self.experiment.tune_seeds else {}),
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
    return {name: text_of(values.get("question")) for name, values in found.items() if "checks" in values}


def read_spec(name: str, setting: str | None = None) -> Spec:
    """Read an experiment's file in one of its settings.

    Raises:
        UnknownNameError: there is no such experiment.
        UsageError: a file that cannot be read, a key, verb or probe that there is not.
    """
    file = EXPERIMENTS / f"{name}.yaml"
    if not file.is_file() or "checks" not in read_mapping(file):
        raise UnknownNameError(unknown("experiment", name, list_specs()))
    return spec_of(file, setting)


def spec_of(file: Path, setting: str | None = None) -> Spec:
    """Read the file of an experiment or of a paper in one of its settings, by default the file's own.

    Raises:
        UsageError: a file that cannot be read, a key, verb or probe that there is not.
    """
    values, experiment = read_mapping(file), read_experiment(file, setting)
    over = values.get("settings", {}).get(experiment.setting) or {}
    given = {key: over.get(key, values.get(key)) for key in JUDGED}
    for probe in given["probes"] or ():
        if probe not in PROBES:
            raise UsageError(f"{file}: {unknown('probe', probe, PROBES)}")
    plots = given["plot"] if isinstance(given["plot"], list) else [given["plot"]] if given["plot"] else []
    for plot in plots:
        check_keys(f"{file}: plot", plot, PLOT_KEYS)
    checks: dict[str, Any] = given["checks"] or {}
    for key, check in checks.items():
        _check_check(f"{file}: check {key}", check, checks)
    texts = {key: text_of(given[key]) for key in ("question", "source", "refuted_by", "found", "effect", "recipe")}
    kept = {"checks": checks, "plots": plots, "published": given["published"] or ()}
    return Spec(experiment, **texts, probes=tuple(given["probes"] or ()), **kept)


def _check_check(source: str, check: Any, others: Mapping[str, Any]) -> None:
    """Check the keys of a check and of the controls in it."""
    check_keys(source, check, KEYS)
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


def controls_of(check: Mapping[str, Any], kind: str) -> list[str | Mapping[str, Any]]:
    """Return the controls of one kind: keys of other checks, or checks in place."""
    given = check.get(kind, [])
    return list(given) if isinstance(given, list) else [given]


def cells_of(check: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the conditions of each check that a mapping with `each` means; one empty cell without it."""
    each = check.get("each", {})
    for grid in each if isinstance(each, list) else [each]:
        yield from product({column: values_of("each", column, values) for column, values in grid.items()})


def text_of(value: Any) -> str:
    """Return a text of a file on one line; empty for none."""
    return " ".join(str(value or "").split())
