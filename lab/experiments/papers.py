"""Command `python -m lab reproduce`: run a paper's recipe and compare its published scores with ours."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from lab.experiments.page import Pages
from lab.experiments.record import Record, read_listed, read_records
from lab.experiments.rows import Row, UnknownColumnError, read_rows, samples, select
from lab.experiments.spec import CONFIGS, ROOT, Spec, list_specs, read_spec
from lab.sweep.experiment import check_keys
from lab.sweep.sweep import main as sweep
from zoo.evidence import Check, paired, within
from zoo.evidence.page import check_record, read_check
from zoo.report.files import as_json, finite, write_all
from zoo.report.numbers import number
from zoo.report.terminal import listing, make_console, make_table

KIND = "paper"
CELL_KEYS = ("value", "spread")
PROGRAM, PAGE, STORED = "lab reproduce", "papers.md", "papers.json"
TABLE_KEYS = ("title", "metric", "chance", "n_test", "where", "cells")
HEADINGS = ("model", "published", "ours", "95 % interval", "judged")
HELP = """\
A paper is one file of configs/paper: an experiment for sweep.py, and the published scores. Our score is higher or lower
if its 95 % interval over seeds lies outside the published score ± its spread (or the sampling error of its test set).
The same command resumes the runs. Without a name, the command lists the papers.

Exit status: 0 all runs are done; 1 some failed; 2 invalid command line; 130 interrupted.

papers:
"""


@dataclass(frozen=True)
class Cell:
    """A published score, and the runs that reproduce it.

    Attributes:
        table: title of the published table.
        model: name of its row.
        published: the published score as text, with its spread.
        low: lower end of the range of the published score.
        high: upper end of the range.
        metrics: columns of the list of runs, whose mean is compared.
        chance: accuracy at which a scaled score is zero; 0 for plain accuracies.
        where: conditions on the runs; None if the zoo lacks the paper's mixer.
    """

    table: str
    model: str
    published: str
    low: float
    high: float
    metrics: tuple[str, ...]
    chance: float
    where: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        return f"{self.table}: {self.model}"

    def compare(self, rows: Sequence[Row]) -> Check:
        """Return a check of the median of our runs, with the range of the published score as its region."""
        try:
            chosen = select(rows, self.where) if self.where is not None else []
        except UnknownColumnError:  # the runs so far do not differ in this column
            chosen = []
        measured = [samples(chosen, metric) for metric in self.metrics]
        scaled = paired(lambda *each: (fmean(each) - self.chance) / (1 - self.chance), *measured)
        return within(self.name, scaled, self.low, self.high)


def published_cells(paper: Spec) -> list[Cell]:
    """Return the cells of a paper's tables.

    Raises:
        UsageError: an unknown key of a table.
    """
    return [cell for table in paper.published for cell in _cells(f"{paper.name}: published", table)]


def _cells(source: str, table: Mapping[str, Any]) -> list[Cell]:
    check_keys(source, table, TABLE_KEYS)
    metric, chance = table.get("metric", "accuracy"), table.get("chance", 0.0)
    metrics = tuple(metric) if isinstance(metric, list) else (metric,)
    found = []
    for model, given in table["cells"].items():
        where = {key: value for key, value in given.items() if key not in CELL_KEYS}
        region = _region(given["value"], given.get("spread"), table.get("n_test"), chance)
        published = f"{given['value']} ± {given['spread']}" if "spread" in given else str(given["value"])
        conditions = {**table.get("where", {}), **where} if where else None
        found.append(Cell(table["title"], model, published, *region, metrics, chance, conditions))
    return found


def _region(value: float, spread: float | None, n_test: int | None, chance: float) -> tuple[float, float]:
    """Return the range of a published score: its spread over runs, else the sampling error of its test set."""
    if spread is not None:
        return value - spread, value + spread
    if n_test is None:
        return value, value
    from zoo.evidence.interval import of_share

    found = of_share(round((chance + value * (1 - chance)) * n_test), n_test)
    low, high = ((end - chance) / (1 - chance) for end in found[1:])
    return min(low, value), max(high, value)


def judged(cell: Cell, check: Check) -> str:
    """Return "within", "higher" or "lower"; without enough runs, the reason."""
    if cell.where is None:
        return "no such mixer here"
    if not check.seeds:
        return "not run"
    if check.reason:
        return f"undecided: {check.reason}"
    return "within" if check.verdict != "fails" else "**higher**" if check.value > check.high else "**lower**"


def tables(paper: Spec, checks: Mapping[str, Check]) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of each table, by title; the columns are `HEADINGS`."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for cell in published_cells(paper):
        check = checks[cell.name]
        ours = (number(check.value), check.interval_text) if check.seeds else ("–", "–")
        found.setdefault(cell.table, []).append((cell.model, cell.published, *ours, judged(cell, check)))
    return found


def papers_page(records: Mapping[str, Record]) -> str:
    """Return docs/papers.md from the stored records; a paper without a record shows only its published scores."""
    pages, shown = Pages(records), []
    for name in list_specs(KIND):
        record = records.get(name, {})
        paper = read_spec(name, record.get("setting"), KIND)
        measured = {each["quantity"]: read_check(each) for each in record.get("checks", ())}
        checks = {
            cell.name: replace(measured.get(cell.name) or cell.compare([]), low=cell.low, high=cell.high)
            for cell in published_cells(paper)
        }
        found = pages.jinja.from_string(paper.found).render()
        shown.append({"paper": paper, "record": record, "tables": tables(paper, checks), "found": found})
    return pages.render(f"{PAGE}.j2", papers=shown, headings=HEADINGS)


def main(argv: Sequence[str]) -> int:
    """Run a command line and return the exit status; see HELP."""
    parser = argparse.ArgumentParser(
        f"python -m {PROGRAM}",
        description="Run a paper's recipe; write its published scores and ours to docs/papers.md.",
        epilog="\n".join([HELP.rstrip(), *listing(list_specs(KIND))]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="paper; default: list them")
    add("--setting", help="setting in the paper's file; default: the file's default")
    add("--run_dir", type=Path, default=Path("runs"), metavar="DIR", help="folder of the runs (runs)")
    add("--slots", metavar="N", help="runs at a time; default: the GPUs, or the cores")
    add("--out", type=Path, default=ROOT / "docs", metavar="DIR", help="folder of the page (docs)")
    arguments = parser.parse_args(argv)
    if arguments.name is None:
        print("\n".join(listing(list_specs(KIND), "")))
        return 0
    paper = read_spec(arguments.name, arguments.setting, KIND)
    flags = ["--setting", str(paper.experiment.setting), "--run_dir", str(arguments.run_dir)]
    flags += ["--slots", arguments.slots] if arguments.slots else []
    status = sweep([str(CONFIGS / KIND / f"{paper.name}.yaml"), *flags])
    if status == 2:
        return status
    records, kept = read_records(arguments.out / STORED), f"papers/{paper.name}.csv"
    listed = read_listed(paper, arguments.run_dir, arguments.out / kept, {})
    if not listed.text:  # no run has finished: the stored record and its page stay as they are
        return status
    rows = read_rows(listed.text, paper.experiment.fixed)
    checks = {cell.name: cell.compare(rows) for cell in published_cells(paper)}
    measured = [check_record(check) for check in checks.values() if check.seeds]
    setting = {"setting": paper.experiment.setting, "missing": listed.missing}
    records[paper.name] = finite({**setting, **listed.origin, "checks": measured})
    files = {STORED: as_json(records), PAGE: papers_page(records), kept: listed.text}
    written = write_all(arguments.out, files)
    for title, lines in tables(paper, checks).items():
        make_console().print(make_table(HEADINGS, lines, "lrrrl", title=title))
    print(*written, sep="\n")
    return status
