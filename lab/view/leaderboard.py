"""Command `python -m lab leaderboard`: run the missing cells of the leaderboard, and write its pages.

The tables are built like those of a comparison (`lab.view.table`), but from stored records instead of run folders.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from lab.config import parse
from lab.run.record import Run
from lab.run.score import BASELINE, SCORES, merit, window_text
from lab.sweep.command import Request
from lab.sweep.engine import Stop
from lab.sweep.experiment import read_experiment
from lab.sweep.grid import arguments
from lab.sweep.tuning import RATE
from lab.view.cells import (
    BUDGETS,
    FILE,
    OF_A_RUN,
    ROOT,
    Cell,
    Record,
    in_order,
    of_today,
    read_cells,
    run_cell,
    task_names,
)
from lab.view.picture import heat_map, share
from lab.view.rows import Group, Row, place
from lab.view.table import columns_of, explain
from zoo.errors import UsageError
from zoo.evidence.interval import FEWEST_SCORES, FEWEST_SEEDS, FEWEST_TASKS, of_interquartile_mean, of_median
from zoo.registry import MIXERS
from zoo.report.files import as_json, read_json, write_all
from zoo.report.numbers import NOTHING, count, duration
from zoo.report.page import LISTED, Column, Section, as_markdown, render
from zoo.report.plots import as_png, look_of
from zoo.report.terminal import Parser, make_console, make_table, say
from zoo.signals import CTRL_C, SCHEDULER, handled
from zoo.targets import expanded

PROGRAM = "lab leaderboard"
STORED, PAGE, SORTABLE = "leaderboard.json", "leaderboard.md", "leaderboard_table.html"
PICTURE = "figures/leaderboard.png"

HELP = """\
A cell is a mixer on a task: its learning rate is tuned, then every seed is trained and tested. A finished cell is
stored in leaderboard.json at once, and run again only if its configuration has changed. A new leaderboard starts with
the stored cells of docs; only --out docs changes these. Ctrl-C saves the runs; the same command resumes them.

  python -m lab leaderboard --dry_run
  python -m lab leaderboard --mixers lstm,my_mixers.py:Mine --tasks mqar,text
  python -m lab leaderboard --mixers all --budget_minutes 60

Exit status: 0 every cell that was started is done; 1 a cell failed; 2 invalid command line; 130 interrupted.
"""
ABOUT = (
    "All mixers have the same width, their authors' options, and a learning rate tuned on two other seeds. A run ends "
    "when it has solved its task, or after 2,400 steps. A score is the median over eight seeds on the test split, at "
    "the longest tested length, followed by its 95 % interval or by the number of seeds that solved the task. The best "
    "median of a task is marked, even if the seeds are too few to separate it from the next."
)
NOTES = (
    "A task is solved if the test score is at least nine tenths of the way from chance to a perfect score. Models "
    "train on parity and a5_words at length 16 and are tested at 64.",
    "A mixer without its own convolution is preceded by a residual convolution of four taps.",
    "Learning rates are tuned on validation, in half octaves (docs/tuning.md). For relative squared errors, lower is "
    "better. An empty cell has not been run. Other runs share the machine during training.",
    "We withdrew an earlier leaderboard of 19 mixers on nine tasks. It put a convolution without a skip before every "
    "block: with it the hybrid scored .27 on mqar with fresh seeds, without it 1.00. It also scored the seed on which "
    "the rate was tuned, and stopped after 600 steps, converged or not.",
)


# The command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status; see HELP."""
    parser = Parser(
        "python -m lab leaderboard",
        description="Run the missing cells of the leaderboard, and write its pages.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    of_file = "default: as in configs/leaderboard.yaml"
    add("--mixers", type=_names, default=[], metavar="A,B", help=f"names, file.py:Class, or all; {of_file}")
    add("--tasks", type=_names, default=[], metavar="A,B", help=of_file)
    add("--seeds", type=_positive, metavar="N", help=f"number of seeds, counted from 0; {of_file}")
    add("--budget_minutes", type=float, metavar="M", help="start no further cell after this time")
    add("--slots", type=_positive, metavar="N", help="runs at a time; default: the cores")
    add("--run_dir", type=Path, default=Path("runs/leaderboard"), metavar="DIR", help="default runs/leaderboard")
    add("--out", type=Path, metavar="DIR", help="folder of the pages; default: --run_dir")
    add("--dry_run", action="store_true", help="list the missing cells and stop")
    began, stop, failed = time.monotonic(), Stop(), 0
    given, console = parser.parse_args(argv), make_console()
    if given.budget_minutes is not None and not given.budget_minutes >= 0:  # NaN is no limit either
        parser.error(f"--budget_minutes must not be negative, got {given.budget_minutes}")
    cells = read_cells(given.mixers, given.tasks, given.seeds)
    board = Leaderboard(given.out or expanded(given.run_dir))
    todo = list(in_order(cells, board.records))
    say(console, f"{count(len(cells) - len(todo), 'cell')} done, {len(todo)} to do")
    if given.dry_run:
        rows = [(cell.task, cell.mixer, ", ".join(map(str, cell.missing(board.get(cell))))) for cell in todo]
        console.print(make_table(("task", "mixer", "seeds to run"), rows, "lll"))
        return 0
    request = Request(run_dir=given.run_dir, slots=given.slots)
    # The first signal, Ctrl-C or a scheduler's, makes the runs save and stop; a second one kills them.
    with handled((CTRL_C, *SCHEDULER), lambda *_: stop.ask()):
        for at, cell in enumerate(todo, 1):
            minutes = (time.monotonic() - began) / 60
            if given.budget_minutes is not None and minutes >= given.budget_minutes:
                say(console, f"stopped after {minutes:.1f} minutes: {count(len(todo) - at + 1, 'cell')} left")
                break
            say(console, f"cell {at} of {len(todo)} after {duration(60 * minutes)}: {cell.mixer} on {cell.task}")
            try:
                record = run_cell(cell, board.get(cell), request, stop)
            except UsageError as error:
                record = None
                say(console, f"{cell.mixer} on {cell.task}: {error}", "red")
            if record is not None:
                board.merge(record)
            if stop.soft.is_set():
                print(f"{PROGRAM}: stopped; run the same command to resume", file=sys.stderr)
                return 130
            failed += record is None or bool(cell.missing(record))
    for file in board.write():
        say(console, str(file))
    if failed:
        say(console, f"{count(failed, 'cell')} failed: see {given.run_dir}", "red")
    return 1 if failed else 0


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return int(text)


class Leaderboard:
    """The records in a folder, by mixer and task, and their pages; a new folder starts with the records of docs.

    Raises:
        UsageError: the file is not JSON, or the folder is a file.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.records = self._read()

    def _read(self) -> dict[tuple[str, str], Record]:
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{self.out} is not a folder, so {STORED} cannot be written there")
        file = next((file for file in (self.out / STORED, ROOT / "docs" / STORED) if file.is_file()), None)
        try:
            stored = [] if file is None else read_json(file)
        except ValueError as error:
            raise UsageError(f"{file} is not JSON: {error}") from None
        return {(record["mixer"], record["task"]): record for record in stored}

    @property
    def shown(self) -> list[Record]:
        """The records whose tasks have not changed since."""
        return of_today(self.records.values())

    def get(self, cell: Cell) -> Record | None:
        """Return the record of a cell's mixer and task, even if its configuration has changed."""
        return self.records.get((cell.mixer, cell.task))

    def merge(self, record: Record) -> list[Path]:
        """Read the file again, add or replace the record of a cell, and write everything; return the files."""
        self.records = self._read() | {(record["mixer"], record["task"]): record}
        return self.write()

    def write(self) -> list[Path]:
        """Write the records, and the pages without cells whose task has changed; return the files."""
        kept = sorted(self.records.values(), key=lambda each: (place(each["mixer"]), each["task"]))
        shown = self.shown
        groups = groups_of(shown, task_names())
        sections = [overview(groups), *map(section_of, groups)]
        command = ["```sh", "python -m lab leaderboard --mixers all --out docs  # runs the missing cells", "```"]
        picture = [f"![Mixers against tasks, from guessing to a perfect score]({PICTURE})", ""] * bool(shown)
        notes = [ABOUT, *NOTES, origin(shown)]
        end = [line for note in notes for line in (note, "")] + [*explain(sections, LISTED), "", *command]
        about = "\n".join(
            [*picture, f"To sort and filter the scores, open [{SORTABLE}]({SORTABLE}). Notes are below the tables."]
        )
        pages = {
            STORED: as_json(kept),
            PAGE: as_markdown("Leaderboard", about, sections, end),
            SORTABLE: render(
                Path(__file__).with_name("leaderboard.html"), budgets=BUDGETS, notes=notes, data=as_data(groups)
            ),
        }
        return write_all(self.out, pages | ({PICTURE: as_png(heat_map(groups))} if shown else {}))


# Records as a comparison


class MedianRow(Row):
    """A configuration with medians over seeds instead of means, and an interval for the score."""

    decimals: ClassVar[int] = 2

    def center(self, *path: str) -> float | None:
        """Return the median of `values`."""
        return _median(self.values(*path))

    @property
    def score_text(self) -> str:
        """The median score and, from five seeds on, its 95 % interval."""
        return self.median_text(self.values())

    def median_text(self, values: Sequence[float]) -> str:
        """Return the median of scores and, from five on, its 95 % interval."""
        ends = of_median(values)[1:] if len(values) >= FEWEST_SEEDS else ()
        text, *of_ends = map(self.text, (_median(values), *ends))
        return f"{text} [{', '.join(of_ends)}]" if of_ends else text

    def values_at(self, steps: int) -> list[float]:
        """Return validation scores after this number of steps, or at the end of runs that stopped earlier."""
        curves = ({int(step): y for step, y in run.metrics["curve"].items() if y is not None} for run in self.judged)
        return [curve[max(at)] for curve in curves if (at := [step for step in curve if step <= steps])]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _at_budget(steps: int) -> Column:
    return Column(
        f"at {steps:,}",
        "median validation score after these steps, or at the end of runs that ended earlier",
        lambda row: row.text(_median(row.values_at(steps))),
        value=lambda row: _median(row.values_at(steps)),
    )


CONVERGED = Column(
    "converged",
    "runs that solved their task, or gained less than 0.01 in the last quarter of their steps",
    lambda row: f"{sum(found)} of {len(found)}" if (found := row.values("converged")) else NOTHING,
    value=lambda row: sum(found) if (found := row.values("converged")) else None,
    more_first=True,
)
TIME = Column(
    "time of the runs",
    "total over all seeds",
    lambda row: duration(sum(row.values("seconds"))),
    value=lambda row: sum(row.values("seconds")),
)


def groups_of(records: Sequence[Record], tasks: Sequence[str]) -> list[Group]:
    """Return the tasks that have records, in the order of `tasks`, each with the best mixer first."""
    groups = []
    for task in tasks:
        found = [record for record in records if record["task"] == task]
        if found:
            metric = found[0]["metric"]
            rows = sorted(map(row_of, found), key=lambda row: -merit(metric, row.center()))
            groups.append(Group(task, metric, tuple(rows)))
    return groups


def row_of(record: Record) -> MedianRow:
    """Return a record as the row of its mixer."""
    config = task_config(record["task"]) | {"mixer": {"name": record["mixer"]}, RATE: record["lr"]}
    shared = {name: record[name] for name in ("chance", "params", "state_bytes")}
    runs = tuple(
        Run(
            Path(),
            config | {"seed": run["seed"]},
            shared | {"test": {record["metric"]: run["score"]}} | {name: run[name] for name in ("curve", *OF_A_RUN)},
            "tested",
            window=record["window"],
        )
        for run in record["runs"]
    )
    return MedianRow(record["mixer"], {RATE: record["lr"]}, runs, record["metric"])


@cache
def task_config(task: str) -> dict[str, Any]:
    """Return the configuration that all runs of a task share."""
    return parse(arguments(read_experiment(FILE, task).fixed)).config


def section_of(group: Group) -> Section:
    """Return a task's table, with scores at each budget and the time of the runs."""
    name, *others = columns_of(group)
    columns = [replace(name, heading="mixer"), *others, *map(_at_budget, BUDGETS), CONVERGED, TIME]
    return Section(group.title, columns, group.rows)


def overview(groups: Sequence[Group]) -> Section:
    """Return the table of all tasks: a line per mixer, in the order of the registry, then two lines of guesses."""
    columns, lines = [Column("mixer", "", lambda line: line.label, text=True)], {}
    for group in groups:
        first = group.rows[0]
        guesses = _guess("guessing", first.score, first.fact("chance")), _guess(BASELINE, first.score, first.baseline)
        own = {row.label: row for row in (*group.rows, *guesses)}
        columns.append(_task_column(group, own))
        lines |= own
    lines_in_all = over_all(groups)
    if any(map(lines_in_all.cell, lines.values())):
        columns.append(lines_in_all)
    return Section("All tasks", columns, sorted(lines.values(), key=lambda line: (not line.tested, place(line.label))))


def _guess(label: str, score: str, value: float | None) -> MedianRow:
    """Return the score of a guess as a row that counts as not tested."""
    return MedianRow(label, {}, (Run(Path(), {"mixer": {"name": label}}, {"val": {score: value}}, "trained"),), score)


def _task_column(group: Group, rows: Mapping[str, Row]) -> Column:
    """Return the column of a task's scores in the table of all tasks."""
    return Column(
        group.title,
        "",
        lambda line: rows[line.label].short_text if line.label in rows else "",
        value=lambda line: rows[line.label].center() if line.label in rows else None,
        more_first=SCORES[group.score],
        best=lambda line: line.label in group.best,
    )


def as_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the cells as plain data for the sortable page and the gallery."""
    mixers: dict[str, dict[str, Any]] = {}
    for group in groups:
        for row in group.rows:
            if not isinstance(row, MedianRow):
                continue
            known = row.label in MIXERS
            family = MIXERS.entry(row.label).family if known else "your own"
            look = look_of(row.label)._asdict()
            mixer = mixers.setdefault(row.label, {"name": row.label, "family": family, "look": look, "cells": {}})
            name, window = f"{row.label} on {group.title}", window_text(row.window)
            facts = [f"{name}: {row.score_text}", f"window {window} octaves", f"{CONVERGED.cell(row)} converged"]
            mixer["cells"][group.title] = {
                "score": row.center(),
                "share": share(group, row.center()),
                "solved": "{}/{}".format(*row.solved) if row.solved else "",
                "window": window,
                "title": ", ".join(facts),
                "at": {
                    str(steps): {
                        "value": _median(values),
                        "share": share(group, _median(values)),
                        "title": f"{name} after {steps:,} steps, validation: {row.median_text(values)}",
                    }
                    for steps, values in ((steps, row.values_at(steps)) for steps in BUDGETS)
                },
            }
    ordered = sorted(mixers.values(), key=lambda mixer: place(mixer["name"]))
    return {"tasks": [group.title for group in groups], "mixers": ordered, "budgets": BUDGETS}


def over_all(groups: Sequence[Group]) -> Column:
    """Return a column for mixers with all tasks: the interquartile mean of the share of the way to a perfect score."""
    by_mixer: dict[str, list[list[float]]] = {}
    for group in groups:
        for row in group.rows:
            by_mixer.setdefault(row.label, []).append([share(group, value) for value in row.values()])
    found = {
        mixer: of_interquartile_mean(shares)
        for mixer, shares in by_mixer.items()
        if len(shares) == len(groups) >= FEWEST_TASKS and min(map(len, shares)) >= FEWEST_SCORES
    }
    return Column(
        "all tasks",
        "interquartile mean over tasks and seeds of the share of the way from chance to a perfect score, 95 % interval",
        lambda line: "{:.2f} [{:.2f}, {:.2f}]".format(*found[line.label]) if line.label in found else "",
        value=lambda line: found[line.label].value if line.label in found else None,
        more_first=True,
    )


def origin(records: Sequence[Record]) -> str:
    """Return a few sentences on how the records were made, and on the mixers without records."""
    if not records:
        return "No cell has been run."
    commits, machines = ({each for record in records for each in record[key]} for key in ("commits", "machines"))
    seconds = sum(run["seconds"] or 0.0 for record in records for run in record["runs"])
    of_code = f"{duration(seconds)} of runs, {count(len(commits), 'commit')} of the code"
    highest = max(map(float, read_experiment(FILE, task_names()[0]).tune[RATE]))
    at_end = sum(record["lr"] >= highest for record in records)
    made = f"{count(len(records), 'cell')}, {of_code}; {'; '.join(sorted(machines))}."
    ends = f"In {at_end} of them tuning picked the largest rate of the grid, or one beyond it."
    absent = [name for name in MIXERS if name not in {record["mixer"] for record in records}]
    return " ".join([made, ends, *([f"No cell yet: {', '.join(absent)}."] if absent else [])])
