"""How fast MQAR is generated into the cache and read back, end to end, on one core.

    python benchmarks/task_generation.py            # prints the table and writes benchmarks/task_generation.md

Each figure is the median of several fresh processes, after the imports: a process that generates a split into an empty
cache, then another that reads it (checksum and copy into arrays included) with memory it has never touched.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPEATS = 3
SHAPES = [
    # seq_len, vocab_size, n_pairs, examples
    (64, 256, 4, 50_000),
    (256, 8192, 16, 20_000),
    (256, 8192, 64, 20_000),
    (2048, 8192, 64, 4_000),
    (2048, 8192, 512, 4_000),
]

PROBE = """
import json, sys, time
import datasets, numpy, tasks
from tasks.cache import materialise
cache, seq_len, vocab_size, n_pairs, n = sys.argv[1], *map(int, sys.argv[2:])
task = tasks.create_task("mqar", seq_len=seq_len, vocab_size=vocab_size, n_pairs=n_pairs)
wall, cpu = time.perf_counter(), time.process_time()
materialise("mqar", task, "train", n, 0, cache)
print(json.dumps([n / (time.perf_counter() - wall), n / (time.process_time() - cpu)]))
"""


def rates(cache: str, shape: tuple[int, int, int, int]) -> tuple[float, float]:
    """Examples per second, and per CPU second, of one `materialise` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, cache, *map(str, shape)],
        check=True,
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    wall, cpu = json.loads(done.stdout)
    return wall, cpu


def processor() -> str:
    """The processor's name, where the system tells."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Measure every shape and write the table."""
    lines = [
        "# MQAR into the cache and back",
        "",
        f"Made by `python benchmarks/task_generation.py` on {date.today()}: {processor()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, numpy {version('numpy')}, datasets {version('datasets')}, "
        f"pyarrow {version('pyarrow')}. One thread; median of {REPEATS} fresh processes, imports not counted. "
        "Targets at length 256: 40,000 examples/s into the cache, 100,000 read back. "
        f"Load average at the start: {os.getloadavg()[0]:.1f}; where that exceeds the cores, the rate per CPU second "
        "counts.",
        "",
        "| length | vocabulary | pairs | examples | into the cache, /s (per CPU s) | read back, /s (per CPU s) |",
        "|---|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        written, read = [], []
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as cache:
                written.append(rates(cache, shape))
                read.append(rates(cache, shape))
        cells = [f"{number:,}" for number in shape]
        for found in (written, read):
            wall, cpu = (statistics.median(kind) for kind in zip(*found, strict=True))
            cells.append(f"{wall:,.0f} ({cpu:,.0f})")
        lines.append(f"| {' | '.join(cells)} |")
        sys.stderr.write(lines[-1] + "\n")
    table = "\n".join(lines) + "\n"
    draft = HERE / "task_generation.md.incomplete"
    draft.write_text(table)
    draft.replace(HERE / "task_generation.md")
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
