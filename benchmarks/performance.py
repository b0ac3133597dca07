"""Compare the speed and memory of our ops and layers with peers on a CPU; write docs/performance.md.

    python -m benchmarks.performance                      everything, about a quarter of an hour on two idle cores
    python -m benchmarks.performance --only scan decode   these sections; the page keeps the others as they were

The peers need `pip install -e '.[bench]'`. The tests of the measured code run first; if they fail, nothing is measured.
Each section runs in a separate process. Its numbers go into `benchmarks/performance.json` when it ends, with machine,
commit and date, and the pages are rewritten from that file. `--help` shows the last duration of each section.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as train.py does

from benchmarks import timing
from benchmarks.page import Section, describe_machine, render_section
from benchmarks.sections import FULL, QUICK, SECTIONS
from zoo.report.files import as_json, write_all

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/ops/test_selective_scan.py",
    "tests/ops/test_ops.py",
    "tests/ops/test_chunked_ops.py",
    "tests/ops/test_slstm.py",
    "tests/project/test_peers.py",
)
RESULTS, PAGE, PROFILES = "benchmarks/performance.json", "docs/performance.md", "docs/profiles.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks and return the exit status: 2 if the tests of the measured code fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(_taken()))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script; needs --out")
    parser.add_argument("--out", type=Path, default=ROOT, help="output folder; default the repository's root")
    options = parser.parse_args(argv)
    if options.quick and options.out == ROOT:
        parser.error("--quick would overwrite the published numbers: give --out FOLDER")
    if not options.quick and not tests_pass(TESTS):
        print("performance.py: error: tests of the measured code fail; nothing was measured", file=sys.stderr)
        return 2
    results = read_results(options.out / RESULTS)
    measured = describe_run()  # before the first result changes the tree
    chosen = [name for name in SECTIONS if options.only is None or name in options.only]
    for number, name in enumerate(chosen, start=1):
        print(f"[{number}/{len(chosen)}] {SECTIONS[name][0]} ...", end=" ", flush=True)
        start = time.perf_counter()
        section = timing.isolated(run_section, name, options.quick)
        seconds = round(time.perf_counter() - start)
        results[name] = {"measured": measured, "seconds": seconds, **section}
        print(f"{seconds} s", flush=True)
        write_all(options.out, {RESULTS: as_json(results)})
        publish(results, options.out)
    return 0


def _taken() -> list[str]:
    """Return the names of the sections, with the seconds of their last run if known."""
    results = read_results(ROOT / RESULTS)
    seconds = {name: results.get(name, {}).get("seconds") for name in SECTIONS}
    return [name if taken is None else f"{name} ({taken} s)" for name, taken in seconds.items()]


def read_results(file: Path) -> dict[str, Any]:
    """Return the results of earlier runs by section."""
    return json.loads(file.read_text()) if file.exists() else {}


def run_section(name: str, quick: bool) -> dict[str, Any]:
    """Measure one section; return plain data, which a subprocess can send back."""
    return SECTIONS[name][1](QUICK if quick else FULL).to_plain()


def tests_pass(files: Sequence[str]) -> bool:
    """Return whether pytest passes on these files, and print its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(*done.stdout.strip().splitlines()[-1:], sep="\n")
    return done.returncode == 0


def describe_run() -> str:
    """Return machine, date and commit in one phrase."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return f"{describe_machine()}, commit {commit or 'unknown'}"


def publish(results: dict[str, Any], root: Path) -> None:
    """Write both pages from `results`."""
    sections = {name: Section.from_plain(results[name]) for name in SECTIONS if name in results}
    parts: dict[str, list[str]] = {PAGE: [], PROFILES: []}
    for name, section in sections.items():
        page = PROFILES if name == "profiles" else PAGE
        parts[page] += render_section(SECTIONS[name][0], section, results[name]["measured"])
    head = ["# Performance", "", "Made by `python -m benchmarks.performance`; edit that, not this page. Ratios are of"]
    head += [
        "medians, measured in turns in one process. Where the time of a training step goes: [profiles](profiles.md)."
    ]
    head += ["On a GPU: [performance on a GPU](performance_gpu.md).", ""]
    pages = {PAGE: "\n".join([*head, *parts[PAGE]])}
    if parts[PROFILES]:
        title = ["# Profiles", "", "Made by `python -m benchmarks.performance --only profiles`.", ""]
        pages[PROFILES] = "\n".join([*title, *parts[PROFILES]])
    write_all(root, pages)


if __name__ == "__main__":
    sys.exit(main())
