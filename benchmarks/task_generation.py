"""Measure how fast tasks draw examples on one core, and for slow tasks the speed of the cache.

    python -m benchmarks.task_generation              prints the table and writes benchmarks/task_generation.md
    python -m benchmarks.task_generation mqar copying only these, printed and not written

Each number comes from fresh processes, timed after their imports. One draws a training split in memory. For tasks that
are kept on disk, a second generates the split into an empty cache, and a third reads it, including checksum and copy
into arrays. We do not time generators of peers: zoology, mad-lab, state-spaces/s4 and the Long Range Arena are not on a
package index.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.page import Cell, Table, describe_machine, render_table
from zoo.report.files import write_atomically

TABLE = Path(__file__).with_suffix(".md")
REPEATS = 2
EXAMPLES, NUMBERS = 40_960, 1 << 24
"""Number of examples per task, limited to NUMBERS numbers in total."""
LENGTH = 256
SLOW = {"listops": 500, "pathfinder": 500}
"""Required examples per second of slow tasks."""
ASKED, ASKED_OF_MQAR, ASKED_BACK = 5_000, 40_000, 100_000
"""Required examples per second of other tasks, of mqar, and when read from the cache."""
MQAR_SHAPES = [
    {"seq_len": 64, "vocab_size": 256, "n_pairs": 4},
    {"seq_len": 256, "vocab_size": 8192, "n_pairs": 16},
    {"seq_len": 256, "vocab_size": 8192, "n_pairs": 64},
    {"seq_len": 1024, "vocab_size": 8192, "n_pairs": 256},
    {"seq_len": 2048, "vocab_size": 8192, "n_pairs": 512},
]

WITHIN = {"delay": {"seq_len": LENGTH, "lag": 64}}
"""Options of tasks whose defaults do not fit into `LENGTH`."""

PROBE = """
import json, sys, time
import numpy, tasks
from tasks.data.splits import narrow_split
cache, name, options, n = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
task = tasks.create_task(name, **options)
task.sample(numpy.random.default_rng(0), 2)
draw = lambda: narrow_split(task, "train", n, 0)
if cache:
    import datasets, filelock, pyarrow
    from tasks.data.cache import materialise
    draw = lambda: materialise(name, task, "train", n, 0, cache)
wall, cpu = time.perf_counter(), time.process_time()
rows = len(draw()["inputs"])
print(json.dumps([rows / (time.perf_counter() - wall), rows / (time.process_time() - cpu), rows, task.spec.seq_len]))
"""


def probe(cache: str, name: str, options: dict[str, Any], n: int) -> list[float]:
    """Draw a split in a new process; return examples per second, per CPU second, their number and their length.

    Args:
        cache: folder of the cache; empty to draw in memory.
        name: name of the task.
        options: options of the task.
        n: number of examples.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROBE, cache, name, json.dumps(options), str(n)],
        check=True,
        capture_output=True,
        text=True,
        cwd=TABLE.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout)


def at_length(name: str) -> dict[str, Any]:
    """Return the options of the task at `LENGTH`, or at its default length if it cannot have that one."""
    from tasks import create_task

    if name in WITHIN:
        return WITHIN[name]
    task = create_task(name)
    try:
        return task.at_length(LENGTH).options()
    except ValueError:
        return task.options()


def shapes() -> list[tuple[str, dict[str, Any]]]:
    """Return the measured tasks with their options: mqar in several shapes, every other task once."""
    from tasks import list_tasks

    return [
        *(("mqar", options) for options in MQAR_SHAPES),
        *((name, at_length(name)) for name in list_tasks() if name != "mqar"),
    ]


def n_examples(name: str, options: dict[str, Any]) -> int:
    """Return the number of examples to draw: `EXAMPLES`, or fewer if they are large or the task has fewer."""
    from tasks import create_task
    from tasks.data.splits import at_most

    task = create_task(name, **options)
    spec = task.spec
    numbers = spec.seq_len * (spec.n_outputs + (spec.d_input or 0) if spec.loss == "mse" else spec.d_input or 1)
    return at_most(task, "train", min(EXAMPLES, NUMBERS // numbers))


def rate(runs: Sequence[Sequence[float]]) -> tuple[float, str]:
    """Return the median examples per second, and the text of the cell, which adds those per CPU second."""
    wall, cpu = (statistics.median(run[kind] for run in runs) for kind in (0, 1))
    return wall, f"{wall:,.0f} ({cpu:,.0f})"


def drawn(name: str, options: dict[str, Any], asked: int) -> list[Cell]:
    """Measure a row of the table of tasks drawn in memory."""
    n = n_examples(name, options)
    runs = [probe("", name, options, n) for _ in range(REPEATS)]
    speed, shown = rate(runs)
    rows, seq_len = (int(value) for value in runs[0][2:])
    met = "longer" if seq_len > LENGTH else "yes" if speed >= asked else "**no**"
    return [name, seq_len, rows, shown, asked, met]


def kept(name: str, options: dict[str, Any], asked: int) -> list[Cell]:
    """Measure a row of the table of tasks kept on disk."""
    n = n_examples(name, options)
    written, read = [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            written.append(probe(cache, name, options, n))
            read.append(probe(cache, name, options, n))
    (into, into_shown), (back, back_shown) = rate(written), rate(read)
    rows, seq_len = (int(value) for value in read[0][2:])
    met = "longer" if seq_len > LENGTH else "yes" if into >= asked and back >= ASKED_BACK else "**no**"
    return [name, seq_len, rows, into_shown, asked, back_shown, met]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every task and write the tables."""
    from tasks import task_class
    from tasks.registry import TASKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="measure only these, and do not write the table")
    only = parser.parse_args(argv).tasks
    try:
        only = [TASKS.check(name) for name in only]
    except ValueError as error:
        parser.error(str(error))
    speed = "/s (per CPU s)"
    in_memory = Table("Drawn in memory", ["task", "length", "examples", f"drawn, {speed}", "asked for", "met"])
    columns = ["task", "length", "examples", f"into the cache, {speed}", "asked for"]
    on_disk = Table("Kept on disk", [*columns, f"read back, {speed}; asked for: {ASKED_BACK:,}", "met"])
    for name, options in shapes():
        if only and name not in only:
            continue
        asked = ASKED_OF_MQAR if name == "mqar" else SLOW.get(name, ASKED)
        measures = [(in_memory, drawn), (on_disk, kept)] if task_class(name).slow else [(in_memory, drawn)]
        for table, measure in measures:
            table.rows.append(measure(name, options, asked))
            sys.stderr.write(f"{table.rows[-1]}\n")
    load = os.getloadavg()[0]
    head = f"""\
# Drawing the tasks

Made by `python -m benchmarks.task_generation` on
{describe_machine()}, numpy {version("numpy")}, datasets {version("datasets")}, pyarrow {version("pyarrow")}.
One thread; medians over {REPEATS} fresh processes, without imports. Load average at the end: {load:.1f}.
Tasks that cannot have length 256 have their default length. mqar has several shapes. No rate is required beyond 256
positions. Peers' generators are not on a package index, so none is timed.
"""
    tables = [line for table in (in_memory, on_disk) if table.rows for line in render_table(table)]
    text = "\n".join([head, *tables])
    if not only:
        write_atomically(TABLE, text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
