"""Score each model of a sweep over several tasks: the mean over tasks of the mean over a task's grid.

The value of a grid point is the mean over its seeds; with --tune, of the configuration that validation picked.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lab.run.metrics import numbers_at
from lab.run.score import score_text
from zoo.report.markdown import table
from zoo.report.numbers import Number, plain

SCORES_JSON, SCORES_MD = "scores.json", "scores.md"
"""Names of the files next to the sweep's index."""


@dataclass(frozen=True)
class Point:
    """One configuration of the grid.

    Attributes:
        task: the task's name in the registry.
        options: flags that differ between the sweep's configurations, with their values.
        planned: number of planned seeds.
        found: metrics of the finished seeds.
        window: window of good learning rates, as in the sweep's index; None if none was tuned.
    """

    task: str
    options: Mapping[str, Any]
    planned: int
    found: Sequence[Mapping[str, Any]]
    window: Mapping[str, Any] | None = None

    def value(self, metric: str) -> float | None:
        """Return the mean test score over the seeds; None until all seeds are done."""
        values = numbers_at(self.found, "test", metric)
        return statistics.mean(values) if len(values) == self.planned else None


Scored: TypeAlias = dict[str, Any]
"""The scores of one model in scores.json:

    {"model": {"mixer": "lstm"},
     "accuracy": {"score": 0.7, "tasks": {"mqar": {"done": 3, "planned": 3, "mean": 0.7, "window_octaves": 3.3}}}}

"model" has the flags that distinguish it from the others. Under each metric, "score" is the mean over the tasks, null
until every grid point is done. "done" and "planned" count a task's grid points; "mean" is the mean over the finished
ones, "window_octaves" the median over those with a tuned learning rate, null without any.
"""


def model_flags(points: Sequence[Point]) -> list[str]:
    """Return the flags that distinguish models: they belong to no task, and differ at the same grid point."""
    options = dict.fromkeys(flag for point in points for flag in point.options)
    flags = [flag for flag in options if flag.partition(".")[0] not in ("task", "config")]
    values: dict[tuple[str, str], set[str]] = {}
    for point in points:
        place = json.dumps([point.task, {key: value for key, value in point.options.items() if key not in flags}])
        for flag in flags:
            values.setdefault((flag, place), set()).add(json.dumps(point.options.get(flag)))
    return [flag for flag in flags if any(len(found) > 1 for (name, _), found in values.items() if name == flag)]


def scores(points: Sequence[Point], metrics: Sequence[str]) -> list[Scored]:
    """Return each model's scores by these metrics, in the order of the grid."""
    flags = model_flags(points)
    by_model: dict[str, list[Point]] = {}
    for point in points:
        by_model.setdefault(json.dumps({f: point.options[f] for f in flags if f in point.options}), []).append(point)
    return [
        {"model": json.loads(text), **{metric: _over_tasks(own, metric) for metric in metrics}}
        for text, own in by_model.items()
    ]


def _over_tasks(points: Iterable[Point], metric: str) -> dict[str, Any]:
    by_task: dict[str, list[Point]] = {}
    for point in points:
        by_task.setdefault(point.task, []).append(point)
    tasks = {}
    for task, every in by_task.items():
        done = [value for point in every if (value := point.value(metric)) is not None]
        octaves = [point.window["octaves"] for point in every if point.window]
        tasks[task] = {
            "done": len(done),
            "planned": len(every),
            "mean": statistics.mean(done) if done else None,
            "window_octaves": statistics.median(octaves) if octaves else None,
        }
    complete = all(each["done"] == each["planned"] for each in tasks.values())
    return {"score": statistics.mean(each["mean"] for each in tasks.values()) if complete else None, "tasks": tasks}


def score_table(found: Sequence[Scored], metrics: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: a model's flags, the first metric on each task, and the score by each metric.

    An incomplete mean shows its number of grid points; the score stays empty until all are done.
    """
    flags = list(dict.fromkeys(flag for each in found for flag in each["model"]))
    tasks = list(dict.fromkeys(task for each in found for task in each[metrics[0]]["tasks"]))
    heads = [*(flag.removeprefix("mixer.") for flag in flags), *tasks]
    heads += [metric.replace("_", " ") for metric in metrics]
    rows = []
    for each in found:
        cells = [plain(each["model"][flag]) if flag in each["model"] else "" for flag in flags]
        for task in tasks:
            of_task = each[metrics[0]]["tasks"].get(task, {"done": 0, "planned": 0, "mean": None})
            done, planned = of_task["done"], of_task["planned"]
            part = "" if done == planned else f"({done} of {planned})"
            cells.append(f"{_text(metrics[0], of_task['mean'])} {part}".strip())
        rows.append([*cells, *(_text(metric, each[metric]["score"]) for metric in metrics)])
    return heads, rows


def _text(metric: str, value: Number | None) -> str:
    return "" if value is None else score_text(metric, value)


def scores_as_markdown(
    name: str,
    found: Sequence[Scored],
    metrics: Sequence[str],
    configurations: tuple[Sequence[str], Sequence[Sequence[str]], str],
) -> str:
    """Return the table of scores and the table of configurations (headings, rows, alignment) as a page."""
    heads, rows = score_table(found, metrics)
    metric = metrics[0].replace("_", " ")
    about = f"Each task: {metric} in the test split, a mean over its grid. The last columns: the mean over the tasks."
    each = ["## Configurations", "", "Mean ± standard deviation over seeds.", "", *table(*configurations)]
    return "\n".join([f"# {name}", "", about, "", *table(heads, rows), "", *each, ""])
