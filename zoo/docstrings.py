"""What a class's docstring says, in parts: its definition, its titled paragraphs, its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable


def paragraphs(cls: Callable[..., object]) -> list[str]:
    """Return the paragraphs of a class's or a function's docstring, up to its arguments or its worked example."""
    text = re.split(r"\n *>{3} |\n+Args:", inspect.getdoc(cls) or "", maxsplit=1)[0]
    return text.strip().split("\n\n")


def titled(cls: type, titles: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs before the first that begins with one of `titles` and a full stop, and {title: text}.

    Raises:
        ValueError: a paragraph without a title stands among those that have one, or a title stands twice.
    """
    free: list[str] = []
    found: dict[str, str] = {}
    for paragraph in paragraphs(cls):
        title, stop, text = paragraph.partition(". ")
        if not stop or title not in titles:
            if found:
                raise ValueError(f"{cls.__name__}: {paragraph[:40]!r} stands below {[*found][-1]!r} and has no title")
            free.append(paragraph)
        elif title in found:
            raise ValueError(f"{cls.__name__} says {title!r} twice")
        else:
            found[title] = text
    return free, found


def arguments(cls: Callable[..., object]) -> dict[str, str]:
    """{name: meaning} of the section `Args:`; names that share an entry share its meaning."""
    _, found, section = (inspect.getdoc(cls) or "").partition("Args:\n")
    section = re.split(r"\n\n\S", section, maxsplit=1)[0] if found else ""
    meanings: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", section):
        names, colon, meaning = entry.strip().partition(":")
        if colon:
            meanings |= dict.fromkeys((n.strip() for n in names.split(",")), " ".join(meaning.split()))
    return meanings
