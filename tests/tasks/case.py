"""What the suite must know of a task to test it: how to draw its options, a slow solver; and the committed digests."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy
from scipy import stats

from tasks.base import Arrays
from zoo.report.files import write_atomically

Options = dict[str, Any]
Answers = dict[int, Any]
"""{position: answer}, or {position: (answer, *facts)} if the spec has facts, in their order.

An answer is a class, or for regression a number or a list of numbers; a fact is -1 where it is not given."""
Solver = Callable[[Options, list[Any], list[int]], Answers]
"""(the task's full options, one example's inputs, the positions asked about) -> answers.

Inputs are a list of tokens, or of lists of floats. A solver knows the definition alone: plain loops over one example,
nothing imported from `tasks`."""


@dataclass(frozen=True, kw_only=True)
class TaskCase:
    """One task's entry in the suite; `tests/tasks/cases_<family>.py` holds them in `CASES`, by the task's name.

    Attributes:
        options: draws options of shapes that exist, small enough for a slow solver.
        solve: answers every labelled position.
        least: the smallest value of options that are whole numbers.
        refused: (options, words of the message) for every further rule.
        base: options at which digests, chance, splits and seeds are tested: the defaults, unless they are large.
        published: options of the published shapes; each must exist.
        overlap: why splits may share examples (a small space, data that is the same for all); None: they may not.
        fixed_length: why the task has no other length than its own; None: `at_length` gives `other_length`.
        other_length: a length, other than its own, at which `base` exists too; twice its own if not given.
        examples: how many are drawn to compare with the chance level; fewer for a task that is slow to draw.
    """

    options: SearchStrategy[Options]
    solve: Solver
    least: Mapping[str, int] = field(default_factory=dict)
    refused: Sequence[tuple[Options, str]] = ()
    base: Options = field(default_factory=dict)
    published: Sequence[Options] = ()
    overlap: str | None = None
    fixed_length: str | None = None
    other_length: int | None = None
    examples: int = 8_192

    @property
    def refusals(self) -> list[tuple[Options, str]]:
        """All of `refused`, and the number below each of `least`."""
        return [*self.refused, *(({option: least - 1}, f">= {least}") for option, least in self.least.items())]


def all_cases() -> dict[str, TaskCase]:
    """Of every `cases_*.py` beside this file."""
    cases: dict[str, TaskCase] = {}
    for file in sorted(Path(__file__).parent.glob("cases_*.py")):
        more = importlib.import_module(f"tests.tasks.{file.stem}").CASES
        assert not cases.keys() & more.keys(), f"{file.name} repeats {sorted(cases.keys() & more.keys())}"
        cases |= more
    return cases


DIGESTED = 100
"""Examples that a digest covers."""
DIGESTS = Path(__file__).parent / "digests.json"
"""{task: {"split seed": `digest` of the split's first `DIGESTED` examples at the case's `base`}}, for each split and a
seed; `pytest --write-digests` writes it."""


def committed_digest(name: str, split: str, seed: int) -> str:
    """What DIGESTS says; "none" where it says nothing."""
    return json.loads(DIGESTS.read_text()).get(name, {}).get(f"{split} {seed}", "none")


def commit_digest(name: str, split: str, seed: int, found: str) -> None:
    """Write one entry of DIGESTS."""
    table = json.loads(DIGESTS.read_text())
    table[name] = dict(sorted({**table.get(name, {}), f"{split} {seed}": found}.items()))
    write_atomically(DIGESTS, json.dumps(dict(sorted(table.items())), indent=2) + "\n")


def digest(arrays: Arrays) -> str:
    """Of integers a hash, the same on every machine; of each array of floats two weighted sums in the digits they keep.

    A hash of rounded floats would not do: a number beside a rounding boundary falls to either side.
    """
    sha, sums = hashlib.sha256(), []
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            sha.update(name.encode() + np.packbits(np.isnan(array)).tobytes())
            values = np.nan_to_num(array.astype(np.float64)).reshape(-1)
            # Two weightings, so that a change which one sum misses shows in the other.
            phases = np.arange(1, len(values) + 1) % 101
            scale = max(1.0, float(np.linalg.norm(values)))
            sums += [f"{float(values @ np.cos(turn * phases)) / scale:.9f}" for turn in (1.0, 2.0)]
        else:
            sha.update(name.encode() + array.astype("<i8").tobytes())
    return " ".join([sha.hexdigest()[:16], *sums])


def assert_same_digest(found: str, committed: str) -> None:
    """Equal hashes, and sums of floats equal to 1e-6 of the array's norm."""
    (found_hash, *found_sums), (hash_, *sums) = found.split(), committed.split()
    assert found_hash == hash_, f"found {found!r}, committed {committed!r}"
    np.testing.assert_allclose([float(s) for s in found_sums], [float(s) for s in sums], rtol=0, atol=1e-6)


def assert_law(counts: np.ndarray, law: np.ndarray) -> None:
    """Assert by Pearson's test, at one in a million, that counts follow these probabilities."""
    assert stats.chisquare(counts, law * counts.sum()).pvalue > 1e-6


def assert_even(counts: np.ndarray, n: int) -> None:
    """Assert that all of `n` are equally likely."""
    assert len(counts) == n
    assert_law(counts, np.full(n, 1 / n))
