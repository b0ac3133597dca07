"""One number for each model of a sweep over several tasks: the mean over the tasks of the mean over a task's grid.

A grid point counts by the mean over its seeds; with --tune by the configuration that validation picked there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.run import number_at
from lab.score import score_text
from zoo.report.files import as_json
from zoo.report.markdown import table
from zoo.report.numbers import Number, plain

SCORES_JSON, SCORES_MD = "scores.json", "scores.md"
"""What is written next to the sweep's index."""


@dataclass(frozen=True)
class Point:
    """One configuration of the grid.

    Attributes:
        task: the task's name in the registry.
        options: flags in which the sweep's configurations differ, with their values.
        planned: number of planned seeds.
        found: metrics of the seeds that are done.
        window: of good learning rates, as the sweep's index has it; None where none was tuned.
    """

    task: str
    options: Mapping[str, Any]
    planned: int
    found: Sequence[Mapping[str, Any]]
    window: Mapping[str, Any] | None = None

    def value(self, metric: str) -> float | None:
        """Return the mean over the seeds in the test split; None until all seeds are done."""
        values = [value for metrics in self.found if (value := number_at(metrics, "test", metric)) is not None]
        return statistics.mean(values) if len(values) == self.planned else None


@dataclass(frozen=True)
class TaskScore:
    """The score of one model on one task.

    Attributes:
        done: number of grid points that have a score.
        planned: number of grid points.
        mean: mean over those that are done; None if none is.
        window_octaves: median over the grid points whose learning rate was tuned; None if none was.
    """

    done: int
    planned: int
    mean: Number | None
    window_octaves: Number | None = None


@dataclass(frozen=True)
class ModelScore:
    """The scores of one model.

    Attributes:
        model: the flags that distinguish it from the others.
        tasks: for each metric, its score on each task.
    """

    model: Mapping[str, Any]
    tasks: Mapping[str, Mapping[str, TaskScore]]

    def total(self, metric: str) -> Number | None:
        """Return the mean over the tasks; None until every grid point is done."""
        scores = list(self.tasks[metric].values())
        if any(score.mean is None or score.done < score.planned for score in scores):
            return None
        return statistics.mean(score.mean for score in scores if score.mean is not None)


def model_flags(points: Sequence[Point]) -> list[str]:
    """Return the flags that distinguish models: they are no option of a task and differ at the same grid point."""
    options = dict.fromkeys(flag for point in points for flag in point.options)
    flags = [flag for flag in options if flag.partition(".")[0] not in ("task", "config")]
    values: dict[tuple[str, str], set[str]] = {}
    for point in points:
        place = json.dumps([point.task, {key: value for key, value in point.options.items() if key not in flags}])
        for flag in flags:
            values.setdefault((flag, place), set()).add(json.dumps(point.options.get(flag)))
    return [flag for flag in flags if any(len(found) > 1 for (name, _), found in values.items() if name == flag)]


def scores(points: Sequence[Point], metrics: Sequence[str]) -> list[ModelScore]:
    """Return each model's scores by these metrics, in the order of the grid."""
    flags = model_flags(points)
    by_model: dict[str, list[Point]] = {}
    for point in points:
        by_model.setdefault(json.dumps({f: point.options[f] for f in flags if f in point.options}), []).append(point)
    return [
        ModelScore(json.loads(text), {metric: _by_task(own, metric) for metric in metrics})
        for text, own in by_model.items()
    ]


def _by_task(points: Iterable[Point], metric: str) -> dict[str, TaskScore]:
    by_task: dict[str, list[Point]] = {}
    for point in points:
        by_task.setdefault(point.task, []).append(point)
    found = {}
    for task, every in by_task.items():
        done = [value for point in every if (value := point.value(metric)) is not None]
        octaves = [point.window["octaves"] for point in every if point.window]
        mean, middle = statistics.mean(done) if done else None, statistics.median(octaves) if octaves else None
        found[task] = TaskScore(len(done), len(every), mean, middle)
    return found


def scores_as_json(found: Sequence[ModelScore], metrics: Sequence[str]) -> str:
    """Return the scores as JSON: each model's score by metric, the mean of each task, the number of grid points."""
    models = [
        {
            "model": score.model,
            **{
                metric: {
                    "score": score.total(metric),
                    "tasks": {task: vars(each) for task, each in score.tasks[metric].items()},
                }
                for metric in metrics
            },
        }
        for score in found
    ]
    return as_json({"metrics": metrics, "models": models})


def score_table(found: Sequence[ModelScore], metrics: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows: what tells the models apart, each task by the first metric, the score by each.

    A mean over a part of the grid shows its number of points; the score stays empty until all are done.
    """
    flags = list(dict.fromkeys(flag for score in found for flag in score.model))
    tasks = list(dict.fromkeys(task for score in found for task in score.tasks[metrics[0]]))
    heads = [*(flag.removeprefix("mixer.") for flag in flags), *tasks]
    heads += [metric.replace("_", " ") for metric in metrics]
    rows = []
    for score in found:
        cells = [plain(score.model[flag]) if flag in score.model else "" for flag in flags]
        cells += [_mean(metrics[0], score.tasks[metrics[0]].get(task)) for task in tasks]
        totals = {metric: score.total(metric) for metric in metrics}
        rows.append(cells + ["" if total is None else score_text(metric, total) for metric, total in totals.items()])
    return heads, rows


def scores_as_markdown(
    name: str,
    found: Sequence[ModelScore],
    metrics: Sequence[str],
    configurations: tuple[Sequence[str], Sequence[Sequence[str]], str],
) -> str:
    """Return the table, and that of the configurations (headings, rows, alignment), as a page."""
    heads, rows = score_table(found, metrics)
    metric = metrics[0].replace("_", " ")
    said = f"Each task: {metric} in the test split, a mean over its grid. The last columns: the mean over the tasks."
    each = ["## Configurations", "", "Mean ± standard deviation over seeds.", "", *table(*configurations)]
    return "\n".join([f"# {name}", "", said, "", *table(heads, rows), "", *each, ""])


def _mean(metric: str, score: TaskScore | None) -> str:
    if score is None:
        return ""
    mean = "" if score.mean is None else score_text(metric, score.mean)
    return mean if score.done == score.planned else f"{mean} ({score.done} of {score.planned})".strip()
