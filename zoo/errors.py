"""Exceptions for users' mistakes, such as unknown names and invalid command lines, with one-line messages."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class UnknownNameError(ValueError):
    """A name that is not in a registry; the message suggests the nearest name and lists the valid ones."""


class UsageError(ValueError):
    """An invalid command line or user input; the message is one line and states what is valid."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))


def raised_at(error: BaseException) -> str:
    """Return the place in the user's code that raised `error`, as a suffix of its message; empty if a library did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(Path(__file__).parent):
            break
        if "site-packages" not in frame.filename and frame.filename.endswith(".py"):
            return f" (line {frame.lineno} of {frame.filename})"
    return ""


def unknown(kind: str, name: object, valid: Iterable[str], most: int | None = None) -> str:
    """Return the message for an unknown name: a suggestion, and the first `most` valid names."""
    valid = list(valid)
    lower = {each.lower(): each for each in reversed(valid)}
    near = difflib.get_close_matches(str(name).lower(), lower, 1)
    hint = f" (did you mean {lower[near[0]]!r}?)" if near else ""
    more = f" and {len(valid) - most} more" if most is not None and len(valid) > most else ""
    return f"unknown {kind} {name!r}{hint}; choose from: {', '.join(valid[:most])}{more}"
