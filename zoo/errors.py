"""Errors of a user: an unknown name, a command line that cannot be followed; messages are one line."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class UnknownNameError(ValueError):
    """A name that is not in a registry; the message lists the valid ones and the nearest."""


class UsageError(ValueError):
    """A command line that cannot be followed; the message is one line with the valid choices."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))


def raised_at(error: BaseException) -> str:
    """Return where the user's own code raised an error, to be put after its text; empty for an error of a library."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(Path(__file__).parent):
            break
        if "site-packages" not in frame.filename and frame.filename.endswith(".py"):
            return f" (line {frame.lineno} of {frame.filename})"
    return ""


def unknown(kind: str, name: object, valid: Iterable[str], most: int | None = None) -> str:
    """Return one line for a misspelt name: the name, the nearest valid one, and the first `most` valid ones."""
    valid = list(valid)
    lower = {each.lower(): each for each in reversed(valid)}
    near = difflib.get_close_matches(str(name).lower(), lower, 1)
    hint = f" (did you mean {lower[near[0]]!r}?)" if near else ""
    more = f" and {len(valid) - most} more" if most is not None and len(valid) > most else ""
    return f"unknown {kind} {name!r}{hint}; choose from: {', '.join(valid[:most])}{more}"
