"""The list of an experiment's runs, docs/results/NAME.csv: select its rows, and measure its columns."""

from __future__ import annotations

import csv
import io
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from lab.run.score import SCORES
from zoo.errors import UsageError, unknown
from zoo.evidence import Samples, paired
from zoo.report.numbers import Number, plain

Row: TypeAlias = dict[str, str]
"""A run as texts by column: seed, metrics, options (`mixer.n_heads`), columns of probes; empty if it has no value."""
Where: TypeAlias = Mapping[str, Any]

OPTION, PROBE = "option ", "probe "
"""Prefixes in the file of columns with options, and of columns measured by probes."""
STEPS = "trainer.max_steps"


class UnknownColumnError(UsageError):
    """A column that no run has, such as the column of a probe whose numbers were not kept."""


def _known(function: Callable[[Sequence[float]], float]) -> Callable[[Sequence[float]], float]:
    """Wrap a function so that it returns NaN if one of its numbers is NaN, which has no order."""
    return lambda values: math.nan if any(map(math.isnan, values)) else function(values)


TAKE = {"min": _known(min), "max": _known(max), "median": _known(median)}
_COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EXTREMES = {"least": min, "most": max}
_MORE_IS_BETTER = SCORES | {"bits_per_token": False}


def read_rows(text: str, fixed: Mapping[str, Any]) -> list[Row]:
    """Read the list of runs, and add columns for the flags that all runs share, which the list omits."""
    shared = {f"{key}.name" if key in ("mixer", "task") else key: plain(value) for key, value in fixed.items()}
    lines = csv.DictReader(io.StringIO(text))
    return [shared | {key.removeprefix(OPTION).removeprefix(PROBE): line[key] for key in line} for line in lines]


def number_of(row: Row, metric: str) -> float:
    """Return a metric of a run, NaN if its cell is empty.

    "a / b" is a ratio. "steps" are the steps to 90 %, or all steps if the run never gets there. "speed" is one over the
    steps to 90 %, or 0.

    Raises:
        UnknownColumnError: there is no such column.
    """
    over, divided, under = metric.partition(" / ")
    if divided:
        above, below = number_of(row, over), number_of(row, under)
        return above / below if below else math.nan
    if metric == "steps":
        return _number(row[column(row, "steps_to_90")] or row[column(row, STEPS)])
    if metric == "speed":  # 0 for a run that never gets there
        steps = row[column(row, "steps_to_90")]
        return 1 / _number(steps) if steps else 0.0
    return _number(row[column(row, metric)])


def column(row: Mapping[str, Any], name: str) -> str:
    """Resolve the name of a column: accuracy is test/accuracy, @32 means length 32, @4x four times the trained length.

    Raises:
        UnknownColumnError: there is no such column.
    """
    score, at, length = name.partition("@")
    if re.fullmatch(r"\d+x", length) and "task.seq_len" in row:
        length = str(int(length[:-1]) * int(row["task.seq_len"]))
    for known in (name, f"test/at_length/{length}/{score}" if at else f"test/{name}"):
        if known in row:
            return known
    raise UnknownColumnError(unknown("column", name, row, 12))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def select(rows: Sequence[Row], where: Where) -> list[Row]:
    """Return the runs that meet all conditions; `least` and `most` apply to the runs that meet the others.

    Raises:
        UnknownColumnError: a column that no run has.
    """
    chosen, extremes = list(rows), {key: value for key, value in where.items() if str(value) in _EXTREMES}
    for key, value in where.items():
        if chosen and key not in extremes:
            name = column(chosen[0], key)
            chosen = [row for row in chosen if _meets(row[name], value)]
    for key, value in extremes.items():
        if chosen:
            name = column(chosen[0], key)
            numbers = [each for row in chosen if not math.isnan(each := _number(row[name]))]
            end = _EXTREMES[value](numbers, default=math.nan)
            chosen = [row for row in chosen if _number(row[name]) == end]
    return chosen


def _meets(text: str, wanted: Any) -> bool:
    """Return whether a text meets a condition: a value, one of several, none of several, or a comparison.

    Raises:
        UsageError: a mapping other than `{not: ...}`.
    """
    if isinstance(wanted, Mapping):
        if wanted.keys() != {"not"}:
            raise UsageError(f"a condition is a value, a list, or {{not: [...]}}, got {dict(wanted)}")
        others = wanted["not"]
        return not any(_meets(text, each) for each in (others if isinstance(others, list) else [others]))
    if isinstance(wanted, str) and (found := re.fullmatch(r"([<>]=?) *(\S+)", wanted)):
        return bool(_COMPARED[found[1]](_number(text), float(found[2])))
    if text == plain(wanted):
        return True
    if isinstance(wanted, list):
        return any(_meets(text, each) for each in wanted)
    return isinstance(wanted, int | float) and _number(text) == wanted


def group(rows: Iterable[Row], over: str | Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    """Group the runs by the values of some columns; `mixer` means its name and all its options."""
    found: dict[tuple[str, ...], list[Row]] = {}
    names = [over] if isinstance(over, str) else over
    for row in rows:
        columns = [key for name in names for key in _expanded(row, name)]
        found.setdefault(tuple(row[key] for key in columns), []).append(row)
    return found


def _expanded(row: Row, name: str) -> list[str]:
    return [key for key in row if key.startswith("mixer.")] if name == "mixer" else [column(row, name)]


def samples(rows: Sequence[Row], metric: str) -> Samples:
    """Return a metric by seed.

    Raises:
        UsageError: two runs have the same seed.
    """
    found = {int(row["seed"]): number_of(row, metric) for row in rows}
    if len(found) < len(rows):
        raise UsageError(f"{len(rows)} runs of {len(found)} seeds: samples need one run per seed")
    return found


def median_of(rows: Iterable[Row], metric: str) -> float:
    """Return the median of a metric over runs; NaN without runs, or if a run lacks the number."""
    return TAKE["median"]([number_of(row, metric) for row in rows] or [math.nan])


def operand(rows: Sequence[Row], given: Any, where: Where, metric: str) -> Samples | Number:
    """Return the operand of a quantity: a number unchanged, or the metric by seed of the runs that it selects."""
    if isinstance(given, int | float):
        return given
    reserved = {key: given[key] for key in ("metric", "take", "over", "learned") if key in given}
    chosen = select(rows, {**where, **{key: given[key] for key in given if key not in reserved}})
    metric = reserved.get("metric", metric)
    if "take" not in reserved:
        return samples(chosen, metric)
    take = TAKE[reserved["take"]]
    if "over" not in reserved:
        return take([number_of(row, metric) for row in chosen] or [math.nan])
    found = group(chosen, reserved["over"]).values()
    if "learned" in reserved:
        found = [cell for cell in found if median_of(cell, "accuracy") >= reserved["learned"]]
    cells = [samples(cell, metric) for cell in found]
    return paired(lambda *values: take(values), *cells) if cells else {}


def by_seed(function: Any, *operands: Samples | Number) -> Samples:
    """Apply a function seed by seed, over the seeds that all operands share; a plain number is used for every seed."""
    seeds = {seed for each in operands if isinstance(each, Mapping) for seed in each}
    broadcast = [each if isinstance(each, Mapping) else dict.fromkeys(sorted(seeds), each) for each in operands]
    return paired(function, *broadcast)


def reaches(metric: str, value: float, goal: float) -> bool:
    """Return whether a value is as good as a goal or better; lower is better for errors, losses, perplexities and bits.

    >>> reaches("accuracy@32", 0.95, 0.9), reaches("relative_squared_error / bound", 1.2, 1.1)
    (True, False)
    """
    name = metric.partition(" / ")[0].rpartition("/")[2].partition("@")[0]
    return value >= goal if _MORE_IS_BETTER.get(name, True) else value <= goal


def describe(values: Mapping[str, Any]) -> str:
    """Describe options: names alone, other values with their column; omit options that a mixer lacks.

    >>> describe({"mixer.name": "ssd", "mixer.init": "recall", "mixer.dt_max": None})
    'ssd, init=recall'
    """
    shown = {key: text for key, value in values.items() if (text := plain(value)) not in ("", "none")}
    return ", ".join(text if key.endswith(".name") else f"{option_name(key)}={text}" for key, text in shown.items())


def option_name(name: str) -> str:
    """Return an option's name without its group."""
    return name.removeprefix("mixer.").removeprefix("task.")
