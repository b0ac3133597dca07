"""Pages of measurements: text, tables with explained columns and a picture, for terminal, Markdown or HTML."""

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
        meaning: explanation of the heading; empty if none is needed.
        cell: returns the text for a row.
        text: whether the column is text (left-aligned) rather than numbers (right-aligned).
        value: returns the key by which an HTML page sorts rows; default: the text of the cell.
        more_first: whether higher is better; then the first click on the heading sorts in descending order.
        stays: whether the column is shown even on a narrow terminal.
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
        """Return the sort key of a row."""
        return (self.value or self.cell)(row)


@dataclass(frozen=True)
class Section:
    """A table with title and note.

    Attributes:
        title: heading above the table.
        columns: the columns.
        rows: the objects that the columns format, such as configurations.
        note: a sentence below the table.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    note: str = ""


LISTED = "- **{}**: {}"
"""Format of a column's heading and meaning in Markdown."""
_NAME = Column("", "", lambda row: row.name, text=True)


@dataclass(frozen=True)
class Page:
    """The content of a page, independent of its format.

    Attributes:
        title: heading of the page.
        tables: {title: columns}; all tables have the same rows. Terminal and HTML show separate tables, Markdown one.
        rows: the measurements, each with the attribute `name`.
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
    """Print the tables, each with the meanings of its columns, and the sentences; headings may wrap, cells may not."""
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
    """Return a line per explained column, without repetitions; the default format is for a terminal."""
    return list(dict.fromkeys(line.format(each.heading, each.meaning) for each in columns if each.meaning))


def page_as_markdown(page: Page, picture: str) -> str:
    """Render the page in Markdown, with one table of all columns.

    Args:
        page: the content.
        picture: file name of the picture.
    """
    end = [line for sentence in page.notes for line in (sentence, "")]
    end += meanings(page.columns, LISTED)
    tables = [Section("", (_NAME, *page.columns), page.rows)]
    return as_markdown(page.title, "\n\n".join(page.lead), tables, [*end, "", f"![{page.caption}]({picture})"])


def as_markdown(title: str, about: str, sections: Sequence[Section], end: Sequence[str]) -> str:
    """Render a page of tables in Markdown.

    Args:
        title: heading of the page.
        about: text above the tables.
        sections: the tables; an empty title gives no heading.
        end: lines after the tables.
    """
    lines = [f"# {untagged(title)}", "", untagged(about), ""]
    for section in sections:
        lines += [f"## {untagged(section.title)}", ""] if section.title else []
        lines += [*table(*cells(section.columns, section.rows)), "", *([section.note, ""] if section.note else [])]
    return "\n".join([*lines, *end, ""])


def as_html(page: Page, picture: bytes = b"", explorer: Mapping[str, Any] | None = None) -> str:
    """Render the page as self-contained HTML, with a picture (PNG) or an interactive explorer (`explorer.html`).

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    template = Path(__file__).with_name("page.html")
    return render(template, page=page, picture=base64.b64encode(picture).decode(), explorer=explorer)


def render(template: Path, **parts: Any) -> str:
    """Render a jinja2 template; text is escaped, and the template may include files of this folder.

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
    """Return headings, rows and alignment of a table for Markdown or a terminal, with the best cells in bold (`**`)."""
    lines = [[f"**{each.cell(row)}**" if each.best(row) else each.cell(row) for each in columns] for row in rows]
    return [column.heading for column in columns], lines, "".join("l" if column.text else "r" for column in columns)
