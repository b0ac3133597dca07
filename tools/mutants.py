"""Mutation testing: plant random errors, one at a time, and count how many the tests detect.

    make mutants                          300 errors, a new sample each time
    make mutants ARGS="--size 30 --seed 7 --room zoo/ops"

An error is one mutation of cosmic-ray (a changed operator, number, condition, decorator or loop) in a random line of
the folders below. In a copy of the tree with one error, we run default tests until the first failure, the shortest
first, for up to a minute of CPU time: first the tests that execute the line, then the tests that execute any line of
the file, because an import, a cache or numba may have run the line for them. If none fails, the slow tests follow.

Coverage, which shows the tests of each line, is measured once per state of the tree; for slow tests only if an error
survives the default ones. Errors are judged in random order, so an interrupted run is a valid sample; the same seed
resumes it. Read the survivors: some change nothing observable.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import repeat
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
"""Folder for errors -> the tests that should detect them."""
# Forked processes run with one thread and without a GPU; Triton kernels are interpreted.
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1"}
NOT_COPIED = (".git", ".venv", ".*cache*", "__pycache__", "runs", "build", "dist")
SUITES = ("not slow", "slow")
BUDGET = 60.0
"""CPU seconds of tests for one error and suite."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "lightning", "pytest", "coverage", "scipy.stats", "hypothesis", "datasets", "sklearn.datasets"]
)


class Mutant(NamedTuple):
    """One error: the n-th place in a file to which a cosmic-ray operator applies."""

    file: str
    line: int
    text: str
    operator: str
    occurrence: int


@cache
def mutants(file: str) -> dict[int, list[Mutant]]:
    """Return the mutants of a file by line, except in annotations, which never run."""
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
    """Draw lines without replacement, then a kind of mutation, then a mutation; larger samples extend smaller ones."""
    rng = random.Random(seed)
    files = sorted(str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py"))
    places = [(file, line) for file in files for line in sorted(mutants(file))]
    chosen = []
    for file, line in rng.sample(places, len(places))[:size]:
        kinds: dict[str, list[Mutant]] = {}
        for mutant in mutants(file)[line]:
            kinds.setdefault(mutant.operator.split("_")[0], []).append(mutant)
        chosen.append(rng.choice(kinds[rng.choice(sorted(kinds))]))
    return chosen


def compiles(source: str) -> bool:
    """Return whether numba compiles functions of this source."""
    return "import numba" in source or "import compiled" in source


def statement(mutant: Mutant) -> list[int]:
    """Return the lines of a mutant's statement."""
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    parser = PythonParser(text=source)
    parser.parse_source()
    first = parser.first_line(mutant.line)
    return [number for number in range(1, len(source.splitlines()) + 1) if parser.first_line(number) == first]


class Watch:
    """A pytest plugin that records the tests that execute each line, and their CPU time; None for failing tests."""

    def __init__(self, part: Path) -> None:
        self.part = part
        self.seconds: dict[str, float | None] = {}
        self.failed: set[str] = set()

    def pytest_configure(self) -> None:
        self.coverage = coverage.Coverage(str(self.part), source=["zoo", "tasks"], config_file=False)
        self.coverage.set_option("run:relative_files", True)
        self.coverage.start()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Attribute the lines that a shared fixture executes to every test of the file."""
        if fixturedef.scope == "function":
            return (yield)
        before = request._pyfuncitem.nodeid
        self.coverage.switch_context(before.split("::")[0])
        try:
            return (yield)
        finally:
            self.coverage.switch_context(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = sum(os.times()[:4])
        result = yield
        self.seconds[item.nodeid] = None if item.nodeid in self.failed else sum(os.times()[:4]) - before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.part.with_suffix(".json").write_text(json.dumps(self.seconds))


class Order:
    """A pytest plugin that runs only the given tests, in their order."""

    def __init__(self, tests: list[str], numba: str) -> None:
        self.numba = numba
        self.place = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.place), key=lambda i: self.place[i.nodeid])


def _pytest(copy: Path, suite: str, paths: list[str], plugin: Watch | Order, limit: float) -> None:
    """Run tests in a copy of the tree; the target of a forked process."""
    os.setsid()
    os.chdir(copy)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))  # stops endless loops, also under load
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path) not in (ROOT, ROOT / "tools"))]
    os.environ.update(PYTHONPATH=str(copy), NUMBA_CACHE_DIR=str(copy / getattr(plugin, "numba", ".numba")))
    with (copy / ".log").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    quiet = ["-q", "-W", "ignore:Module already imported", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", suite]
    stop = ["-x", "--timeout=0"] if isinstance(plugin, Order) else ["--timeout=120"]
    sys.exit(pytest.main([*stop, *quiet, *paths], [plugin]))


def run_tests(copy: Path, suite: str, paths: list[str], plugin: Watch | Order, limit: float) -> int:
    """Return pytest's exit status; negative after `limit` seconds of CPU time, or ten times that in wall time."""
    process = FORKS.Process(target=_pytest, args=(copy, suite, paths, plugin, limit))
    process.start()
    process.join(10 * limit)
    if process.is_alive() and process.pid:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode or 0


class Executed:
    """The tests that execute each line, and their CPU times, from the records of `Watch`."""

    def __init__(self, parts: list[Path]) -> None:
        self.seconds: dict[str, float] = {}
        self.data = coverage.CoverageData(no_disk=True)
        for part in parts:
            measured = json.loads(part.with_suffix(".json").read_text())
            self.seconds |= {test: seconds for test, seconds in measured.items() if seconds is not None}
            data = coverage.CoverageData(str(part))
            data.read()
            self.data.update(data)
        self.lines = cache(self.data.contexts_by_lineno)

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the statement, then those that execute the file; the shortest first."""
        every = self.lines(mutant.file)
        of_statement, of_file = (
            {test for line in lines for test in every.get(line, ())} for lines in (statement(mutant), every)
        )
        shared = {path for path in of_file if path and "::" not in path}  # test files with a shared fixture
        of_file |= {test for test in self.seconds if any(Path(test.split("::")[0]).is_relative_to(p) for p in shared)}
        return sorted(of_file & self.seconds.keys(), key=lambda test: (test not in of_statement, self.seconds[test]))


def room_tests(mutant: Mutant) -> set[str]:
    """Return the folders and files of the tests that should detect an error."""
    return {path for room, tests in ROOMS.items() if mutant.file.startswith(f"{room}/") for path in tests.split()}


def test(mutant: Mutant, copy: Path, suite: str, executed: Executed) -> dict[str, Any]:
    """Plant an error in a copy of the tree, run the tests that may detect it, and restore the copy."""
    target = copy / mutant.file
    source = target.read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence) or ""
    tests, budget = [], BUDGET
    for name in executed.tests(mutant):
        if budget > 0:
            tests.append(name)
            budget -= executed.seconds[name]
    status, numba = 0, ".numba"
    if compiles(source):
        numba += f"-{mutant.line}-{mutant.occurrence}"  # numba caches compiled code by file
    try:
        target.write_text(changed, encoding="utf-8")
        if tests:
            files = sorted({test.split("::")[0] for test in tests})
            status = run_tests(copy, suite, files, Order(tests, numba), 60 + 3 * (BUDGET - budget))
    finally:
        target.write_text(source, encoding="utf-8")
    output = (copy / ".log").read_text()[-2000:] if status else ""
    after = changed.splitlines()[mutant.line - 1].strip() if changed else ""
    failed = next((line for line in output.splitlines() if line.startswith("FAILED ")), output[-300:])
    killed = {"killed": bool(status), "status": status, "by": failed, "suite": suite, "tests": len(tests)}
    return {**mutant._asdict(), "becomes": after, **killed}


def main() -> None:
    """Draw errors, test them and report the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=300, help="number of errors (300)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the sample (random, and printed)")
    parser.add_argument("--room", nargs="+", choices=list(ROOMS), default=list(ROOMS), help="folders (all)")
    parser.add_argument("--jobs", type=int, default=2, help="number of copies tested in parallel (2)")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    chosen = sample(options.room, options.size, seed)
    python = sorted(path for folder in ("zoo", "tasks", "tests") for path in (ROOT / folder).rglob("*.py"))
    content = hashlib.sha256(b"".join(path.read_bytes() for path in python)).hexdigest()[:16]
    kept = ROOT / "runs" / "mutants" / content
    kept.mkdir(parents=True, exist_ok=True)
    record = kept / f"seed-{seed}.json"
    report = json.loads(record.read_text()) if record.is_file() else {}
    mine, writing = threading.local(), threading.Lock()

    def copy_tree() -> None:
        mine.copy = Path(tempfile.mkdtemp(dir=scratch), "tree")
        shutil.copytree(ROOT, mine.copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)

    def measure(path: str, suite: str) -> Path:
        part = kept / f"{path.replace('/', '-').removesuffix('.py')}-{suite.replace(' ', '-')}"
        if not part.with_suffix(".json").is_file():
            status = run_tests(mine.copy, suite, [path], Watch(part), 7200)
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
                raise RuntimeError(f"pytest fails to run {path}:\n{(mine.copy / '.log').read_text()[-2000:]}")
        return part

    def judge(mutant: Mutant, suite: str, executed: Executed) -> None:
        one = test(mutant, mine.copy, suite, executed)
        with writing:
            report[str(mutant)] = one
            record.with_suffix(".new").write_text(json.dumps(report, indent=1))
            record.with_suffix(".new").replace(record)

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs, initializer=copy_tree) as pool:
        for number, suite in enumerate(SUITES):
            passed = {key for key, one in report.items() if not one["killed"] and one["suite"] in SUITES[:number]}
            left = [mutant for mutant in chosen if str(mutant) in passed or str(mutant) not in report]
            paths = set().union(*map(room_tests, left))
            paths = sorted(path for path in paths if not any(str(parent) in paths for parent in Path(path).parents))
            try:
                parts = pool.map(measure, paths, repeat(suite))
                executed = Executed(list(tqdm(parts, total=len(paths), desc=f"coverage, {suite}")))
            except RuntimeError as error:
                sys.exit(f"mutants.py: error: {error}")
            found = pool.map(judge, left, repeat(suite), repeat(executed))
            list(tqdm(found, total=len(left), desc=f"seed {seed}, {suite}"))
    survivors = [one for mutant in chosen if not (one := report[str(mutant)])["killed"]]
    for one in survivors:
        print(f"\n{one['file']}:{one['line']}\n- {one['text']}\n+ {one['becomes']}")
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} detected, seed {seed}; {record}")


if __name__ == "__main__":
    main()
