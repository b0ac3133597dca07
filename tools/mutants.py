"""Plant random errors, one at a time, and count how many the tests see.

    make mutants                          300 errors, a new sample each time
    make mutants ARGS="--size 30 --seed 7 --room ops"

An error is one mutation of cosmic-ray (a changed operator, number, condition, decorator or loop) in a line drawn at
random from the rooms below. Coverage shows which tests execute which line, the slow ones too, and is measured once for
each state of the tree. In a copy with one error planted, the tests that execute its line run until the first failure,
the shortest first. All tests of the room run if the line is executed by an import, behind a cache or compiled by numba.
What survives is written to the report as a diff: read it, since some of it changes nothing that anyone can observe.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage.parser import PythonParser
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
# The forked processes import these with one thread and without a GPU; Triton's kernels are then interpreted.
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
NOT_COPIED = (".git", ".venv", ".*cache*", "__pycache__", "runs", "build", "dist")
SUITE = "slow or not slow"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "lightning", "pytest", "coverage", "scipy.stats"])


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


def compiles(source: str) -> bool:
    """Return whether numba compiles what a file holds."""
    return "import numba" in source or "import compiled" in source


@cache
def statement(file: str, line: int) -> list[int]:
    """Return the lines of the statement in a function that a line belongs to; none if an import or cache runs it."""
    source = (ROOT / file).read_text(encoding="utf-8")
    inside = [
        function
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef) and function.body[0].lineno <= line <= (function.end_lineno or 0)
    ]
    cached = any("cache" in ast.unparse(decorator) for function in inside for decorator in function.decorator_list)
    if not inside or cached or compiles(source):
        return []
    parser = PythonParser(text=source)
    parser.parse_source()
    first = parser.first_line(line)
    return [number for number in range(1, len(source.splitlines()) + 1) if parser.first_line(number) == first]


class Watch:
    """Note the tests that execute each line, and how long they take."""

    def __init__(self, part: Path) -> None:
        self.part = part
        self.seconds: dict[str, float] = {}

    def pytest_configure(self) -> None:
        self.coverage = coverage.Coverage(str(self.part), source=["zoo", "tasks"], config_file=False)
        self.coverage.set_option("run:relative_files", True)
        self.coverage.start()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Count what a shared fixture executes for every test of the file."""
        if fixturedef.scope == "function":
            return (yield)
        before = request._pyfuncitem.nodeid
        self.coverage.switch_context(before.split("::")[0])
        try:
            return (yield)
        finally:
            self.coverage.switch_context(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.part.with_suffix(".json").write_text(json.dumps(self.seconds))


class Order:
    """Run the tests named, in the order given."""

    def __init__(self, tests: list[str], numba: str) -> None:
        self.numba = numba
        self.place = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.place), key=lambda i: self.place[i.nodeid])


def _pytest(copy: Path, paths: list[str], plugin: Watch | Order) -> None:
    """Run tests in a copy of the tree; the body of a forked process."""
    os.setsid()
    os.chdir(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path) not in (ROOT, ROOT / "tools"))]
    os.environ.update(PYTHONPATH=str(copy), NUMBA_CACHE_DIR=str(copy / getattr(plugin, "numba", ".numba")))
    with (copy / ".log").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    quiet = ["-q", "-W", "ignore:Module already imported", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", SUITE]
    # The method "thread" ends an endless loop, also under hypothesis.
    stop = ["-x", "--timeout=180", "--timeout-method=thread"] if isinstance(plugin, Order) else []
    sys.exit(pytest.main([*stop, *quiet, *paths], [plugin]))


def run_tests(copy: Path, paths: list[str], plugin: Watch | Order, limit: float) -> str:
    """Return an empty text if the tests pass, and the end of their output or "timeout" if not."""
    process = FORKS.Process(target=_pytest, args=(copy, paths, plugin))
    process.start()
    process.join(limit)
    late = process.is_alive()
    if late and process.pid:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return "timeout" if late else ((copy / ".log").read_text()[-2000:] or "died") if process.exitcode else ""


class Executed:
    """The tests that execute each line, and the duration of each test."""

    def __init__(self, parts: list[Path]) -> None:
        self.seconds: dict[str, float] = {}
        self.data = coverage.CoverageData(no_disk=True)
        for part in parts:
            self.seconds |= json.loads(part.with_suffix(".json").read_text())
            data = coverage.CoverageData(str(part))
            data.read()
            self.data.update(data)
        self.lines = cache(self.data.contexts_by_lineno)

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests to run, the shortest first."""
        lines = self.lines(mutant.file)
        contexts = {name for line in statement(mutant.file, mutant.line) for name in lines.get(line, ()) if name}
        (room,) = (tests.split() for room, tests in ROOMS.items() if mutant.file.startswith(f"{room}/"))
        paths = {path for path in contexts or room if "::" not in path}
        chosen = [
            test
            for test in self.seconds
            if test in contexts or any(Path(test.split("::")[0]).is_relative_to(path) for path in paths)
        ]
        return sorted(chosen, key=self.seconds.__getitem__)


def test(mutant: Mutant, copy: Path, executed: Executed) -> dict[str, Any]:
    """Plant an error in a copy of the tree and run the tests that may see it; the copy is left as it was."""
    target = copy / mutant.file
    source = target.read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence) or ""
    tests = executed.tests(mutant)
    numba = f".numba-{mutant.line}-{mutant.occurrence}" if compiles(source) else ".numba"  # it keeps code by file
    files, limit = (
        sorted({test.split("::")[0] for test in tests}),
        300 + 5 * sum(executed.seconds[test] for test in tests),
    )
    try:
        target.write_text(changed, encoding="utf-8")
        output = run_tests(copy, files, Order(tests, numba), limit)
    finally:
        target.write_text(source, encoding="utf-8")
    after = changed.splitlines()[mutant.line - 1].strip() if changed else ""
    failed = next((line for line in output.splitlines() if line.startswith("FAILED ")), output[-300:])
    return {**mutant._asdict(), "becomes": after, "killed": bool(output), "by": failed, "tests": len(tests)}


def main() -> None:
    """Draw, test and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=300, help="number of errors (300)")
    parser.add_argument("--seed", type=int, default=None, help="of the sample; default drawn anew, and printed")
    parser.add_argument("--room", nargs="+", choices=list(ROOMS), default=list(ROOMS), help="folders (all)")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree that are tested at once (2)")
    parser.add_argument("--report", type=Path, default=ROOT / "runs" / "mutants.json", help="(runs/mutants.json)")
    options = parser.parse_args()
    options.report = options.report.resolve()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    chosen = sample(options.room, options.size, seed)
    python = sorted(path for folder in ("zoo", "tasks", "tests") for path in (ROOT / folder).rglob("*.py"))
    content = hashlib.sha256(b"".join(path.read_bytes() for path in python)).hexdigest()[:16]
    measured = options.report.parent / "mutants-coverage" / content
    measured.mkdir(parents=True, exist_ok=True)
    mine, report = threading.local(), []

    def copy_tree() -> None:
        mine.copy = Path(tempfile.mkdtemp(dir=scratch), "tree")
        shutil.copytree(ROOT, mine.copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)

    def measure(path: str) -> Path:
        part = measured / path.replace("/", "-").removesuffix(".py")
        if not part.with_suffix(".json").is_file():
            output = run_tests(mine.copy, [path], Watch(part), 3600)
            if output:  # tests that fail anyway would seem to see every error
                raise RuntimeError(f"{path} fails without any error planted:\n{output}")
        return part

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs, initializer=copy_tree) as pool:
        paths = sorted({path for room in options.room for path in ROOMS[room].split()})
        try:
            executed = Executed(list(tqdm(pool.map(measure, paths), total=len(paths), desc="coverage")))
        except RuntimeError as error:
            sys.exit(f"mutants.py: error: {error}")
        found = pool.map(lambda mutant: test(mutant, mine.copy, executed), chosen)
        for one in tqdm(found, total=len(chosen), desc=f"seed {seed}"):
            report.append(one)
            options.report.write_text(json.dumps(report, indent=1))
    survivors = [one for one in report if not one["killed"]]
    for one in survivors:
        print(f"\n{one['file']}:{one['line']}\n- {one['text']}\n+ {one['becomes']}")
    print(f"\n{len(report) - len(survivors)} of {len(report)} seen, seed {seed}; {options.report}")


if __name__ == "__main__":
    main()
