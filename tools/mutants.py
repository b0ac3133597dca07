"""Plant random errors, one at a time, and count how many the tests see.

    make mutants                          300 errors, a new sample each time
    make mutants ARGS="--size 30 --seed 7 --room ops"

An error is one mutation of cosmic-ray (a changed operator, number, condition, decorator or loop) in a line drawn at
random from the rooms below. The tests of that room run until the first failure, in a copy of the working tree. What
survives is written to the report as a diff: read it, since some of it changes nothing that anyone can observe.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.testing import run_tests
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "zoo/ops": "tests/ops tests/contract tests/mixers tests/upstream",
    "zoo/mixers": "tests/contract tests/mixers tests/upstream tests/theory/test_rank.py",
    "zoo/theory": "tests/theory",
    "zoo/training": "tests/training",
    "zoo/adapters": "tests/check tests/contract",
    "zoo/check": "tests/check tests/contract",
    "tasks": "tests/tasks tests/upstream/tasks tests/training/test_datamodule.py tests/training/test_mixture.py",
}
"""Folders in which errors are planted, each with the tests that should see them."""
TIMEOUT = 900


class Mutant(NamedTuple):
    """One error: the n-th place in a file at which a cosmic-ray operator applies."""

    file: str
    line: int
    text: str
    operator: str
    occurrence: int


@cache
def mutants(file: str) -> dict[int, list[Mutant]]:
    """Return the mutants of a file by line, without those in annotations, which never run."""
    source = (ROOT / file).read_text(encoding="utf-8")
    lines, annotated = source.splitlines(), set(_annotated(source))
    nodes = list(ast_nodes(get_ast(source)))
    found: dict[int, list[Mutant]] = {}
    for name in operator_names():
        if get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        places = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (line, column) in enumerate(places):
            if (line, column) not in annotated:
                found.setdefault(line, []).append(Mutant(file, line, lines[line - 1].strip(), name, occurrence))
    return found


def _annotated(source: str) -> Iterator[tuple[int, int]]:
    """Yield line and column of every character inside an annotation."""
    for node in ast.walk(ast.parse(source)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr):
                last = part.end_lineno or part.lineno
                for line in range(part.lineno, last + 1):
                    first = part.col_offset if line == part.lineno else 0
                    end = (part.end_col_offset or 0) if line == last else 200
                    yield from ((line, column) for column in range(first, end))


def sample(rooms: list[str], size: int, seed: int) -> list[Mutant]:
    """Draw lines without replacement, then one kind of mutation, then one mutation of that kind."""
    rng = random.Random(seed)
    files = sorted(str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py"))
    places = [(file, line) for file in files for line in sorted(mutants(file))]
    chosen = []
    for file, line in rng.sample(places, min(size, len(places))):
        kinds: dict[str, list[Mutant]] = {}
        for mutant in mutants(file)[line]:
            kinds.setdefault(mutant.operator.split("_")[0], []).append(mutant)
        chosen.append(rng.choice(kinds[rng.choice(sorted(kinds))]))
    return chosen


def _command(tests: str, copy: Path) -> str:
    """Return the command that runs tests in a copy of the tree until the first failure."""
    environment = f"env --chdir={copy} PYTHONPATH={copy} NUMBA_CACHE_DIR={copy}/.numba"
    return f"{environment} {sys.executable} -m pytest -x -q -p no:cacheprovider -p no:xdist {tests}"


def test(mutant: Mutant, copy: Path) -> dict[str, Any]:
    """Plant an error in a copy of the tree and run the tests of its room; the copy is left as it was."""
    (tests,) = (tests for room, tests in ROOMS.items() if mutant.file.startswith(f"{room}/"))
    target = copy / mutant.file
    source = target.read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    try:
        target.write_text(changed, encoding="utf-8")
        outcome, output = run_tests(_command(tests, copy), TIMEOUT)
    finally:
        target.write_text(source, encoding="utf-8")
    failed = next((line for line in str(output).splitlines() if line.startswith("FAILED ")), str(output)[-300:])
    after = changed.splitlines()[mutant.line - 1].strip() if changed else ""
    killed = outcome.value != "survived"
    return {**mutant._asdict(), "becomes": after, "killed": killed, "by": failed if killed else ""}


def main() -> None:
    """Draw, test and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=300, help="number of errors (300)")
    parser.add_argument("--seed", type=int, default=None, help="of the sample; default drawn anew, and printed")
    parser.add_argument("--room", nargs="+", choices=list(ROOMS), default=list(ROOMS), help="folders (all)")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree that are tested at once (2)")
    parser.add_argument("--report", type=Path, default=ROOT / "runs" / "mutants.json", help="(runs/mutants.json)")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    chosen = sample(options.room, options.size, seed)
    report: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(copy := Path(scratch, str(number)))
            tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
            for name in filter(None, tracked):
                if (ROOT / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, copy / name)

        for room in options.room:  # a room whose tests fail anyway would seem to see every error
            outcome, output = run_tests(_command(ROOMS[room], copy), TIMEOUT)
            if outcome.value != "survived":
                sys.exit(f"mutants.py: error: the tests of {room} fail without any error planted:\n{output[-1000:]}")

        def one(mutant: Mutant) -> dict[str, Any]:
            copy = copies.get()
            try:
                return test(mutant, copy)
            finally:
                copies.put(copy)

        options.report.parent.mkdir(parents=True, exist_ok=True)
        for found in tqdm(pool.map(one, chosen), total=len(chosen), desc=f"seed {seed}"):
            report.append(found)
            options.report.write_text(json.dumps(report, indent=1))
    survivors = [found for found in report if not found["killed"]]
    for found in survivors:
        print(f"\n{found['file']}:{found['line']}\n- {found['text']}\n+ {found['becomes']}")
    print(f"\n{len(report) - len(survivors)} of {len(report)} seen, seed {seed}; {options.report}")


if __name__ == "__main__":
    main()
