"""The cells of the leaderboard, each a mixer on a task: run one as a sweep of one configuration, and store its record.

A record is plain data:

    {"mixer": "lstm", "task": "mqar", "metric": "accuracy", "chance": 0.03, "lr": 0.01, "params": 50000,
     "state_bytes": 320, "window": {"octaves": 1.7, "at_least": false}, "shape": ..., "digest": ...,
     "runs": [{"seed": 0, "score": 0.7, "curve": {"300": 0.2, "600": 0.99}, "steps_to_90": 600, "converged": true,
               "stopped_early": true, "tokens_per_second": 3e4, "seconds": 9.9}, ...],
     "commits": [...], "machines": [...]}

"score" is the test score at the longest length; "curve" has validation scores at `BUDGETS` and at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from lab.build import build, find_leak, is_ours
from lab.config import parse
from lab.plain import digest, read_mapping
from lab.run.environment import machine_of
from lab.run.files import ENVIRONMENT
from lab.run.identity import deciding_options, given_options
from lab.run.metrics import at_lengths, number_at
from lab.run.record import Run, read_run
from lab.run.score import guess_level, score_of
from lab.sweep.command import Request
from lab.sweep.engine import Stop
from lab.sweep.experiment import Experiment, read_experiment
from lab.sweep.grid import arguments
from lab.sweep.sweep import Sweep
from lab.sweep.tuning import RATE
from zoo.errors import UsageError, unknown
from zoo.registry import MIXERS
from zoo.report.files import read_json
from zoo.targets import is_target, short

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "configs" / "leaderboard.yaml"
ALL = "all"
"""Value of --mixers that means all registered mixers."""

BUDGETS = (300, 600, 1200, 2400)
"""Steps at which a record keeps the validation score."""
OF_A_RUN = ("steps_to_90", "converged", "stopped_early", "tokens_per_second", "seconds")
"""Metrics of each run in a record, besides score and curve."""

Record: TypeAlias = dict[str, Any]
"""A finished cell, as stored in docs/leaderboard.json."""


@dataclass(frozen=True)
class Cell:
    """A mixer on a task: a sweep of one configuration.

    Attributes:
        task: name of the task's setting in the file.
        mixer: name of the mixer in tables.
        experiment: experiment with tuning and all seeds. Tables omit cells whose `shape` differs from the task's
            current one.
        digest: digest of everything that decides the results; if it has changed, the cell is run again.
    """

    task: str
    mixer: str
    experiment: Experiment
    digest: str

    @classmethod
    def of(cls, task: str, mixer: str, experiment: Experiment) -> Cell:
        """Return the cell of a mixer; the experiment need not contain that mixer.

        Raises:
            UsageError: options that train.py rejects.
        """
        of_mixer = next((grid for grid in experiment.grids if mixer in grid["mixer"]), experiment.grids[0])
        experiment = replace(experiment, grids=(of_mixer | {"mixer": [mixer]},))
        own = Path(mixer.rpartition(":")[0]) if is_target(mixer) else None
        # Your own file enters the digest by its text, not by its path.
        source = own.read_text(encoding="utf-8") if own and own.is_file() else None
        options = {flag: value for flag, (value, *_) in of_mixer.items() if flag != "seed"}
        config = deciding_options(parse(arguments(experiment.fixed | options | {"mixer": mixer})).config)
        decided = {key: value for key, value in given_options(config).items() if key not in ("seed", *experiment.tune)}
        content = [experiment.shape, decided | {"mixer.name": short(mixer)}, source]
        return cls(task, short(mixer), experiment, digest(content, 12))

    @property
    def seeds(self) -> list[int]:
        """The requested seeds."""
        return list(self.experiment.grids[0]["seed"])

    def missing(self, record: Record | None) -> list[int]:
        """Return the seeds that a record of the cell lacks; all of them if its configuration has changed."""
        there = {run["seed"] for run in record["runs"]} if record and record["digest"] == self.digest else ()
        return [seed for seed in self.seeds if seed not in there]


def task_names(file: Path = FILE) -> list[str]:
    """Return the tasks of the file, in order."""
    return list(read_mapping(file)["settings"])


def of_today(records: Iterable[Record]) -> list[Record]:
    """Return the records whose task has not changed since they were run."""
    shapes = {task: read_experiment(FILE, task).shape for task in task_names()}
    return [record for record in records if record["shape"] == shapes.get(record["task"])]


def read_cells(mixers: Sequence[str], tasks: Sequence[str], n_seeds: int | None, file: Path = FILE) -> list[Cell]:
    """Return the cells of these mixers and tasks, task by task.

    Args:
        mixers: registered names or targets; `ALL` for the registry, empty for the mixers of the file.
        tasks: settings of the file; empty for all.
        n_seeds: number of seeds, counted from 0; default the seeds of the file.
        file: file of an experiment, with a setting per task.

    Raises:
        UsageError: an unknown task or mixer, a mixer of your own that cannot be run, two mixers with one short name.
    """
    known = task_names(file)
    for task in tasks:
        if task not in known:
            raise UsageError(unknown("task of the leaderboard", task, known))
    names = list(dict.fromkeys(MIXERS.check(name) for each in mixers for name in (MIXERS if each == ALL else [each])))
    shown: dict[str, str] = {}
    for name in names:
        if (other := shown.setdefault(short(name), name)) != name:
            raise UsageError(f"{name} and {other} would share the row {short(name)}: rename a class")
    for name in names:  # checked once, not in every cell
        if is_ours(MIXERS[name]):
            continue
        task, model = build(parse([f"--mixer={name}"]).config)
        if leak := find_leak(model, task.spec.seq_len):
            raise UsageError(f"{leak}; the leaderboard compares causal mixers only")
    found = []
    for task in dict.fromkeys(tasks or known):
        experiment = read_experiment(file, task)
        if n_seeds is not None:
            experiment = experiment.overridden({"seed": list(range(n_seeds))})
        listed = [name for grid in experiment.grids for name in grid["mixer"]]
        found += [Cell.of(task, name, experiment) for name in names or listed]
    return found


def in_order(cells: Sequence[Cell], records: Mapping[tuple[str, str], Record]) -> list[Cell]:
    """Return the cells that lack seeds, empty ones first, in diagonals, so that rows and columns fill evenly."""
    mixers, tasks = list(dict.fromkeys(cell.mixer for cell in cells)), list(dict.fromkeys(cell.task for cell in cells))
    missing = [(cell, cell.missing(records.get((cell.mixer, cell.task)))) for cell in cells]

    def place(found: tuple[Cell, list[int]]) -> tuple[bool, int, int]:
        cell, seeds = found
        row, column = mixers.index(cell.mixer), tasks.index(cell.task)
        return len(seeds) < len(cell.seeds), (row - column) % max(len(mixers), len(tasks)), column

    return [cell for cell, seeds in sorted(missing, key=place) if seeds]


def run_cell(cell: Cell, record: Record | None, request: Request, stop: Stop) -> Record | None:
    """Run the missing seeds of a cell and return its record; None if stopped, or if all trials or runs failed.

    If there is a record of the same configuration, only the missing seeds are run, at its learning rate.

    Raises:
        UsageError: a size that cannot be matched, a model that cannot be built.
    """
    seeds, experiment = cell.missing(record), cell.experiment
    place = f"{cell.mixer}-{cell.digest}"
    kept = record if len(seeds) < len(cell.seeds) else None
    if kept is not None:
        experiment = replace(experiment.overridden({"seed": seeds, RATE: [kept["lr"]]}), tune={})
        place += "-more"
    sweep = Sweep.plan(replace(experiment, name=cell.task, setting=place), request)
    sweep.run(stop)
    if stop.soft.is_set() or sweep.unpicked:
        return None
    (point,) = sweep.grid.points
    configuration, entry = point.chosen or point.configuration, {"window": point.window}
    done = [seed for seed in seeds if sweep.metrics(configuration, [seed])]
    runs = [read_run(configuration.folder(seed).path, entry) for seed in done]
    metric = score_of((run.metrics for run in runs), "test")
    scored = [run for run in runs if number_at(run.metrics, "test", metric) is not None]
    return _record(cell, metric, scored, kept) if scored else None


def _record(cell: Cell, metric: str, runs: Sequence[Run], kept: Record | None) -> Record:
    """Return the record of a cell with these runs added: to the earlier record, or to a new one."""
    metrics, window = runs[0].metrics, runs[0].window
    base: Record = kept or {
        "mixer": cell.mixer,
        "task": cell.task,
        "metric": metric,
        "chance": guess_level(metric, metrics.get("chance")),
        "lr": runs[0].options[RATE],
        "window": window and {name: window[name] for name in ("octaves", "at_least")},
        "params": metrics["params"],
        "state_bytes": metrics.get("state_bytes"),
        "shape": cell.experiment.shape,
        "digest": cell.digest,
        "runs": [],
        "commits": [],
        "machines": [],
    }
    added: list[dict[str, Any]] = [
        {"seed": run.seed, "score": _score(run.metrics, metric), "curve": _thinned(run.metrics["curve"])}
        | {name: run.metrics.get(name) for name in OF_A_RUN}
        for run in runs
    ]
    environments = [read_json(run.folder / ENVIRONMENT) for run in runs]
    return base | {
        "runs": sorted(base["runs"] + added, key=lambda run: run["seed"]),
        "commits": sorted({*base["commits"], *(str(each["git"])[:9] for each in environments)}),
        "machines": sorted({*base["machines"], *map(machine_of, environments)}),
    }


def _score(metrics: Mapping[str, Any], metric: str) -> Any:
    lengths = at_lengths(metrics, metric)
    return lengths[max(lengths)] if lengths else number_at(metrics, "test", metric)


def _thinned(curve: Mapping[str, Any]) -> dict[str, Any]:
    last = max(curve, key=int)
    return {step: value for step, value in curve.items() if int(step) in BUDGETS or step == last}
