"""The list of an experiment's runs, docs/results/NAME.csv: a row per run, selected and measured by column."""

from __future__ import annotations

import csv
import io
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from zoo.errors import UsageError, unknown
from zoo.evidence import Samples, paired
from zoo.report.numbers import Number, plain

Row: TypeAlias = dict[str, str]
"""Texts by column: seed, metrics, options (`mixer.n_heads`), columns of probes; empty where a run has none."""
Where: TypeAlias = Mapping[str, Any]

OPTION, PROBE = "option ", "probe "
"""Beginnings of the columns in the file that are options, and of those that are a probe's."""
STEPS = "trainer.max_steps"


class UnknownColumnError(UsageError):
    """A column that no run has, such as a probe's whose numbers were not kept."""


def _known(function: Callable[[Sequence[float]], float]) -> Callable[[Sequence[float]], float]:
    """Return a function that is NaN if one of its numbers is: these have no order."""
    return lambda values: math.nan if any(map(math.isnan, values)) else function(values)


TAKE = {"min": _known(min), "max": _known(max), "median": _known(median)}
_COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EXTREMES = {"least": min, "most": max}


def read_rows(text: str, fixed: Mapping[str, Any]) -> list[Row]:
    """Read the list of runs; flags that all runs share, which it leaves out, become columns too."""
    shared = {f"{key}.name" if key in ("mixer", "task") else key: plain(value) for key, value in fixed.items()}
    lines = csv.DictReader(io.StringIO(text))
    return [shared | {key.removeprefix(OPTION).removeprefix(PROBE): line[key] for key in line} for line in lines]


def number_of(row: Row, metric: str) -> float:
    """Return a metric of a run, NaN if its cell is empty.

    "a / b" is a ratio; "steps" are those to 90 %, or all of a run that got no further; "speed" is one over the steps to
    90 %, or 0.

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
    """Return the column that a name means: test/accuracy for accuracy; @32 is another length, @4x a multiple.

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
    """Return the runs that meet all conditions; `least` and `most` are looked up among those that meet the others.

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
            end = _EXTREMES[value](_number(row[name]) for row in chosen)
            chosen = [row for row in chosen if _number(row[name]) == end]
    return chosen


def _meets(text: str, wanted: Any) -> bool:
    """Tell whether a text is a value, one of several, none of several, or on the right side of a number."""
    if isinstance(wanted, Mapping):
        return not any(_meets(text, each) for each in wanted["not"])
    if isinstance(wanted, str) and (found := re.fullmatch(r"([<>]=?) *(\S+)", wanted)):
        return bool(_COMPARED[found[1]](_number(text), float(found[2])))
    if text == plain(wanted):
        return True
    if isinstance(wanted, list):
        return any(_meets(text, each) for each in wanted)
    return isinstance(wanted, int | float) and _number(text) == wanted


def group(rows: Iterable[Row], over: str | Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    """Return the runs by the values of some columns; `mixer` means its name and all its options."""
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
        UsageError: two runs of one seed, which are no samples of one thing.
    """
    found = {int(row["seed"]): number_of(row, metric) for row in rows}
    if len(found) < len(rows):
        raise UsageError(f"{len(rows)} runs of {len(found)} seeds: samples need one run per seed")
    return found


def median_of(rows: Iterable[Row], metric: str) -> float:
    """Return the median of a metric over runs; NaN without runs, or if one has no number."""
    return TAKE["median"]([number_of(row, metric) for row in rows] or [math.nan])


def operand(rows: Sequence[Row], given: Any, where: Where, metric: str) -> Samples | Number:
    """Return a number as it is, or the measurements by seed of the runs that meet further conditions."""
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
    """Apply a function seed by seed, over the seeds that all operands have; a plain number serves every seed."""
    seeds = {seed for each in operands if isinstance(each, Mapping) for seed in each}
    broadcast = [each if isinstance(each, Mapping) else dict.fromkeys(sorted(seeds), each) for each in operands]
    return paired(function, *broadcast)


def describe(values: Mapping[str, Any]) -> str:
    """Describe options: names as they are, other values with their column; what a mixer lacks is left out.

    >>> describe({"mixer.name": "ssd", "mixer.init": "recall", "mixer.dt_max": None})
    'ssd, init=recall'
    """
    shown = {key: text for key, value in values.items() if (text := plain(value)) not in ("", "none")}
    return ", ".join(text if key.endswith(".name") else f"{option_name(key)}={text}" for key, text in shown.items())


def option_name(name: str) -> str:
    """Return an option's name without its group."""
    return name.removeprefix("mixer.").removeprefix("task.")
