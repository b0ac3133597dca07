"""Measure the checks of a spec on its list of runs; docs/experiments.md describes the keys of a check."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lab.experiments.rows import (
    STEPS,
    Row,
    UnknownColumnError,
    Where,
    by_seed,
    describe,
    group,
    median_of,
    number_of,
    operand,
    reaches,
    samples,
    select,
)
from lab.experiments.spec import REGIONS, Spec, cells_of, controls_of, verb_of
from zoo.errors import UsageError
from zoo.evidence import Check, Estimate, Evidence, Measured, controlled, given, within
from zoo.evidence.interval import (
    FEWEST_PAIRS,
    FEWEST_SEEDS,
    of_rank_correlation,
    of_share,
    of_shift,
    of_superiority,
    of_variance_ratio,
)
from zoo.evidence.page import read_check
from zoo.report.numbers import plain

Region = tuple[float, float]
Recorded = Mapping[str, Mapping[str, Any]]
"""Checks of an earlier record, by name."""


def judge(spec: Spec, rows: Sequence[Row], recorded: Recorded | None = None) -> Evidence:
    """Measure the checks of a spec.

    Args:
        spec: the experiment.
        rows: its list of runs; may be empty.
        recorded: checks of an earlier record. They supply the numbers of checks whose runs or probes were not kept; the
            predicted region is always the spec's.

    Raises:
        UsageError: a check that cannot be measured; the message has its name.
    """
    if not rows and not recorded:
        return Evidence((Check("anything", math.nan, reason="no run is done"),))
    judge = _Judge(spec, rows, recorded or {})
    checks = [check for key in spec.checks for check in judge.checks(key)]
    if not checks:
        raise UsageError(f"{spec.name}: no check applies to any of its runs")
    return Evidence(tuple(checks))


class _Judge:
    def __init__(self, spec: Spec, rows: Sequence[Row], recorded: Recorded) -> None:
        self.spec, self.rows, self.recorded = spec, rows, recorded
        self.made: dict[str, list[Check]] = {}

    def checks(self, key: str) -> list[Check]:
        """Return the checks under a key of the spec, one per cell; measured only once."""
        if key not in self.made:
            check = self.spec.checks[key]
            made = (self.check(key, check, cell) for cell in cells_of(check))
            self.made[key] = [each for each in made if each is not None]
        return self.made[key]

    def check(self, key: str, check: Where, cell: Where) -> Check | None:
        """Return the check of one cell; None if the cell has no runs."""
        name = _name(key, check, cell)
        where = {**check.get("where", {}), **cell}
        try:
            if not self.rows and name in self.recorded:
                return self._recorded(name, check, where)
            if cell and not select(self.rows, where):
                return None
            return self._measured(name, check, where)
        except UsageError as error:
            if isinstance(error, UnknownColumnError) and name in self.recorded:
                return self._recorded(name, check, where)
            raise UsageError(f"{self.spec.name}: check {name}: {error}") from None

    def _recorded(self, name: str, check: Where, where: Where) -> Check:
        """Return the check with the numbers of the record and the region of the spec.

        If the runs that have a limit's column were not kept, the region is the record's.
        """
        found = read_check(self.recorded[name])
        try:
            low, high = region_of(check, self.rows, where)
        except UnknownColumnError:
            return found
        return found if math.isnan(low) or math.isnan(high) else replace(found, low=low, high=high)

    def _measured(self, name: str, check: Where, where: Where) -> Check:
        metric, rows, after = check.get("metric", "accuracy"), self.rows, []
        if "longer" in check:
            steps = min((number_of(row, STEPS) for row in select(rows, where)), default=math.nan)
            rows, after = (
                [row for row in self.rows if number_of(row, STEPS) == times * steps] for times in (1, check["longer"])
            )
        measured, (low, high) = quantity(check, rows, where, metric), region_of(check, rows, where)
        if "classify" in check:
            measured, majority = classified(check["classify"], select(rows, where), metric)
            low = max(low, majority)
        found = within(name, measured, low, high)
        if "solved" in check:
            found = replace(found, seeds=_distinct_seeds(select(rows, where)))
        if "longer" in check:
            found = _also_longer(found, measured, quantity(check, after, where, metric), check["longer"])
        premises, controls = (self._controls(check, kind, where) for kind in ("given", "easier"))
        return given(controlled(found, *controls), *premises)

    def _controls(self, check: Where, kind: str, where: Where) -> list[Check]:
        found: list[Check] = []
        for control in controls_of(check, kind):
            if isinstance(control, str):
                found += self.checks(control) or [Check(control, math.nan, reason="none of its runs is done")]
            else:
                inherited = {"metric": check.get("metric", "accuracy"), "name": "the control", **control}
                found.append(self._measured(inherited["name"], inherited, {**where, **control.get("where", {})}))
        return found


def _name(key: str, check: Where, cell: Where) -> str:
    """Return a check's name, with the values of its cell."""
    if "name" in check:
        return re.sub(r"\{([^}]*)\}", lambda found: plain(cell[found[1]]), check["name"])
    return f"{key}: {describe(cell)}" if cell else key


def _distinct_seeds(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the seeds of runs with one run per seed, so that a share of the runs is one of the seeds; else empty."""
    seeds = {int(row["seed"]) for row in rows}
    return tuple(sorted(seeds)) if len(seeds) == len(rows) else ()


def region_of(check: Where, rows: Sequence[Row], where: Where) -> Region:
    """Return the ends of the predicted region; a limit may be a column's value, which all chosen runs share."""

    def number(limit: Any) -> float:
        if not isinstance(limit, Mapping):
            return limit
        chosen = select(rows, where)
        return limit.get("times", 1) * number_of(chosen[0], limit["column"]) if chosen else math.nan

    match next((verb, check[verb]) for verb in REGIONS if verb in check):
        case "at_least", limit:
            return number(limit), math.inf
        case "at_most", limit:
            return -math.inf, number(limit)
        case "near", limit:
            value, relative = (number(limit), limit["relative"]) if isinstance(limit, Mapping) else limit
            return value - abs(value) * relative, value + abs(value) * relative
        case _, (low, high):
            return low, high
    raise AssertionError("unreachable")


def _also_longer(usual: Check, scores: Measured, longer: Measured, times: float) -> Check:
    """Return a check on each seed's larger measurement; if only some seeds ran longer, their largest is a control.

    For a quantity that is not measured by seed, the quantity after longer training is the control.
    """
    if not isinstance(scores, Mapping) or not isinstance(longer, Mapping):
        return controlled(usual, within(f"after {times} times the training", longer, usual.low, usual.high))
    either = by_seed(lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else max(a, b), scores, longer)
    found = within(usual.quantity, {**scores, **either}, usual.low, usual.high)
    if either and len(either) == len(scores):
        return found
    largest = max(either.values(), default=math.nan)
    return controlled(found, within(f"the largest after {times} times the training", largest, usual.low, usual.high))


def quantity(check: Mapping[str, Any], rows: Sequence[Row], where: Mapping[str, Any], metric: str) -> Measured:
    """Return the measurement of a check on some runs: numbers by seed, or an estimate over them."""
    verb = verb_of(check)
    chosen = select(rows, where)
    match verb:
        case None:
            taken = {key: check[key] for key in ("take", "over", "learned") if key in check}
            return operand(rows, taken, where, metric)
        case "diff" | "ratio" | "share":
            operands = [operand(rows, each, where, metric) for each in check[verb]]
            if not any(isinstance(each, Mapping) for each in operands):  # exact numbers, such as those of take
                return _OF_SEEDS[verb](*operands)
            return by_seed(_OF_SEEDS[verb], *operands)
        case "solved" if chosen:
            scores = [number_of(row, metric) for row in chosen]
            if any(map(math.isnan, scores)):
                return math.nan
            return of_share(sum(reaches(metric, score, check[verb]) for score in scores), len(scores))
        case "lead":
            led = by_seed(_OF_SEEDS["diff"], *(operand(rows, each, where, metric) for each in check[verb]))
            enough = len(led) >= FEWEST_SEEDS and all(map(math.isfinite, led.values()))
            return of_shift([*led.values()]) if enough else led  # the check of these seeds has the reason
        case "sooner":
            one, other = (select(rows, {**where, **each}) for each in check[verb])
            return of_superiority(*([number_of(row, "speed") for row in each] for each in (one, other)))
        case "spearman":
            return correlation(check[verb], chosen, metric)
        case "superiority":
            return superiority(check[verb], chosen, metric)
        case "variance_ratio":
            groups = [[*samples(each, metric).values()] for each in group(chosen, check[verb]["over"]).values()]
            sizes = {*map(len, groups)}  # unequal if some runs are not done
            return of_variance_ratio(groups) if len(groups) > 1 and len(sizes) == 1 < max(sizes) else math.nan
        case _:
            return math.nan


_OF_SEEDS = {
    "diff": lambda a, b: a - b,
    "ratio": lambda a, b: a / (b or math.nan),
    "share": lambda a, b, c: (a - b) / (a - c or math.nan),
}


def correlation(given: Mapping[str, Any], rows: Sequence[Row], metric: str) -> Measured:
    """Return the rank correlation over the medians of cells; NaN for fewer than `FEWEST_PAIRS` cells."""
    y = given.get("y", metric)
    cells = [(median_of(cell, given["x"]), median_of(cell, y)) for cell in group(rows, given["over"]).values()]
    if "missing" in given:
        cells = [(given["missing"] if math.isnan(x) else x, each) for x, each in cells]
    kept = [cell for cell in cells if all(map(math.isfinite, cell))]
    if len(kept) < FEWEST_PAIRS:
        return math.nan
    return of_rank_correlation(*zip(*kept, strict=True))


def superiority(given: Mapping[str, Any], rows: Sequence[Row], metric: str) -> Estimate:
    """Return the probability that a learned cell has a larger x than a cell that is not learned."""
    cells = _cells(given, rows, metric)
    return of_superiority(*([x for x, learned in cells if learned is each] for each in (True, False)))


def classified(given: Where, rows: Sequence[Row], metric: str) -> tuple[Estimate, float]:
    """Fit a threshold on x to some cells; return its accuracy on the others, and their majority's share."""
    chosen = [row for where in given["fit"] for row in select(rows, where)]
    fitted, tested = (_cells(given, some, metric) for some in (chosen, [row for row in rows if row not in chosen]))
    if not fitted or not tested:
        return Estimate(math.nan, math.nan, math.nan), 0.0
    n_learned = sum(learned for _, learned in tested)
    majority = max(n_learned, len(tested) - n_learned) / len(tested)
    return of_share(_n_correct(tested, fitted_limit(fitted)), len(tested)), majority


def _cells(given: Where, rows: Sequence[Row], metric: str) -> list[tuple[float, bool]]:
    """Return x of each cell, and whether the cell is learned; leave out cells without x."""
    cells = group(rows, given["over"]).values()
    found = [(median_of(cell, given["x"]), median_of(cell, metric)) for cell in cells]
    return [(x, reaches(metric, score, given["learned"])) for x, score in found if not math.isnan(x)]


def fitted_limit(cells: Sequence[tuple[float, bool]]) -> float:
    """Return the threshold on x that misclassifies the fewest cells; of several, the middle one."""
    logs = sorted(math.log(x) if x else -math.inf for x, _ in cells)
    between = [(one + other) / 2 for one, other in pairwise(logs)]
    tried = [math.exp(each) for each in (logs[0] - 1, *between, logs[-1] + 1)]
    correct = [_n_correct(cells, at) for at in tried]
    best = [at for at, n in zip(tried, correct, strict=True) if n == max(correct)]
    return best[len(best) // 2]


def _n_correct(cells: Sequence[tuple[float, bool]], limit: float) -> int:
    """Count the cells that are learned above the limit and not learned below it."""
    return sum((x > limit) is learned for x, learned in cells)
