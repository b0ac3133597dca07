"""Metrics of a run as nested plain data, and functions that look up its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from zoo.report.numbers import Number

State: TypeAlias = Literal["tested", "trained", "unfinished"]
"""Finished with test metrics, finished without them, or still running or failed."""
Metrics: TypeAlias = dict[str, Any]
"""Content of metrics.json, with None for a number that is not finite:

    {"test": {"accuracy": 0.97, "loss": 0.1, "by_distance": [{"at_most": 8, "accuracy": 0.99}, ...],
              "at_length": {"128": {"accuracy": 0.9}, ...},
              "by_segment": {"seq_len=64,n_pairs=4": {"accuracy": 0.9, "loss": 0.2, "chance": 0.02}, ...}},
     "val": {"accuracy": 0.98, "loss": 0.1}, "chance": 0.02, "floor_at_heads": {"1": 0.3, ...}, "params": 12345,
     "state_bytes": 4096, "tokens_per_second": 1e5, "curve": {"100": 0.3, "400": 0.98}, "steps_to_90": 400,
     "converged": false, "stopped_early": false, "step": 400, "seconds": 30.1}

"curve" is the score of each validation by step. "steps_to_90" is the first step whose validation reached 90 % of the
way from chance to a perfect score. A run has "converged" if the last quarter of its steps gained less than 0.01, or if
a callback stopped it early; for a perplexity it is None unless a callback did. "step" is the step of the weights that
were tested.

A run that has not been tested has no "test".
"""


def by_heading(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Number | None]:
    """Flatten the numbers for a table: each heading joins the names that lead to the number.

    >>> by_heading({"test": {"loss": 0.5, "by_distance": [{"at_most": 8, "accuracy": 0.9}]}, "chance": 0.1})
    {'test/loss': 0.5, 'test/by_distance/8/accuracy': 0.9, 'chance': 0.1}
    """
    found: dict[str, Number | None] = {}
    for name, value in metrics.items():
        if isinstance(value, list):
            value = {entry["at_most"]: {k: v for k, v in entry.items() if k != "at_most"} for entry in value}
        heading = f"{prefix}{name}"
        found |= by_heading(value, f"{heading}/") if isinstance(value, Mapping) else {heading: value}
    return found


def number_at(metrics: Mapping[str, Any], *path: str) -> Number | None:
    """Return the number under these names, such as "test", "accuracy"; None if there is none."""
    found: Any = metrics
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def numbers_at(several: Iterable[Mapping[str, Any]], *path: str) -> list[Number]:
    """Return the numbers under these names, for the metrics that have one."""
    return [value for metrics in several if (value := number_at(metrics, *path)) is not None]


def at_lengths(metrics: Mapping[str, Any], score: str) -> dict[int, Number]:
    """Return {length: test score} for the additional test lengths."""
    found = {int(n): at.get(score) for n, at in metrics.get("test", {}).get("at_length", {}).items()}
    return {length: value for length, value in found.items() if value is not None}


def by_facts(metrics: Mapping[str, Any], score: str = "accuracy") -> dict[str, dict[int, Number]]:
    """Return {fact: {bound: test score over labels with previous bound < fact <= bound}}."""
    found = {
        name.removeprefix("by_"): {e["at_most"]: e[score] for e in entries if e.get(score) is not None}
        for name, entries in metrics.get("test", {}).items()
        if isinstance(entries, list)
    }
    return {fact: scores for fact, scores in found.items() if scores}


def state_of(metrics: Mapping[str, Any] | None) -> State:
    """Return the state of a run from its metrics, or from None if it has none yet."""
    return "unfinished" if metrics is None else "tested" if is_tested(metrics) else "trained"


def is_tested(metrics: Mapping[str, Any]) -> bool:
    """Return whether a finished run was tested: with --no_test it has no test metrics."""
    return "loss" in metrics.get("test", {})
