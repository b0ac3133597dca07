"""The tables of a comparison: their columns, and their form in a terminal, in Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.run.metrics import by_heading, numbers_at
from lab.run.score import (
    BASELINE,
    FACTS,
    SCORES,
    WINDOW,
    mean_and_spread,
    window_text,
)
from lab.view.rows import Group, Row, differing_options
from zoo.extras import require_extra
from zoo.report import terminal
from zoo.report.numbers import NOTHING, Number, number, plain
from zoo.report.page import Column, Section, meanings

if TYPE_CHECKING:
    from rich.table import Table


_LONGEST_WORD = 24  # characters; longer words in a text column may be broken


_MEANINGS = {
    "chance": "score of a guess that ignores the input",
    "parameters": "number of trained parameters",
    "state bytes": "state after the sequence, batch of one; – if the mixer does not stream",
    "tokens/s": "positions per second of training",
    "steps to 90 %": "first step at 90 % of the way from chance to a perfect score, median over seeds",
}


def _fact(heading: str, name: str) -> Column:
    def cell(row: Row) -> str:
        value = row.fact(name)
        if name == "chance":
            return row.text(value)
        return number(None if value is None else round(value))

    more_first = heading == "tokens/s"
    return Column(heading, _MEANINGS[heading], cell, value=lambda row: row.fact(name), more_first=more_first)


COLUMNS = (
    Column("configuration", "", lambda row: row.label, text=True, stays=True),
    Column("score", "", lambda row: row.score_text, value=lambda row: row.center(), stays=True),
    Column("seeds", "", lambda row: row.seeds, value=lambda row: len(row.values()), more_first=True),
    Column(
        "solved",
        "runs whose test score is at least 90 % of the way from chance to a perfect score",
        lambda row: "{} of {}".format(*row.solved) if row.solved and row.solved[1] > 1 else "",
        value=lambda row: row.solved[0] / row.solved[1] if row.solved else None,
        more_first=True,
    ),
    *(_fact(heading, name) for heading, name in FACTS.items()),
    Column(
        BASELINE,
        "score of the best guess from the counts of the tokens read so far",
        lambda row: row.text(row.baseline),
        value=lambda row: row.baseline,
    ),
    Column(
        "lr",
        "tuned learning rate",
        lambda row: plain(row.options["lr"]) if row.window else "",
        value=lambda row: row.options["lr"] if row.window else None,
    ),
    Column(
        WINDOW,
        "range of learning rates that score nearly as well",
        lambda row: window_text(row.window),
        value=lambda row: row.window["octaves"] if row.window else None,
        more_first=True,
    ),
    Column("remark", "", lambda row: row.remark, text=True),
)


def columns_of(group: Group) -> list[Column]:
    """Return the nonempty columns for a task; the score column gets the metric's name and the task's best rows."""
    score = {
        "heading": group.score.replace("_", " "),
        "more_first": SCORES[group.score],
        "best": lambda row: row.label in group.best,
    }
    every = [replace(each, **score) if each.heading == "score" else each for each in COLUMNS]
    return [each for each in every if any(each.cell(row) not in (NOTHING, "") for row in group.rows)]


def section_of(group: Group) -> Section:
    """Return a task's table, with a note on options that no label shows, and on budgets."""
    notes = [f"The rows also differ in {', '.join(group.unnamed)}: see compare.csv."] if group.unnamed else []
    if len({row.budget for row in group.rows}) > 1 and not group.any_budget:
        notes.append("The best is marked per budget (steps, batch size, n_train, fresh); --any_budget: among all.")
    return Section(group.title, columns_of(group), group.rows, " ".join(notes))


def explain(sections: Iterable[Section], line: str) -> list[str]:
    """Return a line per column of the tables that explains it; see `zoo.report.page.meanings`."""
    return meanings(dict.fromkeys(column for section in sections for column in section.columns), line)


def table_of(group: Group, width: int) -> Table:
    """Return a task's rich table with the best row marked.

    Columns that do not fit into `width` characters are left out and listed below the table, numbers first, from the
    right. The configuration is wrapped, never cut.

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
        "".join("l" if column.text else "r" for column in widths),
        title=group.title,
        styles=("bold green" if row.label in group.best else None if row.tested else "dim" for row in group.rows),
    )
    for column, each in zip(table.columns, widths.values(), strict=True):
        column.width = each
    left_out = ", ".join(column.heading for column in texts if column not in widths)
    notes = (
        "* the best mean." if group.best else "",
        f"No room for {left_out}: see compare.csv." if left_out else "",
        section.note,
    )
    table.caption = require_extra("rich.markup").escape(" ".join(filter(None, notes)))
    return table


def _fit(texts: Mapping[Column, Sequence[str]], width: int) -> dict[Column, int]:
    """Return the columns that fit into a width, with the width of each; rich alone would also wrap numbers."""
    widths = {}
    for column, lines in texts.items():
        words = [word for text in (column.heading, *lines) for word in text.split()]
        longest = max(map(len, words))
        widths[column] = max(longest, *map(len, lines)) if not column.text else min(_LONGEST_WORD, longest)
    # Drop numbers before text, each from the right.
    order = list(texts)
    for column in sorted(order, key=lambda column: (column.text, -order.index(column))):
        if not column.stays and sum(widths.values()) + 2 * len(widths) > width:
            del widths[column]
    spare = width - 2 * len(widths) - sum(widths.values())
    for column in widths:
        if column.text:
            more = max(0, min(spare, max(map(len, texts[column])) - widths[column]))
            widths[column] += more
            spare -= more
    return widths


def as_csv(groups: Sequence[Group]) -> str:
    """Return CSV with a line per configuration: score, all metrics (mean and standard deviation), differing options."""
    rows = [(group, row) for group in groups for row in group.rows]
    options = sorted(differing_options([row.options for _, row in rows]))
    measured = [[by_heading(run.metrics) for run in row.judged] for _, row in rows]
    names = sorted(name for name in set().union(*itertools.chain(*measured)) if not name.startswith("curve/"))
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
            **_values(row, options),
        }
        for group, row in rows
    ]
    for line, found in zip(lines, measured, strict=True):
        for name in names:
            line[name], line[f"{name} standard deviation"] = mean_and_spread(numbers_at(found, name))
    return _csv(lines)


def runs_as_csv(
    groups: Sequence[Group], probes: Mapping[Path, Mapping[str, Number]] | None = None, named: Iterable[str] = ()
) -> str:
    """Return CSV with a line per run: configuration, seed, commit, sizes, test metrics, differing options.

    Args:
        groups: the runs.
        probes: columns measured by probes, by run folder.
        named: options that get a column even if all runs agree in them.
    """
    runs = [(group, row, run) for group in groups for row in group.rows for run in row.judged]
    options = sorted({*differing_options([row.options for _, row, _ in runs]), *named})
    measured = [by_heading(run.metrics) for _, _, run in runs]
    tested = sorted({name for found in measured for name in found if name.startswith("test/")})
    names = ("params", "state_bytes", "chance", "steps_to_90", "converged", *tested)
    return _csv(
        [
            {"task": group.title, "configuration": row.label, "seed": run.seed, "commit": run.commit[:9]}
            | {name: f"{value:.7g}" if (value := found.get(name)) is not None else "" for name in names}
            | _values(row, options)
            | {WINDOW: window_text(row.window)}
            | {f"probe {key}": repr(value) for key, value in (probes or {}).get(run.folder, {}).items()}
            for (group, row, run), found in zip(runs, measured, strict=True)
        ]
    )


def _values(row: Row, options: Iterable[str]) -> dict[str, str]:
    return {f"option {key}": plain(row.options[key]) if key in row.options else "" for key in options}


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
