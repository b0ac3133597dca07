"""Seeds put together: a row per configuration, grouped by task, and the columns that a table shows of a row."""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.run.identity import given_options
from lab.run.metrics import by_heading, numbers_at
from lab.run.record import Run
from lab.score import (
    BASELINE,
    FACTS,
    SCORES,
    WINDOW,
    guess_level,
    mean_and_spread,
    median_steps,
    merit,
    score_of,
    score_text,
    window_text,
)
from zoo.extras import require_extra
from zoo.report import markdown, terminal
from zoo.report.numbers import NOTHING, Number, number, plain

if TYPE_CHECKING:
    from rich.table import Table

logger = logging.getLogger(__name__)

# Options of the data that leave the task what it is: how much there is to train on, what else is tested.
_OF_THE_DATA = {f"task.{name}" for name in ("n_train", "n_val", "n_test", "fresh", "test_lengths")}
_RANK = {"tested": 0, "trained": 1, "unfinished": 2}
_LONGEST_WORD = 24  # characters; a longer word of a text column may be folded


@dataclass(frozen=True)
class Row:
    """One configuration; its numbers are means over seeds.

    Attributes:
        label: the mixer and the options in which it differs from the group's other configurations of this mixer.
        options: options of the configuration, by dotted name.
        runs: one per seed, by seed.
        score: the metric that it is judged by, such as accuracy.
        telling: the options that the label shows.
    """

    label: str
    options: Mapping[str, Any]
    runs: tuple[Run, ...]
    score: str
    telling: frozenset[str] = frozenset()

    @property
    def mixer(self) -> str:
        """The mixer's name in the registry."""
        return self.runs[0].mixer

    @cached_property
    def judged(self) -> tuple[Run, ...]:
        """The runs that count: the tested ones; if there are none, the trained ones, else the unfinished ones."""
        best = min(_RANK[run.state] for run in self.runs)
        return tuple(run for run in self.runs if _RANK[run.state] == best)

    @property
    def tested(self) -> bool:
        """Whether the score is of the test split; otherwise it is of validation, and no candidate for the best."""
        return self.judged[0].state == "tested"

    @property
    def split(self) -> str:
        """The split that the score is of."""
        return "test" if self.tested else "val"

    def values(self, *path: str) -> list[Number]:
        """Return a metric, by default the score, of the runs that count and have it.

        Args:
            path: as for `lab.run.metrics.number_at`.
        """
        return numbers_at((run.metrics for run in self.judged), *(path or (self.split, self.score)))

    def center(self, *path: str) -> float | None:
        """Return the mean of `values`."""
        return mean_and_spread(self.values(*path))[0]

    @property
    def spread(self) -> float | None:
        """The score's standard deviation over the runs that count; None for less than two."""
        return mean_and_spread(self.values())[1]

    @property
    def score_text(self) -> str:
        """The score as tables show it, with its spread over seeds."""
        return score_text(self.score, self.center(), self.spread)

    def fact(self, name: str) -> Number | None:
        """Return one of `lab.score.FACTS`, by its name in the metrics."""
        if name == "chance":
            return guess_level(self.score, self.center(name))
        return median_steps(self.values(name), len(self.judged)) if name == "steps_to_90" else self.center(name)

    @property
    def window(self) -> Mapping[str, Any] | None:
        """The window of learning rates that a sweep has measured for this configuration."""
        return next((run.window for run in self.runs if run.window), None)

    @cached_property
    def baseline(self) -> float | None:
        """The score of the best guess without order, if known."""
        from lab.build import trivial_guess

        return trivial_guess(self.runs[0].config, "guess_without_order")

    @property
    def seeds(self) -> str:
        """The number of runs behind the score, and of all runs."""
        n, total = len(self.values()), len(self.runs)
        return str(n) if n == total else f"{n} of {total}"

    @property
    def remark(self) -> str:
        """Warnings about the row's runs; empty if all are tested and of one version of the code."""
        notes = [] if self.tested else ["validation"]
        for run in self.runs:
            if run.state == "unfinished":
                how = f"failed: {run.message}" if run.message else "unfinished"
                steps = run.config.get("trainer", {}).get("max_steps", -1)
                total = f" of {steps:,}" if isinstance(steps, int) and steps > 0 else ""
                notes.append(f"seed {run.seed} {how} at step {run.step:,}{total}")
            elif run.state == "trained" and self.tested:
                notes.append(f"seed {run.seed} not tested")
        if len(commits := {run.commit for run in self.runs if run.commit}) > 1:
            notes.append(f"runs of {len(commits)} versions of the code")
        return "; ".join(notes)


@dataclass(frozen=True)
class Group:
    """The configurations of one task.

    Attributes:
        title: the task's name and the options in which it differs from the other groups of this name.
        score: the metric that it is judged by, such as accuracy.
        rows: best first; after the tested ones those that are not.
        unnamed: options in which the rows differ though their labels do not show them, such as d_model per mixer.
    """

    title: str
    score: str
    rows: tuple[Row, ...] = field(repr=False)
    unnamed: tuple[str, ...] = ()

    @cached_property
    def best(self) -> set[str]:
        """Labels of the tested rows with the best score: several if equal, none if only one is tested."""
        scores = {row.label: score for row in self.rows if row.tested and (score := row.center()) is not None}
        best = max((merit(self.score, score) for score in scores.values()), default=None)
        return (
            {label for label, score in scores.items() if merit(self.score, score) == best} if len(scores) > 1 else set()
        )

    @property
    def chance(self) -> float | None:
        """The accuracy of a guess that ignores the input, if the runs have it."""
        found = (row.center("chance") for row in self.rows)
        return next((value for value in found if value is not None), None)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Group runs by task and configuration, and put the seeds of one configuration together.

    Configurations that differ in anything but the seed (and where the run is kept) stay apart, whatever their folders
    are called. If two runs have one configuration and seed, the finished one counts, or else the first; the log names
    the other.
    """
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        of_task = {key: run.options[key] for key in run.options if key.startswith("task.") and key not in _OF_THE_DATA}
        by_task.setdefault(_text(of_task), []).append(run)
    tasks = [members[0] for members in by_task.values()]
    groups = []
    for members in by_task.values():
        first = members[0]
        rivals = [run.options for run in tasks if run.task == first.task]
        telling = {key for key in _differing(rivals) if key.startswith("task.") and key not in _OF_THE_DATA}
        groups.append(_group(label_of(first.task, first.options, telling), members))
    return sorted(groups, key=lambda group: group.title)


def _group(title: str, runs: Sequence[Run]) -> Group:
    found: dict[str, dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: _RANK[run.state]):
        by_seed = found.setdefault(_text(run.options), {})
        if (there := by_seed.setdefault(run.seed, run)) is not run:
            logger.warning("left out %s: the same configuration and seed as %s", run.folder, there.folder)
    configurations = [tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in found.values()]
    score = score_of((run.metrics for run in runs), "test", "val")
    rows, named = [], {"mixer.name"}
    for members in configurations:
        first = members[0]
        telling = _telling([each[0].options for each in configurations if each[0].mixer == first.mixer])
        named |= telling
        label = label_of(first.mixer, first.options, telling)
        rows.append(Row(label, first.options, members, score, frozenset(telling)))
    rows.sort(key=lambda row: (not row.tested, -merit(score, row.center()), row.label))
    differing = _differing([row.options for row in rows]) - named
    return Group(title, score, tuple(rows), tuple(sorted(key for key in differing if not key.startswith("mixer."))))


def _telling(options: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys that tell configurations apart.

    One that is either absent or the same comes with another, as the options of a layer do with the pattern that has it;
    it is left out where the others are enough.
    """
    differing = _differing(options)
    varied = {key for key in differing if len({_text({key: each[key]}) for each in options if key in each}) > 1}
    apart = {_text({key: each.get(key) for key in varied}) for each in options}
    return varied if len(apart) == len(options) else differing


def _differing(options: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys whose values are not the same everywhere; one that is None may have come later than a run."""
    keys = {key for each in options for key in each}
    return {key for key in keys if any(each.get(key) != options[0].get(key) for each in options)}


def label_of(name: str, options: Mapping[str, Any], telling: Set[str]) -> str:
    """`attention n_heads=2`: without the prefixes mixer., task. and trainer., where the rest is no other option."""
    parts = []
    for key in sorted(telling & options.keys()):
        short = key.split(".", 1)[1] if key.startswith(("mixer.", "task.", "trainer.")) else key
        parts.append(f"{key if short != key and short in options else short}={plain(options[key])}")
    return " ".join([name, *parts])


def _text(options: Mapping[str, Any]) -> str:
    return json.dumps(given_options(options), sort_keys=True, default=str)


# Tables


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: name of the column.
        cell: text that is shown for a row.
        value: what rows are sorted by.
        right: whether it holds numbers, which are aligned to the right.
        more_first: whether more is better, and on top after the first click on the heading.
        stays: whether it is shown however narrow the terminal is.
        best: whether a row's cell is marked as the best.
    """

    heading: str
    cell: Callable[[Any], str]
    value: Callable[[Any], Number | str | None]
    right: bool = True
    more_first: bool = False
    stays: bool = False
    best: Callable[[Any], bool] = lambda row: False


@dataclass(frozen=True)
class Section:
    """A table of a page, under its title.

    Attributes:
        title: heading above the table.
        columns: its columns.
        rows: whatever the columns read, such as `Row`.
        note: a sentence below the table.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    note: str = ""


def _fact(heading: str, name: str) -> Column:
    def cell(row: Row) -> str:
        value = row.fact(name)
        return score_text(row.score, value) if name == "chance" else number(None if value is None else round(value))

    return Column(heading, cell, lambda row: row.fact(name), more_first=heading == "tokens/s")


COLUMNS = (
    Column("configuration", lambda row: row.label, lambda row: row.label, right=False, stays=True),
    Column("score", lambda row: row.score_text, lambda row: row.center(), stays=True),
    Column("seeds", lambda row: row.seeds, lambda row: len(row.values()), more_first=True),
    *(_fact(heading, name) for heading, name in FACTS.items()),
    Column(BASELINE, lambda row: score_text(row.score, row.baseline), lambda row: row.baseline),
    Column(
        "lr",
        lambda row: plain(row.options["lr"]) if row.window else "",
        lambda row: row.options["lr"] if row.window else None,
    ),
    Column(
        WINDOW,
        lambda row: window_text(row.window),
        lambda row: row.window["octaves"] if row.window else None,
        more_first=True,
    ),
    Column("remark", lambda row: row.remark, lambda row: row.remark, right=False),
)


def columns_of(group: Group) -> list[Column]:
    """Return the columns that are not empty for a task; the score has its own name, and its own best."""
    score = {
        "heading": group.score.replace("_", " "),
        "more_first": SCORES[group.score],
        "best": lambda row: row.label in group.best,
    }
    every = [replace(each, **score) if each.heading == "score" else each for each in COLUMNS]
    return [each for each in every if any(each.cell(row) not in (NOTHING, "") for row in group.rows)]


def section_of(group: Group) -> Section:
    """Return a task's table, with a note on the options that the labels leave out."""
    note = f"The rows differ also in {', '.join(group.unnamed)}: see compare.csv." if group.unnamed else ""
    return Section(group.title, columns_of(group), group.rows, note)


def table_of(group: Group, width: int) -> Table:
    """Return a task's rich table, the best row marked.

    Columns that do not fit into `width` characters are left out, numbers from the right first, and named below; the
    configuration is wrapped and always whole.

    Raises:
        MissingExtraError: rich is not installed.
    """
    section = section_of(group)
    texts = {column: [column.cell(row) for row in group.rows] for column in section.columns}
    if group.best:
        scores = section.columns[1]
        texts[scores] = [
            f"{text} {'*' if scores.best(row) else ' '}" for text, row in zip(texts[scores], group.rows, strict=True)
        ]
    widths = _fit(texts, width)
    table = terminal.make_table(
        [column.heading for column in widths],
        zip(*(texts[column] for column in widths), strict=True),
        _align(widths),
        title=group.title,
        styles=("bold green" if row.label in group.best else None if row.tested else "dim" for row in group.rows),
    )
    for column, each in zip(table.columns, widths.values(), strict=True):
        column.width = each
    left_out = ", ".join(column.heading for column in texts if column not in widths)
    notes = (
        "* the best mean of the task." if group.best else "",
        section.note,
        f"Too narrow for {left_out}: see compare.csv." if left_out else "",
    )
    table.caption = require_extra("rich.markup").escape(" ".join(filter(None, notes)))
    return table


def _align(columns: Iterable[Column]) -> str:
    return "".join("r" if column.right else "l" for column in columns)


def _fit(texts: Mapping[Column, Sequence[str]], width: int) -> dict[Column, int]:
    """Return the columns that fit into a width, and the characters of each: rich alone would wrap numbers too."""
    widths = {}
    for column, cells in texts.items():
        words = [word for text in (column.heading, *cells) for word in text.split()]
        longest = max(map(len, words))
        widths[column] = max(longest, *map(len, cells)) if column.right else min(_LONGEST_WORD, longest)
    # Numbers leave before remarks; of either, the column on the right leaves first.
    order = list(texts)
    for column in sorted(order, key=lambda column: (not column.right, -order.index(column))):
        if not column.stays and sum(widths.values()) + 2 * len(widths) > width:
            del widths[column]
    spare = width - 2 * len(widths) - sum(widths.values())
    for column in widths:
        if not column.right:
            more = max(0, min(spare, max(map(len, texts[column])) - widths[column]))
            widths[column] += more
            spare -= more
    return widths


def as_markdown(title: str, about: str, sections: Sequence[Section], end: Sequence[str]) -> str:
    """Return a page of tables; `end` are the lines after them."""
    lines = [f"# {title}", "", about, ""]
    for section in sections:
        table = markdown.table(*_cells(section.columns, section.rows))
        lines += [f"## {section.title}", "", *table, "", *([section.note, ""] if section.note else [])]
    return "\n".join([*lines, *end, ""])


def cells_of(group: Group) -> tuple[list[str], list[list[str]], str]:
    """Return a task's table for `zoo.report.markdown.table`: headings, cells with the best score in bold, alignment."""
    return _cells(columns_of(group), group.rows)


def _cells(columns: Sequence[Column], rows: Sequence[Any]) -> tuple[list[str], list[list[str]], str]:
    cells = [[f"**{each.cell(row)}**" if each.best(row) else each.cell(row) for each in columns] for row in rows]
    return [column.heading for column in columns], cells, _align(columns)


def as_csv(groups: Sequence[Group]) -> str:
    """Write CSV, a line per configuration: score, sizes, all metrics (mean and standard deviation), all options."""
    rows = [(group, row) for group in groups for row in group.rows]
    options = sorted(_differing([row.options for _, row in rows]))
    measured = [[by_heading(run.metrics) for run in row.judged] for _, row in rows]
    names = sorted(set().union(*itertools.chain(*measured)))
    lines = [
        {
            "task": group.title,
            "configuration": row.label,
            "best": int(row.label in group.best),
            "score": row.score,
            "split": row.split,
            "mean": row.center(),
            "standard deviation": row.spread,
            "seeds": " ".join(str(run.seed) for run in row.judged),
            "runs": len(row.runs),
            "remark": row.remark,
            WINDOW: window_text(row.window),
            **{f"option {key}": plain(row.options[key]) if key in row.options else "" for key in options},
        }
        for group, row in rows
    ]
    for line, found in zip(lines, measured, strict=True):
        for name in names:
            line[name], line[f"{name} standard deviation"] = mean_and_spread(numbers_at(found, name))
    return _csv(lines)


def runs_as_csv(groups: Sequence[Group], probes: Mapping[Path, Mapping[str, Number]] | None = None) -> str:
    """Write CSV, a line per run: configuration, seed, commit, sizes, test metrics, options in which runs differ.

    Args:
        groups: the runs.
        probes: further columns for the runs in these folders, measured on their models.
    """
    runs = [(group, row, run) for group in groups for row in group.rows for run in row.judged]
    options = sorted(_differing([row.options for _, row, _ in runs]))
    measured = [by_heading(run.metrics) for _, _, run in runs]
    tested = sorted({name for found in measured for name in found if name.startswith("test/")})
    names = ("params", "state_bytes", "chance", "steps_to_90", *tested)
    return _csv(
        [
            {"task": group.title, "configuration": row.label, "seed": run.seed, "commit": run.commit[:9]}
            | {name: f"{value:.7g}" if (value := found.get(name)) is not None else "" for name in names}
            | {f"option {key}": plain(row.options[key]) if key in row.options else "" for key in options}
            | {WINDOW: window_text(row.window)}
            | {f"probe {key}": repr(value) for key, value in (probes or {}).get(run.folder, {}).items()}
            for (group, row, run), found in zip(runs, measured, strict=True)
        ]
    )


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
