"""Standard output of the application's commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console(width: int = 200) -> Console:
    """Standard output; a log has no width of its own, so tables there may be as wide as `width`."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=width)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: a path, or a line of a log, stays in one piece."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
