"""`TaskCase`, the suite's entry for a task: how to draw its options, and a slow solver. Also the committed digests."""

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

An answer is a class, or for regression a number or a list of numbers; a fact that does not apply is -1."""
Solver = Callable[[Options, list[Any], list[int]], Answers]
"""(the task's full options, one example's inputs, the positions asked about) -> answers.

Inputs are a list of tokens, or of lists of floats. A solver follows the task's definition in plain loops over one
example and imports nothing from `tasks`."""


@dataclass(frozen=True, kw_only=True)
class TaskCase:
    """One task's entry in the suite; `tests/tasks/cases_<family>.py` holds them in `CASES`, by the task's name.

    Attributes:
        options: strategy for valid options, small enough for a slow solver.
        solve: the solver; it answers every labelled position.
        least: the smallest allowed value of each integer option.
        refused: (options, words of the error message) for every other rule.
        base: options at which digests, chance, splits and seeds are tested; the defaults, unless they are large.
        published: options of the published shapes; each must be valid.
        overlap: the reason why splits may share examples (a small space, or fixed data); None if they may not.
        fixed_length: the reason why the task has only one length; None if `at_length` gives `other_length`.
        other_length: a length, other than its own, at which `base` is valid too; default twice its own.
        examples: number of examples drawn to measure the chance level; lower it for tasks that are slow to draw.
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
        """All of `refused`, and for each of `least` the value one below it."""
        return [*self.refused, *(({option: least - 1}, f">= {least}") for option, least in self.least.items())]


def all_cases() -> dict[str, TaskCase]:
    """Collect the cases of every `cases_*.py` in this folder."""
    cases: dict[str, TaskCase] = {}
    for file in sorted(Path(__file__).parent.glob("cases_*.py")):
        more = importlib.import_module(f"tests.tasks.{file.stem}").CASES
        assert not cases.keys() & more.keys(), f"{file.name} repeats {sorted(cases.keys() & more.keys())}"
        cases |= more
    return cases


DIGESTED = 100
"""Number of examples that a digest covers."""
DIGESTS = Path(__file__).parent / "digests.json"
"""{task: {"split seed": `digest` of the split's first `DIGESTED` examples at the case's `base`}}; written by
`pytest --write-digests`."""


def committed_digest(name: str, split: str, seed: int) -> str:
    """The digest in DIGESTS, or "none" if it has no entry."""
    return json.loads(DIGESTS.read_text()).get(name, {}).get(f"{split} {seed}", "none")


def commit_digest(name: str, split: str, seed: int, found: str) -> None:
    """Write one entry of DIGESTS."""
    table = json.loads(DIGESTS.read_text())
    table[name] = dict(sorted({**table.get(name, {}), f"{split} {seed}": found}.items()))
    write_atomically(DIGESTS, json.dumps(dict(sorted(table.items())), indent=2) + "\n")


def digest(arrays: Arrays) -> str:
    """A hash of all integer arrays, and for each float array two weighted sums to 9 decimals; equal on every machine.

    Rounded floats cannot be hashed: near a rounding boundary the last bit decides.
    """
    sha, sums = hashlib.sha256(), []
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            sha.update(name.encode() + np.packbits(np.isnan(array)).tobytes())
            values = np.nan_to_num(array.astype(np.float64)).reshape(-1)
            # A change that cancels in one weighted sum shows in the other.
            phases = np.arange(1, len(values) + 1) % 101
            scale = max(1.0, float(np.linalg.norm(values)))
            sums += [f"{float(values @ np.cos(turn * phases)) / scale:.9f}" for turn in (1.0, 2.0)]
        else:
            sha.update(name.encode() + array.astype("<i8").tobytes())
    return " ".join([sha.hexdigest()[:16], *sums])


def assert_same_digest(found: str, committed: str) -> None:
    """Assert equal hashes, and sums of floats equal to 1e-6 of the array's norm."""
    (found_hash, *found_sums), (hash_, *sums) = found.split(), committed.split()
    assert found_hash == hash_, f"found {found!r}, committed {committed!r}"
    np.testing.assert_allclose([float(s) for s in found_sums], [float(s) for s in sums], rtol=0, atol=1e-6)


def assert_law(counts: np.ndarray, law: np.ndarray) -> None:
    """Assert by Pearson's chi-square test at level 1e-6 that counts follow these probabilities."""
    assert stats.chisquare(counts, law * counts.sum()).pvalue > 1e-6


def assert_even(counts: np.ndarray, n: int) -> None:
    """Assert that all `n` outcomes are equally likely."""
    assert len(counts) == n
    assert_law(counts, np.full(n, 1 / n))
