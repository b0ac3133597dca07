"""The progress of a sweep: a live table in a terminal, a line per finished run elsewhere."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.run.metrics import numbers_at
from lab.run.score import mean_and_spread, score_of, score_text
from lab.sweep.engine import NOT_STARTED, Job, Outcome, progress
from zoo.report.numbers import duration
from zoo.report.terminal import make_console, make_table, say

if TYPE_CHECKING:
    from rich.table import Table

ORDER = ("running", "failed", "stopped", "waiting", "done")
STYLES = {"running": "bold", "failed": "red", "done": "green", "waiting": "dim"}


class Board:
    """The output while runs are in progress: a live table in a terminal, plain lines in a log."""

    def __init__(self, jobs: Sequence[Job], n_slots: int) -> None:
        self.jobs, self.n_slots = jobs, n_slots
        self.console = make_console()
        self.outcomes: dict[Path, Outcome] = {}
        self.start = time.time()

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the live table if the output is a terminal; a notebook supports colours, but cannot redraw."""
        from rich.live import Live

        table = Live(get_renderable=self.table, console=self.console, refresh_per_second=1, transient=True)
        with table if self.console.file.isatty() else nullcontext():
            yield

    def take(self, outcome: Outcome) -> None:
        """Record how a run ended, and print a line about it."""
        self.outcomes[outcome.job.folder] = outcome
        count = f"[{len(self.outcomes)}/{len(self.jobs)}]"
        if outcome.state == "done":
            words = [self._result(outcome), duration(outcome.seconds), self.time_left()]
            say(self.console, f"{count} done     {outcome.job.name}   {', '.join(filter(None, words))}")
            return
        if outcome.message == NOT_STARTED:
            return
        say(self.console, f"{count} {outcome.state:<8} {outcome.job.name}   {outcome.message}", "red")
        if outcome.state == "failed":
            for line in outcome.tail:
                say(self.console, f"    {line}")

    def time_left(self) -> str:
        """Estimate the time left from the runs that are done."""
        took = [outcome.seconds for outcome in self.outcomes.values() if outcome.state == "done"]
        n_left = len(self.jobs) - len(self.outcomes)
        if not n_left or not took:
            return ""
        return f"about {duration(statistics.mean(took) * math.ceil(n_left / self.n_slots))} left"

    def table(self) -> Table:
        """Return a table with one line per run, in `ORDER`, cut to the height of the terminal."""
        rows = sorted((self._row(job) for job in self.jobs), key=lambda row: ORDER.index(row[1]))
        rows, everything = rows[: max(4, self.console.height - 8)], rows
        styles = (STYLES.get(row[1]) for row in rows)
        table = make_table(("run", "state", "step", "metric", "time left"), rows, styles=styles)
        counts = {state: sum(row[1] == state for row in everything) for state in ORDER}
        words = [f"{n} {state}" for state, n in counts.items() if n]
        table.caption = ", ".join([*words, *filter(None, [self.time_left()])])
        return table

    @staticmethod
    def _result(outcome: Outcome) -> str:
        """Return the score of a run, or its message if it has no score."""
        split = "test" if outcome.job.stop_at is None else "val"
        score = score_with_spread([outcome.job.metrics() or {}], split) if outcome.state == "done" else ""
        return f"{split} {score}" if score else outcome.message

    def _row(self, job: Job) -> tuple[str, str, str, str, str]:
        outcome = self.outcomes.get(job.folder)
        if outcome is not None:
            return job.name, outcome.state, "", self._result(outcome), f"took {duration(outcome.seconds)}"
        if not job.touched_since(self.start):
            return job.name, "waiting", "", "", ""
        return job.name, "running", *progress(job)


def score_with_spread(found: Sequence[Mapping[str, Any]], split: str) -> str:
    """Return the runs' score on a split: mean, and spread over several runs; empty if none has a score."""
    name = score_of(found, split)
    values = numbers_at(found, split, name)
    return f"{name.replace('_', ' ')} {score_text(name, *mean_and_spread(values))}" if values else ""
