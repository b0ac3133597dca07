"""Read an experiment from its YAML file: question, prediction, grid, checks and plots (docs/experiments.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from lab.experiments.probes import PROBES
from lab.plain import digest, read_mapping
from lab.sweep.experiment import Experiment, check_keys, read_experiment, values_of
from lab.sweep.grid import product
from zoo.errors import UnknownNameError, UsageError, unknown

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"

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
        question: the question, one sentence.
        source: source of the prediction.
        refuted_by: measurement that would refute it.
        probes: names of the probes whose columns its checks use.
        checks: the checks by key.
        plots: the panels of its figure.
        found: the result in a sentence or two with placeholders; not frozen.
        effect: name of the check that the page shows first.
        recipe: for a paper, how its runs are made and how they depart from the authors'.
        published: for a paper, its tables (`lab.experiments.papers`).
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
        sweep = self.experiment
        return {
            **{key: getattr(sweep, key) for key in ("prediction", "setting", "fixed", "tune", "rungs", "match")},
            **({"tune_seeds": sweep.tune_seeds} if sweep.tune_seeds else {}),
            "grids": [{key: values for key, values in grid.items() if key != "seed"} for grid in sweep.grids],
            "checks": self.checks,
            "probes": {name: PROBES[name].version for name in self.probes},
        }

    @cached_property
    def hash(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of the prediction; added seeds do not change it."""
        return digest(self.prediction, 16)


def list_specs(kind: str = "experiment") -> dict[str, str]:
    """Return the question of each experiment (or paper) by its name, without files that have nothing to judge.

    Raises:
        UsageError: a file that cannot be read.
    """
    files = {file.stem: read_mapping(file) for file in sorted((CONFIGS / kind).glob("*.yaml"))}
    return {name: text_of(file.get("question")) for name, file in files.items() if _has_judge(file)}


def _has_judge(file: Mapping[str, Any]) -> bool:
    """Return whether an experiment's file has checks or published scores."""
    return bool(file.get("checks") or file.get("published"))


def read_spec(name: str, setting: str | None = None, kind: str = "experiment") -> Spec:
    """Read the file of an experiment or a paper in one of its settings, by default the file's default.

    Raises:
        UnknownNameError: there is no such experiment or paper.
        UsageError: an unreadable file, an unknown key or probe, a wrong combination of keys.
    """
    file = CONFIGS / kind / f"{name}.yaml"
    experiment = read_experiment(file, setting) if file.is_file() else None
    if experiment is None or not _has_judge(experiment.judged):
        raise UnknownNameError(unknown(kind, name, list_specs(kind)))
    given = experiment.judged
    for probe in given["probes"] or ():
        if probe not in PROBES:
            raise UsageError(f"{file}: {unknown('probe', probe, PROBES)}")
    plots = given["plot"] if isinstance(given["plot"], list) else [given["plot"]] if given["plot"] else []
    for plot in plots:
        check_keys(f"{file}: plot", plot, PLOT_KEYS)
    checks: dict[str, Any] = given["checks"] or {}
    for key, check in checks.items():
        _check_check(f"{file}: check {key}", check, checks)
    for key in checks:
        _check_controls(f"{file}: check {key}", checks, [key])
    texts = {key: text_of(given[key]) for key in ("question", "source", "refuted_by", "found", "effect", "recipe")}
    kept = {"checks": checks, "plots": plots, "published": given["published"] or ()}
    return Spec(experiment, **texts, probes=tuple(given["probes"] or ()), **kept)


def _check_check(source: str, check: Any, others: Mapping[str, Any]) -> None:
    """Check the keys of a check and of its controls."""
    check_keys(source, check, KEYS)
    for kinds, least in ((REGIONS, 1), (QUANTITIES, 0)):
        if not least <= sum(key in check for key in kinds) <= 1:
            wanted = "exactly one" if least else "at most one"
            raise UsageError(f"{source}: give {wanted} of {', '.join(kinds)}")
    for key, (form, is_valid) in _FORMS.items():
        if key in check and not is_valid(check[key]):
            raise UsageError(f"{source}: {key} must be {form}, got {check[key]!r}")
    for column in re.findall(r"\{([^}]*)\}", str(check.get("name", ""))):
        if any(column not in cell for cell in cells_of(check)):
            raise UsageError(f"{source}: the name has {{{column}}}, but `each` does not give a value for it")
    for control in _controls(check):
        if isinstance(control, str):
            if control not in others:
                raise UsageError(f"{source}: {unknown('check', control, others)}")
        else:
            _check_check(f"{source}: control", control, others)
            if "each" in control:
                raise UsageError(f"{source}: an inline control cannot have `each`: make it a check, and give its key")


def _check_controls(source: str, checks: Mapping[str, Any], path: Sequence[str]) -> None:
    """Check that no check is among its own controls, directly or through others; `path` leads to its last check."""
    for control in _named_controls(checks[path[-1]]):
        if control in path:
            raise UsageError(f"{source}: a check cannot be its own control: {' > '.join([*path, control])}")
        _check_controls(source, checks, [*path, control])


def _named_controls(check: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the checks that are controls of a check or of its inline controls."""
    for control in _controls(check):
        yield from [control] if isinstance(control, str) else _named_controls(control)


def _controls(check: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    return (each for kind in CONTROLS for each in controls_of(check, kind))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _is_column(value: Any, factor: str) -> bool:
    """Return whether a value is a limit from a column, with a number under `factor`."""
    return isinstance(value, Mapping) and value.keys() == {"column", factor} and _is_number(value[factor])


def _is_limit(value: Any) -> bool:
    is_plain_column = isinstance(value, Mapping) and value.keys() == {"column"}
    return is_plain_column or _is_number(value) or _is_column(value, "times")


def _operands(n: int) -> _Form:
    return f"a list of {n} operands", lambda value: isinstance(value, list) and len(value) == n


def _fields(*required: str, optional: tuple[str, ...] = ()) -> _Form:
    valid = {*required, *optional}
    return (
        f"a mapping with {', '.join((*required, *(f'perhaps {name}' for name in optional)))}",
        lambda value: isinstance(value, Mapping) and {*required} <= value.keys() <= valid,
    )


_Form: TypeAlias = tuple[str, Callable[[Any], bool]]
_LIMIT: _Form = "a number, or {column: NAME, times: NUMBER}", _is_limit
_FORMS: dict[str, _Form] = {
    "at_least": _LIMIT,
    "at_most": _LIMIT,
    "near": (
        "[value, relative error], or {column: NAME, relative: NUMBER}",
        lambda value: _is_pair(value) or _is_column(value, "relative"),
    ),
    "within": ("[low, high]", _is_pair),
    "solved": ("a number", _is_number),
    "longer": ("a number", _is_number),
    "where": ("a mapping of columns to conditions", lambda value: isinstance(value, Mapping)),
    **{verb: _operands(n) for verb, n in {"diff": 2, "ratio": 2, "share": 3, "lead": 2, "sooner": 2}.items()},
    "spearman": _fields("x", "over", optional=("y", "missing")),
    "superiority": _fields("x", "learned", "over"),
    "classify": _fields("x", "learned", "over", "fit"),
    "variance_ratio": _fields("over"),
}
"""Valid values of the keys of a check: their description, and a function that recognises them."""


def verb_of(check: Mapping[str, Any]) -> str | None:
    """Return the one of `QUANTITIES` that a check measures; None for the metric itself."""
    return next((verb for verb in QUANTITIES if verb in check), None)


def controls_of(check: Mapping[str, Any], kind: str) -> list[str | Mapping[str, Any]]:
    """Return the controls of one kind: keys of other checks, or checks in place."""
    given = check.get(kind, [])
    return list(given) if isinstance(given, list) else [given]


def cells_of(check: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the conditions of each cell of a check with `each`; without it, a single empty cell."""
    each = check.get("each", {})
    for grid in each if isinstance(each, list) else [each]:
        yield from product({column: values_of("each", column, values) for column, values in grid.items()})


def text_of(value: Any) -> str:
    """Return a text of a file on one line; empty for null."""
    return " ".join(str(value or "").split())
