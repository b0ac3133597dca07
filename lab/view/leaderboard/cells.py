"""The cells of the leaderboard, a mixer and a task each: which ones there are, which are missing, how one is run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.config import parse
from lab.experiments.judge import machine_of
from lab.plain import read_mapping
from lab.run.files import ENVIRONMENT
from lab.run.identity import deciding_options, given_options
from lab.run.metrics import number_at
from lab.score import guess_level, median_steps, merit, score_of
from lab.sweep.command import Request
from lab.sweep.engine import Stop
from lab.sweep.grid import Experiment, arguments, digest, read_experiment
from lab.sweep.sweep import Sweep
from lab.sweep.tuning import RATE
from zoo.errors import UsageError, unknown
from zoo.evidence.interval import FEWEST_SEEDS, of_median
from zoo.registry import MIXERS
from zoo.report.files import read_json
from zoo.targets import is_target, short

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "configs" / "leaderboard.yaml"
ALL = "all"
"""In place of names of mixers: the whole registry."""

Record = dict[str, Any]
"""A cell that was run, as docs/leaderboard.json has it."""


@dataclass(frozen=True)
class Cell:
    """A mixer on a task: a sweep of one configuration.

    Attributes:
        task: the name of the file's setting.
        mixer: as tables show it.
        experiment: tunes it, and has all its seeds. Its `shape` is that of the task: a table has cells of one only.
        digest: of everything that decides the results; a cell is run again where it has changed.
    """

    task: str
    mixer: str
    experiment: Experiment
    digest: str

    @classmethod
    def of(cls, task: str, mixer: str, experiment: Experiment) -> Cell:
        """Return the cell of an experiment that holds several mixers or none.

        Raises:
            UsageError: options that train.py would refuse.
        """
        experiment = experiment.overridden({"mixer": [mixer]})
        own = Path(mixer.rpartition(":")[0]) if is_target(mixer) else None
        # A file of one's own counts by what it says, wherever it lies.
        source = own.read_text(encoding="utf-8") if own and own.is_file() else None
        config = deciding_options(parse(arguments(experiment.fixed | {"mixer": mixer})).config)
        decided = {key: value for key, value in given_options(config).items() if key not in ("seed", *experiment.tune)}
        content = [experiment.shape, decided | {"mixer.name": short(mixer)}, source]
        return cls(task, short(mixer), experiment, digest(content))

    @property
    def seeds(self) -> list[int]:
        """All that are asked for."""
        return list(self.experiment.grids[0]["seed"])

    def missing(self, record: Record | None) -> list[int]:
        """Return the seeds that a record of the cell lacks: all of them where it has another configuration."""
        there = record["seeds"] if record and record["digest"] == self.digest else []
        return [seed for seed in self.seeds if seed not in there]


def task_names(file: Path = FILE) -> list[str]:
    """Return the tasks of the file, in its order."""
    return list(read_mapping(file)["settings"])


def of_today(records: Iterable[Record]) -> list[Record]:
    """Return the records whose task still has the shape at which they were run."""
    shapes = {task: read_experiment(FILE, task).shape for task in task_names()}
    return [record for record in records if record["shape"] == shapes.get(record["task"])]


def read_cells(mixers: Sequence[str], tasks: Sequence[str], n_seeds: int | None, file: Path = FILE) -> list[Cell]:
    """Return the cells that are asked for, task by task.

    Args:
        mixers: registered names or targets; `ALL` for the registry, none for those of the file.
        tasks: settings of the file; none for all.
        n_seeds: how many, from 0 on; default those of the file.
        file: an experiment's file with a setting for each task.

    Raises:
        UsageError: an unknown task or mixer, a file of one's own that cannot be run.
    """
    known = task_names(file)
    for task in tasks:
        if task not in known:
            raise UsageError(unknown("task of the leaderboard", task, known))
    names = [MIXERS.check(name) for each in mixers for name in (MIXERS if each == ALL else [each])]
    for name in filter(is_target, names):
        MIXERS[name]  # a file that cannot be run is refused once, not in every cell
    found = []
    for task in tasks or known:
        experiment = read_experiment(file, task)
        if n_seeds is not None:
            experiment = experiment.overridden({"seed": list(range(n_seeds))})
        found += [Cell.of(task, name, experiment) for name in names or experiment.grids[0]["mixer"]]
    return found


def in_order(cells: Sequence[Cell], records: Mapping[tuple[str, str], Record]) -> Iterator[Cell]:
    """Return the cells that miss something, empty ones first, so that rows and columns fill evenly."""
    missing = [cell for cell in cells if cell.missing(records.get((cell.mixer, cell.task)))]
    filled = Counter(name for cell in cells if cell not in missing for name in (cell.mixer, cell.task))
    n_mixers, n_tasks = len({cell.mixer for cell in cells}), len({cell.task for cell in cells})

    def place(cell: Cell) -> tuple[bool, float]:
        begun = len(cell.missing(records.get((cell.mixer, cell.task)))) < len(cell.seeds)
        return begun, filled[cell.mixer] / n_tasks + filled[cell.task] / n_mixers

    while missing:
        cell = min(missing, key=place)
        missing.remove(cell)
        filled.update((cell.mixer, cell.task))
        yield cell


def run_cell(cell: Cell, record: Record | None, request: Request, stop: Stop) -> Record | None:
    """Run what a cell lacks and return its record; None where it was stopped, or no trial or no run is left.

    With a record of the same configuration only the missing seeds are run, at the rate that was picked.

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
    ((_, configuration, _),) = sweep.rows()
    done = {seed: metrics for seed in seeds if (metrics := sweep.metrics(configuration, seed)) is not None}
    score = score_of(done.values(), "test")
    scores = {seed: value for seed, each in done.items() if (value := number_at(each, "test", score)) is not None}
    if not scores:
        return None
    facts = ("steps_to_90", "tokens_per_second", "seconds")
    runs = [{"seed": n, "score": value, **{name: done[n].get(name) for name in facts}} for n, value in scores.items()]
    environments = [read_json(configuration.folder(seed).path / ENVIRONMENT) for seed in scores]
    measured = next(iter(sweep.windows.values()), None)
    return merged(
        kept
        or {
            "mixer": cell.mixer,
            "task": cell.task,
            "metric": score,
            "chance": guess_level(score, done[next(iter(scores))].get("chance")),
            "lr": configuration.options[RATE],
            "window_octaves": measured and measured["octaves"],
            "window_at_least": measured and measured["at_least"],
            "params": configuration.params,
            "state_bytes": configuration.state_bytes,
            "shape": cell.experiment.shape,
            "digest": cell.digest,
            "runs": [],
            "commits": [],
            "machines": [],
        },
        runs,
        [str(each["git"])[:9] for each in environments],
        [machine_of(each) for each in environments],
    )


def merged(record: Record, runs: Sequence[Record], commits: Sequence[str], machines: Sequence[str]) -> Record:
    """Return a record with further runs: medians over seeds, and the interval of the score from five seeds on."""
    found = sorted({run["seed"]: run for run in [*record["runs"], *runs]}.values(), key=lambda run: run["seed"])

    def median(name: str) -> float | None:
        values = [run[name] for run in found if run[name] is not None]
        if name == "steps_to_90":
            return median_steps(values, len(found))
        return statistics.median(values) if values else None

    scores = [run["score"] for run in found]
    return record | {
        "score": statistics.median(scores),
        "interval": list(of_median(scores)[1:]) if len(scores) >= FEWEST_SEEDS else None,
        "seeds": [run["seed"] for run in found],
        "steps_to_90": median("steps_to_90"),
        "tokens_per_second": median("tokens_per_second"),
        "seconds": sum(run["seconds"] or 0.0 for run in found),
        "runs": found,
        "commits": sorted({*record["commits"], *commits}),
        "machines": sorted({*record["machines"], *machines}),
    }


def best_of(records: Sequence[Record]) -> Record:
    """Return the best record of a task; of equals the first."""
    return max(records, key=lambda record: merit(record["metric"], record["score"]))
