"""Seeds put together: a row per configuration, grouped by task, as text for a terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lab.run.identity import given_options
from lab.run.metrics import by_heading, numbers_at
from lab.run.record import Run
from lab.score import (
    BASELINE,
    FACTS,
    SCORES,
    WINDOW,
    fact_text,
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
from zoo.report.numbers import NOTHING, Number, plain

if TYPE_CHECKING:
    from rich.table import Table

logger = logging.getLogger(__name__)

# Options of the data that leave the task what it is: how much there is to train on, what else is tested.
_OF_THE_DATA = {f"task.{name}" for name in ("n_train", "n_val", "n_test", "fresh", "test_lengths")}
_RANK = {"tested": 0, "trained": 1, "unfinished": 2}
_LONGEST_WORD = 24  # that a column of text keeps whole where there is no room


@dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes:
        label: the mixer and the options in which it differs from the group's other configurations of this mixer.
        options: of the configuration, by dotted name.
        runs: one per seed, by seed.
        score: the name of what it is judged by, such as accuracy.
        telling: the options that the label says.
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
        """The runs that count: the tested ones; where there are none the trained, else the unfinished ones."""
        best = min(_RANK[run.state] for run in self.runs)
        return tuple(run for run in self.runs if _RANK[run.state] == best)

    @property
    def tested(self) -> bool:
        """Whether the score is of the test split; otherwise it is of validation, and no candidate for the best."""
        return self.judged[0].state == "tested"

    @property
    def split(self) -> str:
        """Which split the score is of."""
        return "test" if self.tested else "val"

    def values(self, *path: str) -> list[Number]:
        """Return a metric, by default the score, of the runs that count, where they have it.

        Args:
            path: as for `lab.run.metrics.number_at`.
        """
        return numbers_at((run.metrics for run in self.judged), *(path or (self.split, self.score)))

    def mean(self, *path: str) -> float | None:
        """Return the mean of `values`."""
        return mean_and_spread(self.values(*path))[0]

    @property
    def spread(self) -> float | None:
        """The score's standard deviation over the runs that count; None for less than two."""
        return mean_and_spread(self.values())[1]

    @property
    def window(self) -> Mapping[str, Any] | None:
        """The window of learning rates that a sweep has measured for this configuration."""
        return next((run.window for run in self.runs if run.window), None)

    @cached_property
    def baseline(self) -> float | None:
        """What the best guess without order scores, where that is known."""
        from lab.build import trivial_guess

        return trivial_guess(self.runs[0].config, "guess_without_order")

    @property
    def seeds(self) -> str:
        """How many runs the score is of, of how many there are."""
        n, of = len(self.values()), len(self.runs)
        return str(n) if n == of else f"{n} of {of}"

    @property
    def remark(self) -> str:
        """What must be said of the row's runs; empty where all are tested."""
        notes = [] if self.tested else ["validation"]
        for run in self.runs:
            if run.state == "unfinished":
                how = f"failed: {run.message}" if run.message else "unfinished"
                steps = run.config.get("trainer", {}).get("max_steps", -1)
                of = f" of {steps:,}" if isinstance(steps, int) and steps > 0 else ""
                notes.append(f"seed {run.seed} {how} at step {run.step:,}{of}")
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
        score: the name of what it is judged by, such as accuracy.
        rows: best first; after the tested ones those that are not.
        unnamed: options in which the rows differ though their labels do not say so, such as d_model chosen by mixer.
    """

    title: str
    score: str
    rows: tuple[Row, ...] = field(repr=False)
    unnamed: tuple[str, ...] = ()

    @property
    def best(self) -> set[str]:
        """Labels of the tested rows with the best mean: several where equal, none where only one is tested."""
        means = {row.label: mean for row in self.rows if row.tested and (mean := row.mean()) is not None}
        best = max((merit(self.score, mean) for mean in means.values()), default=None)
        return {label for label, mean in means.items() if merit(self.score, mean) == best} if len(means) > 1 else set()

    @property
    def chance(self) -> float | None:
        """What a guesser that ignores the input scores, where the runs say so."""
        found = (row.mean("chance") for row in self.rows)
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
    rows.sort(key=lambda row: (not row.tested, -merit(score, row.mean()), row.label))
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


# As text


@dataclass(frozen=True)
class Column:
    """A column of the tables: what it says of a row."""

    heading: str
    cell: Callable[[Row], str]
    value: Callable[[Row], Number | str | None]
    """What rows are sorted by, and what CSV holds."""
    right: bool = True
    more_first: bool = False
    """Whether more of it is better, and on top when one asks for this order."""
    stays: bool = False
    """Whether it is shown however narrow the terminal is."""


def _fact(heading: str, name: str) -> Column:
    return Column(
        heading,
        lambda row: fact_text(name, row.values(name), row.score, len(row.judged)),
        lambda row: _fact_value(row, name),
        more_first=heading == "tokens/s",
    )


def _fact_value(row: Row, name: str) -> Number | None:
    if name == "chance":
        return guess_level(row.score, row.mean(name))
    return median_steps(row.values(name), len(row.judged)) if name == "steps_to_90" else row.mean(name)


COLUMNS = (
    Column("configuration", lambda row: row.label, lambda row: row.label, right=False, stays=True),
    Column(
        "score",
        lambda row: score_text(row.score, row.mean(), row.spread),
        lambda row: row.mean(),
        stays=True,
    ),
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
    """Return the columns that say anything of a task; the score has its own name, and its own best."""
    score = {"heading": group.score.replace("_", " "), "more_first": SCORES[group.score]}
    every = [replace(each, **score) if each.heading == "score" else each for each in COLUMNS]
    return [each for each in every if any(each.cell(row) not in (NOTHING, "") for row in group.rows)]


def unnamed_text(group: Group) -> str:
    """Return a sentence on what the labels do not say; empty where they say all."""
    return f"The rows differ also in {', '.join(group.unnamed)}: see compare.csv." if group.unnamed else ""


def table_of(group: Group, width: int) -> Table:
    """Return a task's rich table, the best row marked.

    What does not fit into `width` characters is left out, numbers from the right first, and named below; the
    configuration is wrapped and always whole.

    Raises:
        MissingExtraError: rich is not installed.
    """
    columns = columns_of(group)
    texts = [[column.heading, *map(column.cell, group.rows)] for column in columns]
    if group.best:
        marks = ("*" if row.label in group.best else " " for row in group.rows)
        texts[1][1:] = [f"{text} {mark}" for text, mark in zip(texts[1][1:], marks, strict=True)]
    widths = _fit(columns, texts, width)
    headings, *rows = zip(*(texts[at] for at in widths), strict=True)
    table = terminal.make_table(
        headings,
        rows,
        _align(columns[at] for at in widths),
        title=group.title,
        styles=("bold green" if row.label in group.best else None if row.tested else "dim" for row in group.rows),
    )
    for column, each in zip(table.columns, widths.values(), strict=True):
        column.width = each
    left_out = ", ".join(column.heading for at, column in enumerate(columns) if at not in widths)
    notes = (
        "* the best mean of the task." if group.best else "",
        unnamed_text(group),
        f"Too narrow for {left_out}: see compare.csv." if left_out else "",
    )
    table.caption = require_extra("rich.markup").escape(" ".join(filter(None, notes)))
    return table


def _align(columns: Iterable[Column]) -> str:
    return "".join("r" if column.right else "l" for column in columns)


def _fit(columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """Return {number of a column: characters} of those that fit into a width, from their texts, the heading first.

    Numbers are whole; text may wrap down to its longest word.
    """
    least = [
        max(max(map(len, cells[1:]), default=0), max(map(len, cells[0].split())))
        if column.right
        else min(_LONGEST_WORD, max(len(word) for text in cells for word in text.split()))
        for column, cells in zip(columns, texts, strict=True)
    ]
    kept = list(range(len(columns)))
    # What is on the right leaves first, numbers before remarks; configuration and score stay.
    leaving = sorted((at for at in kept if not columns[at].stays), key=lambda at: (not columns[at].right, -at))
    for at in leaving:
        if 2 * len(kept) + sum(least[at] for at in kept) > width and len(kept) > 2:
            kept.remove(at)
    widths, room = {at: least[at] for at in kept}, width - 2 * len(kept) - sum(least[at] for at in kept)
    for at in kept:
        if not columns[at].right:
            widths[at] += max(0, min(room, max(map(len, texts[at])) - widths[at]))
            room -= widths[at] - least[at]
    return widths


def as_markdown(groups: Sequence[Group], sources: str) -> str:
    """Return a page with a table for each task; `sources` says what was read."""
    lines = [
        "# Comparison",
        "",
        f"{sources} Mean ± standard deviation over seeds; the best mean of a task in bold.",
        "",
    ]
    for group in groups:
        table = markdown.table(*cells_of(group))
        lines += [f"## {group.title}", "", *table, "", *([unnamed_text(group), ""] if group.unnamed else [])]
    lines += ["![Curves and scores of the tasks above](compare.png)", ""]
    return "\n".join(lines)


def cells_of(group: Group) -> tuple[list[str], list[list[str]], str]:
    """Return a task's table for `zoo.report.markdown.table`: headings, cells with the best score in bold, alignment."""
    columns = columns_of(group)
    rows = [[column.cell(row) for column in columns] for row in group.rows]
    for row, cells in zip(group.rows, rows, strict=True):
        if row.label in group.best:
            cells[1] = f"**{cells[1]}**"
    return [column.heading for column in columns], rows, _align(columns)


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
            "mean": row.mean(),
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


def runs_as_csv(groups: Sequence[Group]) -> str:
    """Write CSV, a line per run: configuration, seed, commit, sizes, test metrics, options in which runs differ."""
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
            for (group, row, run), found in zip(runs, measured, strict=True)
        ]
    )


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
