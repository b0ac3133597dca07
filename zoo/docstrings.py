"""Parse docstrings into paragraphs, titled paragraphs and descriptions of arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from zoo.extras import require_extra


def paragraphs(cls: Callable[..., object]) -> list[str]:
    """Return the paragraphs of a class's or function's docstring up to its `Args:` or its example."""
    text = re.split(r"\n *>{3} |\n+Args:", inspect.getdoc(cls) or "", maxsplit=1)[0]
    return text.strip().split("\n\n")


def titled(cls: type, titles: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Split a docstring into the paragraphs without a title, and {title: text} of those that begin with `title.`.

    Raises:
        ValueError: a paragraph without a title follows one that has a title, or a title occurs twice.
    """
    free: list[str] = []
    found: dict[str, str] = {}
    for paragraph in paragraphs(cls):
        title, stop, text = paragraph.partition(". ")
        if stop and title in titles:
            if title in found:
                raise ValueError(f"{cls.__name__}: two paragraphs have the title {title!r}")
            found[title] = text
        elif found:
            raise ValueError(f"{cls.__name__}: {paragraph[:40]!r}, below {[*found][-1]!r}, has no title")
        else:
            free.append(paragraph)
    return free, found


def arguments(cls: Callable[..., object]) -> dict[str, str]:
    """Return {name: description} of the section `Args:`; names in one entry share its description.

    The result is empty if the section cannot be parsed.

    Raises:
        MissingExtraError: docstring_parser is not installed.
    """
    parser = require_extra("docstring_parser", "train")
    try:
        found = parser.parse(inspect.getdoc(cls) or "", parser.DocstringStyle.GOOGLE).params
    except parser.ParseError:
        return {}
    return {
        name.strip(): " ".join((entry.description or "").split())
        for entry in found
        for name in entry.arg_name.split(",")
    }
