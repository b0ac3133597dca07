"""`python -m lab leaderboard`: run the cells that docs/leaderboard.json lacks, and write its pages."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from lab.config import parse
from lab.experiments.judge import read_stored
from lab.sweep.command import Request
from lab.sweep.engine import Stop
from lab.sweep.grid import arguments, read_experiment
from lab.sweep.tuning import RATE
from lab.view.leaderboard.cells import FILE, ROOT, Cell, Record, in_order, of_today, read_cells, run_cell, task_names
from lab.view.leaderboard.pages import PICTURE, as_html, as_markdown, tables
from lab.view.leaderboard.picture import leaderboard_figure
from zoo.errors import UsageError
from zoo.registry import MIXERS
from zoo.report.files import as_json, write_all
from zoo.report.numbers import count, duration
from zoo.report.plots import as_png
from zoo.report.terminal import fail, make_console, make_table, say
from zoo.signals import CTRL_C, SCHEDULER, handled

PROGRAM = "lab leaderboard"
STORED, PAGE, SORTABLE = "leaderboard.json", "leaderboard.md", "leaderboard.html"

HELP = """\
A cell is a mixer on a task: its learning rate is tuned, then every seed is trained and tested. Each finished cell goes
into leaderboard.json at once, and is run again only where its configuration has changed. Ctrl-C saves the runs; the
same command goes on.

  python -m lab leaderboard --dry_run
  python -m lab leaderboard --mixers lstm,my_mixers.py:Mine --tasks mqar,text
  python -m lab leaderboard --mixers all --budget_minutes 60

Exit status: 0 when all that was begun is done, 1 when a cell failed, 2 for a command that is not valid, 130 when
interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; see HELP for the exit status."""
    parser = argparse.ArgumentParser(
        "python -m lab leaderboard",
        description="Run the cells that the leaderboard lacks; write docs/leaderboard.md.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    of_file = "default those of configs/leaderboard.yaml"
    add("--mixers", type=_names, default=[], metavar="A,B", help=f"names, file.py:Class, or all; {of_file}")
    add("--tasks", type=_names, default=[], metavar="A,B", help=of_file)
    add("--seeds", type=_positive, metavar="N", help=f"how many, from 0 on; {of_file}")
    add("--budget_minutes", type=float, metavar="M", help="begin no further cell after so many")
    add("--slots", type=_positive, metavar="N", help="runs at a time; default: the cores")
    add("--run_dir", type=Path, default=Path("runs/leaderboard"), metavar="DIR", help="default runs/leaderboard")
    add("--out", type=Path, default=ROOT / "docs", metavar="DIR", help="where the pages go (docs)")
    add("--dry_run", action="store_true", help="say what is missing and stop")
    arguments = parser.parse_args(argv)
    console, began, stop, failed = make_console(), time.monotonic(), Stop(), 0
    try:
        cells = read_cells(arguments.mixers, arguments.tasks, arguments.seeds)
        board = Board(arguments.out)
        todo = list(in_order(cells, board.records))
        say(console, f"{count(len(cells) - len(todo), 'cell')} done, {len(todo)} to do")
        if arguments.dry_run:
            rows = [(cell.task, cell.mixer, ", ".join(map(str, cell.missing(board.get(cell))))) for cell in todo]
            console.print(make_table(("task", "mixer", "seeds to run"), rows, "lll"))
            return 0
        request = Request(run_dir=arguments.run_dir, slots=arguments.slots)
        # Ctrl-C, or a scheduler, asks the runs to save and stop; a second signal kills them.
        with handled((CTRL_C, *SCHEDULER), lambda *_: stop.ask()):
            for at, cell in enumerate(todo, 1):
                minutes = (time.monotonic() - began) / 60
                if arguments.budget_minutes is not None and minutes >= arguments.budget_minutes:
                    say(console, f"{minutes:.1f} minutes are spent: {count(len(todo) - at + 1, 'cell')} left")
                    break
                say(console, f"cell {at} of {len(todo)} after {duration(60 * minutes)}: {cell.mixer} on {cell.task}")
                try:
                    record = run_cell(cell, board.get(cell), request, stop)
                except UsageError as error:
                    record = None
                    say(console, f"{cell.mixer} on {cell.task}: {error}", "red")
                if record is not None:
                    board.merge(record)
                if stop.soft.is_set():
                    print(f"{PROGRAM}: stopped; the same command goes on", file=sys.stderr)
                    return 130
                failed += record is None or bool(cell.missing(record))
        for file in board.write():
            say(console, str(file))
    except (ValueError, ImportError, OSError) as error:
        return fail(PROGRAM, error, 2)
    if failed:
        say(console, f"{count(failed, 'cell')} failed: see {arguments.run_dir}", "red")
    return 1 if failed else 0


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return int(text)


class Board:
    """The records in a folder, by mixer and task, and the pages made of them.

    Raises:
        UsageError: the file is not JSON, or the folder is not there.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.records = self._read()

    def _read(self) -> dict[tuple[str, str], Record]:
        if not self.out.is_dir():
            raise UsageError(f"there is no folder {self.out} to write {STORED} into")
        return {(record["mixer"], record["task"]): record for record in read_stored(self.out / STORED)}

    def get(self, cell: Cell) -> Record | None:
        """Return the record of a cell, of whatever configuration."""
        return self.records.get((cell.mixer, cell.task))

    def merge(self, record: Record) -> list[Path]:
        """Add a record, in place of an older one of its cell, to what the file holds now; return the files."""
        self.records = self._read() | {(record["mixer"], record["task"]): record}
        return self.write()

    def write(self) -> list[Path]:
        """Write file and pages: those cells whose task has the shape of today; return the files."""
        tasks = task_names()
        place = {name: at for at, name in enumerate(MIXERS)}
        kept = [each for _, each in sorted(self.records.items())]  # by mixer and task
        kept.sort(key=lambda each: place.get(each["mixer"], len(place)))
        shown = of_today(kept)
        baselines, origin = {task: baseline(task) for task in tasks}, _origin(shown)
        found = tables(shown, tasks, baselines)
        pages = {STORED: as_json(kept), PAGE: as_markdown(found, origin), SORTABLE: as_html(found, origin)}
        picture = {PICTURE: as_png(leaderboard_figure(shown, tasks, baselines))} if shown else {}
        return write_all(self.out, pages | picture)


@cache
def baseline(task: str) -> float | None:
    """Return the accuracy of the best guess on a task of the file that ignores order; None where it is not known."""
    from lab.build import build_task

    return build_task(parse(arguments(read_experiment(FILE, task).fixed)).config).guess_without_order()


def _origin(records: Sequence[Record]) -> str:
    if not records:
        return "No cell has been run."
    commits, machines = (sorted({x for each in records for x in each[key]}) for key in ("commits", "machines"))
    seconds = duration(sum(record["seconds"] for record in records))
    made = f"{count(len(records), 'cell')}, {seconds} one by one; {'; '.join(machines)}; commits {', '.join(commits)}."
    highest = max(map(float, read_experiment(FILE, task_names()[0]).tune[RATE]))
    at_end = sum(record["lr"] >= highest for record in records)
    ends = f"In {at_end} of them the largest rate of the grid was picked: a larger one might score more."
    absent = [name for name in MIXERS if name not in {record["mixer"] for record in records}]
    return " ".join([made, ends, *([f"No cell yet: {', '.join(absent)}."] if absent else [])])
