"""What a person waits for before train.py trains: the overview of --help, and a command line resolved.

    python -m benchmarks.start_up

Each `--help` is a process of its own, and so is each first command line, whose time starts when torch, Lightning and
what reads types are imported. Later ones, as a sweep's, are resolved in one process. CPU time is the process's own:
other work on the machine changes it little.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

ROOT = Path(__file__).resolve().parents[1]
LINES = {
    "the default": "",
    "a mixer and a task": "--mixer attention --mixer.n_heads 2 --task needle --task.distance 64 --lr 1e-3",
    "a hybrid": "--mixer.pattern [lstm,attention] --mixer.n_heads 2 --mixer.d_conv 3 --trainer.max_steps 60",
    "a logger by class": "--trainer.logger CSVLogger --trainer.logger.save_dir elsewhere",
}


def help_seconds(n: int) -> tuple[float, float]:
    """Measure CPU and elapsed seconds of `train.py --help`, medians of n processes."""
    cpu, elapsed = [], []
    for _ in range(n):
        before, start = getrusage(RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "train.py", "--help"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = getrusage(RUSAGE_CHILDREN)
        elapsed.append(time.perf_counter() - start)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(cpu), statistics.median(elapsed)


def first_seconds(n: int) -> tuple[float, float]:
    """Measure CPU and elapsed seconds of a process's first command line after its imports, medians of n processes."""
    code = (
        "import time, beartype.door, yaml, tasks.generators.recall.mqar, tasks.data.datamodule, zoo.training.module\n"
        "import zoo.mixers.hybrid, zoo.mixers.selective_ssm, zoo.mixers.attention\n"
        "from lab.config import parse\n"
        "start = time.process_time(), time.perf_counter()\n"
        "parse(['--mixer.n_heads', '2', '--lr', '1e-3'])\n"
        "print(time.process_time() - start[0], time.perf_counter() - start[1])"
    )
    command = [sys.executable, "-c", code]
    found = [subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout for _ in range(n)]
    cpu, elapsed = zip(*(map(float, line.split()) for line in found), strict=True)
    return statistics.median(cpu), statistics.median(elapsed)


def resolve_seconds(line: str, n: int) -> tuple[float, float]:
    """Measure CPU and elapsed seconds to resolve a command line: medians of n times, without the first."""
    from lab.config import parse

    words = line.split()
    parse(words)
    cpu, elapsed = [], []
    for _ in range(n):
        start = time.process_time(), time.perf_counter()
        parse(words)
        cpu.append(time.process_time() - start[0])
        elapsed.append(time.perf_counter() - start[1])
    return statistics.median(cpu), statistics.median(elapsed)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up", description="Time train.py's start.")
    parser.add_argument("--repeats", type=int, default=15, help="measurements of each; medians are shown")
    n = parser.parse_args(argv).repeats
    print(f"{'milliseconds':<34}{'CPU':>8}{'elapsed':>10}")
    rows = {"--help, a process": help_seconds(n), "resolve the first of a process": first_seconds(max(1, n // 5))}
    rows |= {f"resolve {what}": resolve_seconds(line, n) for what, line in LINES.items()}
    for what, (cpu, elapsed) in rows.items():
        print(f"{what:<34}{1e3 * cpu:>8.1f}{1e3 * elapsed:>10.1f}")


if __name__ == "__main__":
    main()
