"""The tables of a sweep: its grid before it starts, then results averaged over seeds, and scores over tasks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lab.run.files import INDEX
from lab.run.metrics import numbers_at
from lab.run.record import MARK, MARKED
from lab.run.score import FACTS, WINDOW, fact_text, score_of, window_text
from lab.sweep.board import score_with_spread
from lab.sweep.grid import Configuration
from lab.sweep.matching import TOLERANCE
from lab.sweep.scores import SCORES_JSON, SCORES_MD, Point, score_table, scores, scores_as_markdown
from lab.sweep.tuning import RATE
from zoo.report.files import as_json, write_all
from zoo.report.numbers import count, duration, number, plain
from zoo.report.terminal import make_console, make_table, say

if TYPE_CHECKING:
    from lab.sweep.sweep import Sweep

SIZES = ("parameters", "state bytes")


def show_grid(sweep: Sweep) -> None:
    """Print the grid: configurations, seeds, sizes, number of runs."""
    console, experiment, grid = make_console(), sweep.experiment, sweep.grid
    title = f"{experiment.name}{f' ({experiment.setting})' if experiment.setting else ''}"
    rows = [
        (*_cells(each, sweep.varying), range_text(seeds), number(each.params), number(each.state_bytes))
        for each, seeds in grid
    ]
    headings = (*(key.removeprefix("mixer.") for key in sweep.varying), "seeds", *SIZES)
    console.print(make_table(headings, rows, "l" * (len(headings) - len(SIZES)) + "r" * len(SIZES), title=title))
    for line in grid.left_out:
        say(console, line)
    for quantity, wanted in experiment.match.items():
        say(console, f"matched: {quantity} = {wanted:,.0f} within {TOLERANCE:.0%}")
    if experiment.prediction:
        say(console, f"prediction: {experiment.prediction}")
    runs, configurations = count(grid.n_runs, "run"), count(len(grid.points), "configuration")
    text = f"{runs} of {configurations}"
    if experiment.tune:
        trials = count(len(grid.points[0].trials), "trial")
        rungs = ", ".join(f"{rung:.4g}" for rung in sweep.rungs)
        seeds = range_text(sweep.grid.points[0].tune_seeds)
        text = f"{configurations} x {trials} on seed {seeds}, halved after {rungs} of the steps, then {runs}"
        text += " with the picked values"
    say(console, f"{text}, kept in {sweep.folder}")


def show_summary(sweep: Sweep) -> None:
    """Print results averaged over seeds, and failed runs; with `score`, also write each model's score over tasks."""
    console, name = make_console(), sweep.experiment.name
    points = [(point.chosen or point.configuration, point.seeds) for point in sweep.grid.points]
    leaks = [sweep.leak(configuration, seeds) for configuration, seeds in points]
    headings, rows, align = _summary(sweep, leaks)
    console.print(make_table(headings, rows, align, title=f"{name}: mean ± standard deviation over seeds"))
    for (configuration, _), leak in zip(points, leaks, strict=True):
        if leak and not configuration.command.config["looks_ahead"]:
            say(console, f"{leak}. {MARKED}", "bold red")
    for outcome in sweep.failed:
        say(console, f"failed: {outcome.job.name}: {outcome.message}; see {outcome.job.folder}")
    say(console, str(sweep.folder / INDEX))
    if metrics := sweep.experiment.score:
        found = scores(_points(sweep), metrics)
        title = f"{name}: means over the grid of each task, and over the tasks"
        console.print(make_table(*score_table(found, metrics), title=title))
        data = as_json({"metrics": metrics, "models": found})
        page = scores_as_markdown(name, found, metrics, (headings, rows, align))
        write_all(sweep.folder, {SCORES_JSON: data, SCORES_MD: page})
        say(console, str(sweep.folder / SCORES_MD))


def _summary(sweep: Sweep, leaks: Sequence[str]) -> tuple[list[str], list[list[str]], str]:
    """Return headings, rows and alignment of the table of configurations; mark those that read later positions."""
    keys = [*sweep.varying, *sweep.experiment.tune]
    with_window = RATE in sweep.experiment.tune
    rows = []
    for point, leak in zip(sweep.grid.points, leaks, strict=True):
        configuration = point.chosen or point.configuration
        found = sweep.metrics(configuration, point.seeds)
        score = score_of(found, "test", "val")
        facts = {name: numbers_at(found, name) for name in FACTS.values()}
        # Sizes are known before any run is done, except for the state of a mixer that does not stream.
        sizes = {"params": configuration.params, "state_bytes": configuration.state_bytes}
        facts |= {name: [] if size is None else [size] for name, size in sizes.items()}
        seconds = numbers_at(found, "seconds")
        values = _cells(configuration, keys)
        if leak and "mixer" in keys:
            values[keys.index("mixer")] += MARK
        rows.append(
            [
                *values,
                f"{len(found)}/{len(point.seeds)}",
                score_with_spread(found, "test"),
                score_with_spread(found, "val"),
                *(fact_text(name, each, score, len(found)) if each else "" for name, each in facts.items()),
                *([window_text(point.window)] if with_window else []),
                duration(statistics.mean(seconds)) if seconds else "",
            ]
        )
    numbers = [*FACTS, *([WINDOW] if with_window else []), "time"]
    headings = [*(key.removeprefix("mixer.") for key in keys), "done", "test", "validation", *numbers]
    return headings, rows, "l" * (len(headings) - len(numbers)) + "r" * len(numbers)


def _points(sweep: Sweep) -> list[Point]:
    points = []
    for each in sweep.grid.points:
        configuration = each.chosen or each.configuration
        # Matched and tuned options follow from the model and the grid point, so they do not distinguish models.
        options = {flag: value for flag, value in configuration.options.items() if flag in sweep.experiment.flags}
        task, found = configuration.command.config["task"]["name"], sweep.metrics(configuration, each.seeds)
        points.append(Point(task, options, len(each.seeds), found, each.window))
    return points


def _cells(configuration: Configuration, keys: Iterable[str]) -> list[str]:
    """Return the values of options as text; empty for an option that the configuration lacks."""
    options = configuration.options
    return [plain(options[key]) if options.get(key) is not None else "" for key in keys]


def range_text(seeds: Sequence[int]) -> str:
    """Return 0-4 for three or more consecutive seeds, else 0,2,4."""
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))
