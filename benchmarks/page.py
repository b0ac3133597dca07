"""Results of benchmarks as plain data and as Markdown: tables, and targets with their outcome."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from zoo.report import machine, markdown
from zoo.report.numbers import number

Cell = str | float | int | None


@dataclass
class Table:
    """A table with a caption; numbers are stored unrounded and rounded when shown."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)


@dataclass
class Target:
    """A target for a number: at least `wanted` if `least`, otherwise at most `wanted`."""

    what: str
    wanted: float
    measured: float
    least: bool = True

    @property
    def met(self) -> bool:
        return self.measured >= self.wanted if self.least else self.measured <= self.wanted

    @property
    def bound(self) -> str:
        """The target in words."""
        return f"{'≥' if self.least else '≤'} {show(self.wanted)}"


@dataclass
class Section:
    """Results of one section of the benchmarks."""

    about: str
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Section:
        tables = [Table(**table) for table in plain["tables"]]
        targets = [Target(**target) for target in plain["targets"]]
        return cls(plain["about"], tables, targets, list(plain["figures"]))


def describe_machine() -> str:
    """Return processor, cores, Python, torch and date in one phrase; it accompanies every committed number."""
    return f"{machine.describe_machine()}, {datetime.datetime.now(datetime.UTC).date()}"


def show(cell: Cell) -> str:
    """Format with three significant digits; a missing measurement is a dash."""
    return cell if isinstance(cell, str) else number(cell, digits=3)


def render_table(table: Table) -> list[str]:
    """Return the table in Markdown."""
    lines = [f"**{table.caption}**", ""] if table.caption else []
    return [*lines, *markdown.table(table.columns, [[show(cell) for cell in row] for row in table.rows]), ""]


def render_targets(targets: Sequence[Target]) -> list[str]:
    """Return the table of targets and measured values."""
    table = Table("", ["target", "asked for", "measured", "met"])
    for target in targets:
        table.rows.append([target.what, target.bound, target.measured, "yes" if target.met else "**no**"])
    return render_table(table)


def render_section(title: str, section: Section, measured: str) -> list[str]:
    """Return a section of the page: description, tables, figures, targets, and machine and date."""
    lines = [f"## {title}", "", section.about, ""]
    for table in section.tables:
        lines += render_table(table)
    lines += [line for figure in section.figures for line in (f"![{title}]({figure})", "")]
    if section.targets:
        lines += render_targets(section.targets)
    return [*lines, f"<sub>{measured}</sub>", ""]
