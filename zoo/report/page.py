"""A page of measurements: sentences, tables that explain their columns, a picture; for a terminal, Markdown or HTML."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.extras import require_extra
from zoo.report.markdown import table, untagged
from zoo.report.numbers import Number
from zoo.report.terminal import make_table

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: name of the column.
        meaning: explanation of the heading; empty if it needs none.
        cell: text that is shown for a row.
        text: whether it holds text, which is aligned to the left, unlike numbers.
        value: key by which a page sorts rows; default the text of the cell.
        more_first: whether more is better, and on top after the first click on the heading.
        stays: whether it is shown however narrow the terminal is.
        best: whether a row's cell is marked as the best.
    """

    heading: str
    meaning: str
    cell: Callable[[Any], str]
    text: bool = False
    value: Callable[[Any], Number | str | None] | None = None
    more_first: bool = False
    stays: bool = False
    best: Callable[[Any], bool] = lambda row: False

    def key(self, row: Any) -> Number | str | None:
        """Return the value by which a row is sorted."""
        return (self.value or self.cell)(row)


@dataclass(frozen=True)
class Section:
    """A table of a page, under its title.

    Attributes:
        title: heading above the table.
        columns: its columns.
        rows: whatever the columns read, such as a configuration.
        note: a sentence below the table.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    note: str = ""


LISTED = "- **{}**: {}"
"""The line of a column's meaning in Markdown."""
_NAME = Column("", "", lambda row: row.name, text=True)


@dataclass(frozen=True)
class Page:
    """The content of a page, before it is laid out.

    Attributes:
        title: heading of the page.
        tables: title -> columns; every table has the same rows. A terminal and HTML show them one by one.
        rows: the measurements, each with a `name`.
        lead: sentences above the tables.
        notes: sentences below the tables.
        caption: description of the picture.
    """

    title: str
    tables: Mapping[str, Sequence[Column]]
    rows: Sequence[Any]
    lead: Sequence[str] = ()
    notes: Sequence[str] = ()
    caption: str = ""

    @property
    def columns(self) -> list[Column]:
        """The columns of all tables."""
        return [column for columns in self.tables.values() for column in columns]


def print_page(page: Page, console: Console) -> None:
    """Print tables, each with the meaning of its columns, and sentences; a heading may wrap, a number does not."""
    for title, columns in page.tables.items():
        headings, lines, align = cells((_NAME, *columns), page.rows)
        shown = make_table(headings, lines, align, title=title)
        for column, texts in zip(shown.columns, zip(*lines, strict=True), strict=True):
            column.min_width = max(map(len, texts))
        console.print(shown)
        console.print("\n".join(meanings(columns)), style="dim", highlight=False, markup=False)
        console.print()
    for sentence in (*page.lead, *page.notes):
        console.print(sentence, highlight=False)


def meanings(columns: Iterable[Column], line: str = "{}: {}") -> list[str]:
    """Return what the columns mean, a line for each meaning, by default for a terminal."""
    return list(dict.fromkeys(line.format(each.heading, each.meaning) for each in columns if each.meaning))


def page_as_markdown(page: Page, picture: str) -> str:
    """Return the page with one table of all columns.

    Args:
        page: the content.
        picture: file name of the picture.
    """
    end = [line for sentence in page.notes for line in (sentence, "")]
    end += meanings(page.columns, LISTED)
    tables = [Section("", (_NAME, *page.columns), page.rows)]
    return as_markdown(page.title, "\n\n".join(page.lead), tables, [*end, "", f"![{page.caption}]({picture})"])


def as_markdown(title: str, about: str, sections: Sequence[Section], end: Sequence[str]) -> str:
    """Return a page of tables in Markdown.

    Args:
        title: heading of the page.
        about: text above the tables.
        sections: the tables; one without a title has no heading.
        end: lines after the tables.
    """
    lines = [f"# {untagged(title)}", "", untagged(about), ""]
    for section in sections:
        lines += [f"## {untagged(section.title)}", ""] if section.title else []
        lines += [*table(*cells(section.columns, section.rows)), "", *([section.note, ""] if section.note else [])]
    return "\n".join([*lines, *end, ""])


def as_html(page: Page, picture: bytes = b"", explorer: Mapping[str, Any] | None = None) -> str:
    """Return the page with a picture, a PNG, or the explorer of these data (`explorer.html`); it needs no network.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    template = Path(__file__).with_name("page.html")
    return render(template, page=page, picture=base64.b64encode(picture).decode(), explorer=explorer)


def render(template: Path, **parts: Any) -> str:
    """Return the page that a template makes of its parts, whose text is escaped; it may include files of this folder.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    jinja2 = require_extra("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        keep_trailing_newline=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template.name).render(parts)


def cells(columns: Sequence[Column], rows: Iterable[Any]) -> tuple[list[str], list[list[str]], str]:
    """Return headings, lines and alignment of a table in Markdown or a terminal, the best cells in bold (`**`)."""
    lines = [[f"**{each.cell(row)}**" if each.best(row) else each.cell(row) for each in columns] for row in rows]
    return [column.heading for column in columns], lines, "".join("l" if column.text else "r" for column in columns)
