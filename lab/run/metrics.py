"""Metrics of a run: nested plain data, and how to get at its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from lab.nested import put
from zoo.report.numbers import Number

State: TypeAlias = Literal["tested", "trained", "unfinished"]
"""With and without numbers of the test split; still under way, or failed."""
Metrics: TypeAlias = dict[str, Any]
"""What metrics.json holds, None for a number that is not finite:

    {"test": {"accuracy": 0.97, "loss": 0.1, "by_distance": [{"at_most": 8, "accuracy": 0.99}, ...],
              "at_length": {"128": {"accuracy": 0.9}, ...},
              "by_segment": {"seq_len=64,n_pairs=4": {"accuracy": 0.9, "loss": 0.2, "chance": 0.02}, ...}},
     "val": {"accuracy": 0.98, "loss": 0.1}, "chance": 0.02, "floor_at_heads": {"1": 0.3, ...}, "params": 12345,
     "state_bytes": 4096, "tokens_per_second": 1e5, "steps_to_90": 300, "step": 400, "seconds": 30.1}

"steps_to_90" is the first step whose validation stood at 90 % of the way from chance to a perfect score.

A run that has not been tested has no "test". Lightning and TensorBoard know the same numbers by flat names,
`test/loss`, `test/accuracy_by_distance/<=8`, `test/accuracy_at_length/128`, `test/by_segment/seq_len=64/loss`, and so
did older files: see `nested_metrics` and `flat_metrics`.
"""


def nested_metrics(flat: Mapping[str, Any]) -> Metrics:
    """Nest metrics that have flat names, as in Lightning, TensorBoard and older files.

    >>> nested_metrics({"test/loss": 0.5, "test/accuracy_at_length/8": 0.9, "chance": 0.1})
    {'test': {'loss': 0.5, 'at_length': {'8': {'accuracy': 0.9}}}, 'chance': 0.1}
    """
    metrics: Metrics = {}
    for name, value in flat.items():
        head, *rest = name.split("/", 2)
        match rest:
            case [group, bound] if bound.startswith("<="):
                score, _, fact = group.partition("_by_")
                entries = metrics.setdefault(head, {}).setdefault(f"by_{fact}", [])
                entries.append({"at_most": int(bound.removeprefix("<=")), score: value})
                entries.sort(key=lambda entry: entry["at_most"])
            case ["by_segment", scored]:
                segment, _, score = scored.rpartition("/")
                put(metrics, (head, "by_segment", segment, score), value)
            case [group, length] if group.endswith("_at_length"):
                put(metrics, (head, "at_length", length, group.removesuffix("_at_length")), value)
            case _:
                put(metrics, (head, *rest), value)
    return metrics


def flat_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers by flat names; the inverse of `nested_metrics`.

    >>> flat_metrics({"test": {"loss": 0.5, "by_distance": [{"at_most": 8, "accuracy": 0.9}]}, "chance": 0.1})
    {'test/loss': 0.5, 'test/accuracy_by_distance/<=8': 0.9, 'chance': 0.1}
    """
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        match value:
            case list():
                for entry in value:
                    bound = f"{name}/<={entry['at_most']}"
                    found |= {f"{score}_{bound}": each for score, each in entry.items() if score != "at_most"}
            case Mapping() if name == "at_length":
                for length, scores in value.items():
                    found |= {f"{score}_at_length/{length}": each for score, each in scores.items()}
            case Mapping():
                found |= {f"{name}/{inner}": each for inner, each in flat_metrics(value).items()}
            case _:
                found[name] = value
    return found


def number_at(metrics: Mapping[str, Any], *path: str) -> Number | None:
    """Return the number under these names, such as "test", "accuracy"; None where there is none."""
    found: Any = metrics
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def numbers_at(several: Iterable[Mapping[str, Any]], *path: str) -> list[Number]:
    """Return `number_at` of those metrics that have it."""
    return [value for metrics in several if (value := number_at(metrics, *path)) is not None]


def at_lengths(metrics: Mapping[str, Any], score: str) -> dict[int, Number]:
    """Return {length: test score} for the further lengths at which it was measured."""
    found = {int(n): at.get(score) for n, at in metrics.get("test", {}).get("at_length", {}).items()}
    return {length: value for length, value in found.items() if value is not None}


def by_facts(metrics: Mapping[str, Any], score: str = "accuracy") -> dict[str, dict[int, Number]]:
    """Return {fact: {bound: test score where the fact lies above the previous bound and not above this one}}."""
    found = {
        name.removeprefix("by_"): {e["at_most"]: e[score] for e in entries if e.get(score) is not None}
        for name, entries in metrics.get("test", {}).items()
        if isinstance(entries, list)
    }
    return {fact: scores for fact, scores in found.items() if scores}


def state_of(metrics: Mapping[str, Any] | None) -> State:
    """Return the state of a run by its metrics; None where there are none."""
    return "unfinished" if metrics is None else "tested" if is_tested(metrics) else "trained"


def is_tested(metrics: Mapping[str, Any]) -> bool:
    """Return whether a finished run was tested: with --no_test it has no test metrics."""
    return "loss" in metrics.get("test", {})
