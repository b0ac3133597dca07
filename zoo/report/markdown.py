"""Markdown: tables, escaping, and generated parts of pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "c": ":-:", "r": "---:"}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> list[str]:
    """Return the lines of a table.

    >>> table(("mixer", "rank"), [("attention", "4")], "lr")
    ['| mixer | rank |', '|---|---:|', '| attention | 4 |']

    Args:
        headings: names of the columns.
        rows: one text per column; `|` and `<` are escaped.
        align: one letter per column, l, c or r; default l for all.
    """
    rules = "|".join(_RULES[letter] for letter in align or "l" * len(headings))
    return [_line(headings), f"|{rules}|", *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    escaped = (untagged(cell.replace("|", "\\|")) for cell in cells)
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in escaped)


def untagged(text: str) -> str:
    """Escape `<`, so that names from other sources cannot contain HTML tags."""
    return text.replace("<", "&lt;")


def sentence(text: str) -> str:
    """Make a sentence of a summary: capital letter and full stop; an empty text is unchanged."""
    return text[:1].upper() + text[1:].rstrip(".") + "." * bool(text)


def replace_part(page: str, name: str, part: str) -> str:
    """Replace the lines between `<!-- name -->` and `<!-- /name -->`; a page without these markers is unchanged.

    Args:
        page: text of the page.
        name: name in the markers.
        part: the new lines, each with its line break.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.partition(begin)
    return f"{before}{begin}{part}{end}{rest.partition(end)[2]}" if found else page
