"""How fast every task is generated into the cache and read back, end to end, on one core.

    python benchmarks/task_generation.py              prints the table and writes benchmarks/task_generation.md
    python benchmarks/task_generation.py mqar copying only these, printed and not written

Each figure is of fresh processes, after the imports: a process that generates a split into an empty
cache, then another that reads it (checksum and copy into arrays included) with memory it has never touched. No peer's
generator stands beside: zoology, mad-lab, state-spaces/s4 and the Long Range Arena are on no package index.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.machine import describe_machine, write_atomically  # noqa: E402
from benchmarks.report import Cell, Table, render_table  # noqa: E402

TABLE = ROOT / "benchmarks" / "task_generation.md"
REPEATS = 2
EXAMPLES, NUMBERS = 40_960, 1 << 24
"""As many examples as are generated, but of large ones (long, or of vectors) only as many as have so many numbers."""
LENGTH = 256
SLOW = {"listops": 500, "pathfinder": 500}
"""Examples a second asked of these; of the others `ASKED`, of mqar `ASKED_OF_MQAR`, and `ASKED_BACK` read back."""
ASKED, ASKED_OF_MQAR, ASKED_BACK = 5_000, 40_000, 100_000
MQAR_SHAPES = [
    {"seq_len": 64, "vocab_size": 256, "n_pairs": 4},
    {"seq_len": 256, "vocab_size": 8192, "n_pairs": 16},
    {"seq_len": 256, "vocab_size": 8192, "n_pairs": 64},
    {"seq_len": 1024, "vocab_size": 8192, "n_pairs": 256},
    {"seq_len": 2048, "vocab_size": 8192, "n_pairs": 512},
]

WITHIN = {"delay": {"seq_len": LENGTH, "lag": 64}}
"""Options of tasks that do not fit into `LENGTH` at their defaults."""

PROBE = """
import json, sys, time
import datasets, numpy, pyarrow, tasks
from tasks.cache import materialise
cache, name, options, n = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
task = tasks.create_task(name, **options)
task.sample(numpy.random.default_rng(0), 2)
wall, cpu = time.perf_counter(), time.process_time()
rows = len(materialise(name, task, "train", n, 0, cache)["inputs"])
print(json.dumps([rows / (time.perf_counter() - wall), rows / (time.process_time() - cpu), rows, task.spec.seq_len]))
"""


def probe(cache: str, name: str, options: dict[str, Any], n: int) -> list[float]:
    """Examples per second, per CPU second, how many, and their length, of one `materialise` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, cache, name, json.dumps(options), str(n)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout)


def at_length(name: str) -> dict[str, Any]:
    """Options of the task at `LENGTH`, or at its own length where it does not exist at that."""
    from tasks import create_task

    if name in WITHIN:
        return WITHIN[name]
    task = create_task(name)
    try:
        return task.at_length(LENGTH).options()
    except ValueError:
        return task.options()


def row(name: str, options: dict[str, Any], asked: int) -> list[Cell]:
    """Measure one shape."""
    from tasks import create_task

    spec = create_task(name, **options).spec
    n = min(EXAMPLES, NUMBERS // (spec.seq_len * (spec.n_outputs + (spec.d_input or 0) if spec.loss == "mse" else 1)))
    found: list[list[list[float]]] = [[], []]
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            for each in found:
                each.append(probe(cache, name, options, n))
    (written, written_cpu), (read, read_cpu) = (
        [statistics.median(run[kind] for run in each) for kind in (0, 1)] for each in found
    )
    rows, seq_len = (int(value) for value in found[0][0][2:])
    met = "yes" if written >= asked and read >= ASKED_BACK else "**no**"
    if seq_len > LENGTH:
        met = "longer"
    return [name, seq_len, rows, f"{written:,.0f} ({written_cpu:,.0f})", asked, f"{read:,.0f} ({read_cpu:,.0f})", met]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every task and write the table."""
    from tasks import list_tasks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="only these; the table is not written then")
    only = parser.parse_args(argv).tasks
    shapes = [("mqar", options) for options in MQAR_SHAPES]
    shapes += [(name, at_length(name)) for name in list_tasks() if name != "mqar"]
    columns = ["task", "length", "examples", "into the cache, /s (per CPU s)", "asked for"]
    table = Table("", [*columns, f"read back, /s (per CPU s); asked for: {ASKED_BACK:,}", "met"])
    for name, options in shapes:
        if only and name not in only:
            continue
        table.rows.append(row(name, options, ASKED_OF_MQAR if name == "mqar" else SLOW.get(name, ASKED)))
        sys.stderr.write(f"{table.rows[-1]}\n")
    load = os.getloadavg()[0]
    head = ["# Tasks into the cache and back", "", "Made by `python benchmarks/task_generation.py` on"]
    head += [
        f"{describe_machine()}, numpy {version('numpy')}, datasets {version('datasets')}, pyarrow {version('pyarrow')}."
    ]
    head += [
        f"One thread; medians over {REPEATS} fresh processes, imports not counted. Load average at the end: {load:.1f}."
    ]
    head += [
        "A length other than 256 is that of a task without this one; mqar stands at several shapes, and beyond 256"
    ]
    head += ["positions nothing was asked for. Peers' generators are on no package index, so none is timed beside.", ""]
    text = "\n".join([*head, *render_table(table)])
    if not only:
        write_atomically(TABLE, text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
