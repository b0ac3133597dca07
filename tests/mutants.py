"""What the tests see: small errors planted in the code one at a time, each to be killed by the tests named beside it.

    python tests/mutants.py                       every mutant without a verdict, then the table tests/mutants.md
    python tests/mutants.py --room theory --jobs 2
    python tests/mutants.py --only causal_conv_skips_its_oldest_tap --again

`tests/mutants.toml` is the list. A mutant replaces one piece of text, which occurs once in its file, in a copy of the
tree: the checkout is never touched. Its tests run there in a process forked from this one, which has imported torch and
Lightning already. It is killed if a test fails that passes on the unchanged tree; a test that fails there too condemns
nobody. Verdicts are kept in `tests/mutants.json` and asked for anew where the mutant, its file or its tests have
changed. Exit status: 0; 1 where the score is below 97 %, or where a mutant does not fit the code any more; 2 for a
command that cannot be followed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parent.parent
LIST, RESULTS, TABLE = "tests/mutants.toml", "tests/mutants.json", "tests/mutants.md"
SCORE = 0.97
"""The least share of mutants that the tests must kill."""

# What `tests/conftest.py` sets has to be set here, before torch is imported for all.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRITON_INTERPRET": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# Slow to import and none of the project's: whatever is there is imported once.
WARM = ("pytest", "numpy", "torch", "torch.utils.tensorboard", "beartype", "jaxtyping", "lightning", "torchmetrics")
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
BROKEN = "broken"
"""No verdict: the tests cannot be collected, there are none, or they fail on the unchanged tree."""
STALE = "stale"
"""No verdict: the text to replace does not occur once."""


@dataclass(frozen=True)
class Mutant:
    """A small error.

    Attributes:
        name: what the code does with it.
        room: the part of the project that it is counted for.
        file: where it is planted.
        old: text that occurs once in the file.
        new: what takes its place.
        tests: arguments of pytest that select the tests that ought to see it.
        means: of a survivor, what it means that nobody sees it.
    """

    name: str
    room: str
    file: str
    old: str
    new: str
    tests: str
    means: str = ""

    @property
    def arguments(self) -> list[str]:
        """What pytest is given."""
        return shlex.split(self.tests)

    @property
    def test_files(self) -> list[str]:
        """The files named among the arguments."""
        return sorted({each.partition("::")[0] for each in self.arguments if each.startswith("tests/")})

    def planted(self, text: str) -> str | None:
        """The text with the error in it; None where it does not fit."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 and self.new != self.old else None

    def key(self, root: Path) -> str:
        """A digest of all that its verdict depends on, other modules left out."""
        parts = [self.file, self.old, self.new, self.tests]
        parts += [(root / name).read_text(encoding="utf-8") for name in (self.file, *self.test_files)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Verdict:
    """How a mutant fared.

    Attributes:
        state: killed, survived, timeout, broken or stale.
        by: the first test that failed.
        seconds: that its tests took.
        key: of the mutant when it was judged.
        checked: whether the test that failed is known to pass on the unchanged tree.
    """

    state: str
    by: str = ""
    seconds: float = 0.0
    key: str = ""
    checked: bool = False


def read_list(root: Path) -> list[Mutant]:
    """All mutants, room by room.

    Raises:
        ValueError: an entry with other keys than a mutant has.
    """
    rooms = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
    try:
        return [Mutant(name, room, **entry) for room, entries in rooms.items() for name, entry in entries.items()]
    except TypeError as error:
        raise ValueError(f"{LIST}: {error}") from None


def read_results(root: Path) -> dict[str, Any]:
    """What earlier runs found: the verdicts by name, and where and when."""
    file = root / RESULTS
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"measured": "", "verdicts": {}}


# Running


def copy_tree(root: Path, to: Path) -> None:
    """Copy what git tracks, or would, with its times: what was compiled for one copy holds for another."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


@contextlib.contextmanager
def planted(mutant: Mutant, tree: Path) -> Iterator[None]:
    """The tree with the mutant in it, for as long as the block runs; files compiled from the original are left out."""
    file = tree / mutant.file
    text, before = file.read_text(encoding="utf-8"), file.stat()
    changed = mutant.planted(text)
    assert changed is not None
    file.write_text(changed, encoding="utf-8")
    # Compiled files are told apart by the second: another one than that of any version that was compiled.
    os.utime(file, (before.st_atime, time.time() + 3600 + hash(mutant.name) % 3600))
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


class _FirstFailure:
    """A plugin that writes down which tests fail, the first one first."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(f"{report.nodeid}\n")


def _run_tests(tree: Path, arguments: Sequence[str], found: Path, log: Path, compiled: bool) -> None:
    """In a forked process: run pytest on a tree and exit with its status; 99 where the project is another one's."""
    os.setsid()
    with log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(entry for entry in sys.path if Path(entry or ".").resolve() not in (HERE.parent, ROOT))]
    sys.dont_write_bytecode = not compiled
    import pytest

    common = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    status = int(pytest.main([*common, *arguments], plugins=[_FirstFailure(found)]))
    ours = getattr(sys.modules.get("zoo"), "__file__", None)
    if ours is not None and not Path(ours).is_relative_to(tree):
        status = 99
    sys.stdout.flush()
    os._exit(status)


def start(tree: Path, arguments: Sequence[str], notes: Path, compiled: bool = False) -> Any:
    """Fork a process that runs tests on a tree; its notes are `notes` (tests that fail) and beside it the output."""
    notes.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(
        target=_run_tests, args=(tree, arguments, notes, notes.with_suffix(".log"), compiled)
    )
    process.start()
    return process


def kill(process: Any) -> None:
    """End a process that `start` returned, and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def failures(notes: Path) -> list[str]:
    """Which tests failed."""
    return notes.read_text(encoding="utf-8").split("\n")[:-1] if notes.exists() else []


def judge(mutants: Sequence[Mutant], root: Path, jobs: int, limit: float) -> Iterator[tuple[Mutant, Verdict]]:
    """Plant each mutant in a copy of the tree and run its tests; verdicts as they come.

    Args:
        mutants: those that fit.
        root: the tree.
        jobs: how many at a time, each in a copy of its own.
        limit: seconds for a mutant.
    """
    waiting = list(reversed(mutants))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, contextlib.ExitStack() as running:
        free = [Path(folder) / f"tree{n}" for n in range(min(jobs, len(mutants)))]
        for tree in free:
            copy_tree(root, tree)
            # Compile what every test imports, once.
            start(tree, ["--collect-only", "tests"], tree.with_suffix(".found"), compiled=True).join()
        under_way: dict[int, tuple[Mutant, Path, Any, float, contextlib.ExitStack]] = {}
        keys = {mutant.name: mutant.key(free[0]) for mutant in mutants}  # of what is judged: the checkout may move on
        running.callback(lambda: [kill(process) for _, _, process, _, _ in under_way.values()])
        while waiting or under_way:
            while waiting and free:
                mutant, tree = waiting.pop(), free.pop()
                change = contextlib.ExitStack()
                change.enter_context(planted(mutant, tree))
                process = start(tree, ["-x", *mutant.arguments], tree.with_suffix(".found"))
                under_way[process.sentinel] = mutant, tree, process, time.monotonic(), change
            soonest = min(begun for _, _, _, begun, _ in under_way.values()) + limit - time.monotonic()
            multiprocessing.connection.wait(list(under_way), max(0.0, soonest))
            for sentinel, (mutant, tree, process, begun, change) in list(under_way.items()):
                seconds = time.monotonic() - begun
                if process.is_alive() and seconds < limit:
                    continue
                late = process.is_alive()
                kill(process)
                change.close()
                del under_way[sentinel]
                free.append(tree)
                by = failures(tree.with_suffix(".found"))
                if late:
                    state = TIMEOUT
                elif process.exitcode == 1 and by:
                    state = KILLED
                else:
                    state = SURVIVED if process.exitcode == 0 else BROKEN
                    if state == BROKEN:
                        shutil.copy(tree.with_suffix(".log"), said_by(mutant))
                yield mutant, Verdict(state, by[0] if by else "", round(seconds, 1), keys[mutant.name])


def said_by(mutant: Mutant) -> Path:
    """Where the output of tests that gave no verdict is kept."""
    return Path(tempfile.gettempdir()) / f"{mutant.name}.log"


def failing_unchanged(tests: Iterable[str], root: Path) -> set[str]:
    """Those of some tests that fail on the unchanged tree.

    Raises:
        SystemExit: they cannot be run there at all.
    """
    tests = sorted(set(tests))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(root, tree)
        # Slow ones too: what is left out would count as passed.
        process = start(tree, ["-m", "slow or not slow", *tests], tree.with_suffix(".found"))
        process.join()
        if process.exitcode not in (0, 1):
            said = tree.with_suffix(".log").read_text(encoding="utf-8")[-3000:]
            sys.exit(f"{said}\ntests that killed cannot be run on the unchanged tree; nothing is condemned")
        return set(failures(tree.with_suffix(".found")))


# The table


def render(mutants: Sequence[Mutant], results: Mapping[str, Any]) -> str:
    """The page: score by room, who survives and what that means, who kills whom."""
    # Not before: of what this process has imported, a forked one sees no mutant.
    sys.path.append(str(ROOT))
    from zoo.report.markdown import table

    verdicts = {name: Verdict(**each) for name, each in results["verdicts"].items()}
    known = [(mutant, verdicts.get(mutant.name, Verdict("not run"))) for mutant in mutants]
    lines = [
        "# What the tests see",
        "",
        "Small errors planted in the code one at a time (`tests/mutants.toml`), each against the tests named beside "
        "it. Written by `python tests/mutants.py`.",
        "",
        f"{results['measured']}",
        "",
    ]
    rows = []
    for room in [*dict.fromkeys(mutant.room for mutant in mutants), "all"]:
        states = [verdict.state for mutant, verdict in known if room in (mutant.room, "all")]
        counts = [len(states), *(states.count(state) for state in (KILLED, SURVIVED, TIMEOUT))]
        rows.append((room, *map(str, counts), f"{counts[1] / counts[0]:.1%}"))
    lines += table(("room", "mutants", "killed", "survived", "timeout", "score"), rows, "lrrrrr")
    missed = [(mutant, verdict) for mutant, verdict in known if verdict.state != KILLED]
    lines += ["", "## Not killed", "", *(["None."] if not missed else [])]
    for mutant, verdict in missed:
        lines.append(f"- **{mutant.name}** ({mutant.room}, `{mutant.file}`), {verdict.state}. {mutant.means}".rstrip())
    rows = [
        (mutant.room, mutant.name.replace("_", " "), verdict.by.partition("[")[0].replace("::", ": "))
        for mutant, verdict in known
        if verdict.state == KILLED
    ]
    return "\n".join([*lines, "", "## Killed", "", *table(("room", "mutant", "by"), rows), ""])


def score(mutants: Sequence[Mutant], results: Mapping[str, Any]) -> float:
    """The share of all mutants that is killed."""
    return sum(results["verdicts"].get(each.name, {}).get("state") == KILLED for each in mutants) / len(mutants)


def _write(path: Path, content: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


def _measured(root: Path) -> str:
    """Date, commit and machine, in a sentence."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    from zoo.report.machine import describe_machine

    commit = git("rev-parse", "--short", "HEAD") or "no commit"
    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return f"Last run on {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}{changed}, {describe_machine()}."


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and write verdicts and table; the exit status."""
    parser = argparse.ArgumentParser(
        prog="tests/mutants.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants alone")
    parser.add_argument("--room", nargs="+", help="the mutants of these rooms alone")
    parser.add_argument("--survivors", action="store_true", help="those that were not killed alone")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a mutant")
    parser.add_argument("--again", action="store_true", help="also what has a verdict")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    root = options.root.resolve()
    mutants, results = read_list(root), read_results(root)
    for kind, asked in (("name", options.only), ("room", options.room)):
        if unknown := set(asked or ()) - {getattr(mutant, kind) for mutant in mutants}:
            parser.error(f"unknown {kind}: {', '.join(sorted(unknown))}")
    if options.jobs < 1 or not options.limit > 0:
        parser.error("--jobs and --limit must be positive")
    os.environ.update(ENVIRONMENT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no test goes on alone

    before = results["verdicts"]
    results["verdicts"] = {mutant.name: before[mutant.name] for mutant in mutants if mutant.name in before}
    chosen = [
        mutant
        for mutant in mutants
        if (options.only is None or mutant.name in options.only)
        and (options.room is None or mutant.room in options.room)
        and not (options.survivors and before.get(mutant.name, {}).get("state") == KILLED)
    ]
    stale = [each for each in mutants if each.planted((root / each.file).read_text(encoding="utf-8")) is None]
    for mutant in stale:
        print(f"stale: {mutant.name}: its text does not occur once in {mutant.file}", file=sys.stderr)
        results["verdicts"][mutant.name] = asdict(Verdict(STALE))
    todo = [
        mutant
        for mutant in chosen
        if mutant not in stale and (options.again or before.get(mutant.name, {}).get("key") != mutant.key(root))
    ]
    if todo:
        run(todo, root, options, results)
    check(root, results)
    reached = score(mutants, results)
    _write(root / TABLE, render(mutants, results))
    print(f"{reached:.1%} of {len(mutants)} mutants killed; {root / TABLE}")
    return int(reached < SCORE or bool(stale))


def run(todo: Sequence[Mutant], root: Path, options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Judge mutants, keeping each verdict as it comes."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # a thread would not outlive a fork
    # In another process: this one must not import the project.
    asked = f"from pathlib import Path; from tests import mutants; print(mutants._measured(Path({str(root)!r})))"
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", asked]
    measured = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=here)
    results["measured"] = measured.stdout.strip()
    for name in WARM:  # so that forked processes have it
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tqdm(judge(todo, root, options.jobs, options.limit), total=len(todo), unit="mutant") as bar:
        for mutant, verdict in bar:
            results["verdicts"][mutant.name] = asdict(verdict)
            _save(root, results)
            if verdict.state != KILLED:
                said = f", see {said_by(mutant)}" if verdict.state == BROKEN else ""
                bar.write(f"{verdict.state}: {mutant.name} ({verdict.seconds:g} s{said})")


def check(root: Path, results: dict[str, Any]) -> None:
    """Run the tests that killed where nothing is planted: those that fail there too have killed nobody."""
    verdicts = results["verdicts"]
    killers = {name: each["by"] for name, each in verdicts.items() if each["state"] == KILLED and not each["checked"]}
    if not killers:
        return
    failing = failing_unchanged(killers.values(), root)
    for name, by in killers.items():
        if by in failing:
            print(f"broken: {name}: {by} fails on the unchanged tree", file=sys.stderr)
            verdicts[name] = asdict(Verdict(BROKEN, by))
        else:
            verdicts[name]["checked"] = True
    _save(root, results)


def _save(root: Path, results: Mapping[str, Any]) -> None:
    _write(root / RESULTS, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
