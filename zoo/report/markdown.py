"""Markdown: tables, and the part of a page that a program writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "c": ":-:", "r": "---:"}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> list[str]:
    """Return the lines of a table.

    >>> table(("mixer", "rank"), [("attention", "4")], "lr")
    ['| mixer | rank |', '|---|---:|', '| attention | 4 |']

    Args:
        headings: names of the columns.
        rows: a text for each column; a bar, and the beginning of a tag, are escaped.
        align: a letter for each column, l, c or r; default l for all.
    """
    rules = "|".join(_RULES[letter] for letter in align or "l" * len(headings))
    return [_line(headings), f"|{rules}|", *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    escaped = (untagged(cell.replace("|", "\\|")) for cell in cells)
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in escaped)


def untagged(text: str) -> str:
    """Return a text, which may hold a stranger's names, without the beginning of a tag."""
    return text.replace("<", "&lt;")


def sentence(text: str) -> str:
    """Return a line of a registry as a sentence; an empty text stays empty."""
    return text[:1].upper() + text[1:].rstrip(".") + "." * bool(text)


def replace_part(page: str, name: str, part: str) -> str:
    """Return the page with another part between `<!-- name -->` and `<!-- /name -->`; a page without the two as it is.

    Args:
        page: text of the whole.
        name: name of the part.
        part: whole lines.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.partition(begin)
    return f"{before}{begin}{part}{end}{rest.partition(end)[2]}" if found else page
