"""Terminal output of commands: argument parser, tables, progress bars, and one-line errors."""

from __future__ import annotations

import argparse
import functools
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

from zoo.errors import UsageError
from zoo.extras import require_extra

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

P = ParamSpec("P")

NOBODY_READS = 141
"""Exit status if the reader of a pipe has closed it: 128 + SIGPIPE, as shells report it."""


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, without the usage, and without abbreviated flags."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def make_console() -> Console:
    """Return a console on standard output; for files and pipes its width is 140.

    Raises:
        MissingExtraError: rich is not installed.
    """
    console = require_extra("rich.console").Console()
    return console if console.file.isatty() else type(console)(width=140)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line without wrapping or markup, such as a path or a line of a log."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def make_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]] = (),
    align: str = "",
    *,
    title: str | None = None,
    styles: Iterable[str | None] | None = None,
) -> Table:
    """Return a table for a console.

    Args:
        headings: names of the columns; if all are empty, no header is shown.
        rows: one text per column.
        align: one letter per column, l or r; default l for all.
        title: line above the table.
        styles: rich style of each row.

    Raises:
        MissingExtraError: rich is not installed.
    """
    escape, box = require_extra("rich.markup").escape, require_extra("rich.box").SIMPLE_HEAD
    table = require_extra("rich.table").Table(
        title=None if title is None else escape(title),
        title_justify="left",
        show_header=any(headings),
        header_style="bold",
        box=box,
        pad_edge=False,
        collapse_padding=True,
    )
    table.caption_justify = "left"
    for heading, letter in zip(headings, align or "l" * len(headings), strict=True):
        table.add_column(escape(heading), justify="right" if letter == "r" else "left", overflow="fold")
    rows = list(rows)
    for row, style in zip(rows, styles or [None] * len(rows), strict=True):
        table.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in row), style=style)
    return table


def make_facts(facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table without header: names in bold, values right-aligned."""
    table = make_table(("", ""), facts, "lr")
    table.columns[0].style = "bold"
    return table


def listing(entries: Mapping[str, str], indent: str = "  ") -> list[str]:
    """Return lines with two columns, name and description.

    >>> listing({"lstm": "gates", "s4d": "modes"}, indent="")
    ['lstm  gates', 's4d   modes']
    """
    width = max(map(len, entries), default=0)
    return [f"{indent}{name:<{width}}  {text}" for name, text in entries.items()]


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on standard error; yields a function to call with a description at the start of each step.

    Raises:
        MissingExtraError: rich is not installed.
    """
    require_extra("rich")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.file.isatty()) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def advance(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, completed=begun, refresh=True)
            begun += 1

        yield advance


def fail(program: str, error: object, status: int) -> int:
    """Print an error in one line on standard error, and return the exit status.

    Raises:
        BrokenPipeError: if that is the error; see `ends_unread`.
    """
    if isinstance(error, BrokenPipeError):
        raise error
    print(f"{program}: {'' if status == 130 else 'error: '}{in_words(error)}", file=sys.stderr)
    return status


def in_words(error: object) -> str:
    """Return an error's message in one line; for a missing package of no extra, ask about the environment."""
    hint = " (did you activate the environment?)" if type(error) is ModuleNotFoundError else ""
    return " ".join(str(error).split()) + hint


def ends_unread(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a command to exit silently with `NOBODY_READS` if its output pipe is closed (`zoo mixers | head`)."""

    @functools.wraps(main)
    def run(*args: P.args, **options: P.kwargs) -> int:
        try:
            try:
                return main(*args, **options)
            finally:
                sys.stdout.flush()  # here, because a failure at the interpreter's exit would print an error
        except BrokenPipeError:
            stdout = sys.stdout.fileno()
            if not _has_hung_up(stdout):
                raise  # another pipe is broken
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
            return NOBODY_READS

    return run


def _has_hung_up(pipe: int) -> bool:
    """Return whether the other end of a pipe is closed."""
    poll = select.poll()
    poll.register(pipe, 0)  # errors are always reported, whatever the event mask
    return bool(poll.poll(0))
