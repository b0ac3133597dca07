"""The charts of a comparison as data: learning curves, and scores against length, state, heads and task facts."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lab.run.metrics import at_lengths, by_facts, number_at
from lab.run.record import Run
from lab.run.score import SCORES, mean_and_spread
from lab.view.rows import Group, Row, label_of, numbers_by_size
from zoo.report import numbers, plots
from zoo.report.numbers import Number

_MOST_POINTS = 1000  # per line; of a longer curve every n-th point and the last are drawn
_ROUNDOFF = 1e-15
"""Errors below this are numerically zero, which a logarithmic axis cannot show."""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: the configuration, or the mixer if each point is a configuration.
        mixer: the mixer of the line.
        variant: index of the line among the mixer's lines; selects the dashes.
        look: colour and marker of the mixer; in a chart of a single mixer, of the line.
        x: abscissae, ascending.
        y: means over seeds.
        spread: standard deviations over seeds; 0 for one seed.
        points: labels of the points' configurations, if each point is a configuration.
    """

    label: str
    mixer: str
    variant: int
    look: plots.Look
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    spread: tuple[Number, ...]
    points: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """Labels of the configurations in the line."""
        return self.points or (self.label,)

    def band(self, log: bool) -> tuple[list[Number], list[Number]]:
        """Return mean minus and plus deviation; on a logarithmic axis, at least a tenth of the mean."""
        low = [max(y - s, y / 10) if log else y - s for y, s in zip(self.y, self.spread, strict=True)]
        return low, [y + s for y, s in zip(self.y, self.spread, strict=True)]


@dataclass(frozen=True)
class Chart:
    """One plot.

    Attributes:
        kind: curve, loss, length, state, rate, heads or fact.
        title: title of the plot.
        x_label: name of the abscissa, with its unit.
        y_label: name of the ordinate, with its unit.
        series: the lines.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical axis is logarithmic.
        chance: level of a horizontal line.
        trained_at: abscissa of a vertical line: the length of training.
        floor: {abscissa: theoretical lower bound of the ordinate}.
        without: abscissa for points at zero on a logarithmic axis, such as mixers without a state.
        joined: whether lines join the points, with a band for the spread; otherwise each point has an error bar.
    """

    kind: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    chance: Number | None = None
    trained_at: Number | None = None
    floor: Mapping[Number, Number] = field(default_factory=dict)
    without: Number | None = None
    joined: bool = True

    @property
    def is_share(self) -> bool:
        """Whether the ordinate is a score between zero and one, so that the axis shows the whole range."""
        return not self.log_y and SCORES.get(self.y_label.split()[-1], False)

    @property
    def abscissae(self) -> list[Number]:
        """Abscissae of all points, ascending."""
        return sorted({x for each in self.series for x in each.x})

    @property
    def ticks(self) -> dict[Number, str] | None:
        """{abscissa: label} of the horizontal axis; None for automatic ticks."""
        points = self.abscissae
        if self.kind == "state":
            sizes = [x for x in points if x != self.without]
            first, last = (round(math.log2(x)) for x in (sizes[0], sizes[-1]))
            powers = range(first, last + 1, max(1, math.ceil((last - first) / 3)))
            none = {} if self.without not in points else {self.without: "none"}
            return none | {2**power: numbers.size(2**power) for power in powers}
        each = self.kind in ("length", "fact", "heads", "rate") and len(points) <= 10
        return {x: f"{x:,}" for x in points} if each else None


def charts_of(group: Group) -> list[Chart]:
    """Return the charts of a task that are not empty, learning curves first."""
    lines, by_size = partial(_lines, group), partial(_by_size, group)
    score = group.score.replace("_", " ")
    tested, validated, against = f"test {score}", f"validation {score}", f"{score.capitalize()} against"
    scored: dict[str, Any] = {
        "log_y": group.score in ("relative_squared_error", "perplexity"),
        "chance": group.chance if group.score == "accuracy" else None,
    }
    # Text is scored by perplexity, but its metrics at other lengths and by facts are accuracies.
    part = "relative_squared_error" if group.score == "relative_squared_error" else "accuracy"
    part_text = part.replace("_", " ")
    sizes = [size for row in group.rows if (size := row.center("state_bytes"))]
    stateless = min(sizes, default=1) / 4
    facts = sorted({fact for row in group.rows for run in row.judged for fact in by_facts(run.metrics, part)})
    found = [
        Chart("curve", "Learning curves", "optimizer steps", validated, lines(_curve(f"val/{group.score}")), **scored),
        Chart("loss", "Training loss", "optimizer steps", "training loss", lines(_curve("train/loss")), log_y=True),
        Chart(
            "length",
            f"{part_text.capitalize()} against length",
            "length of the test sequences (positions)",
            f"test {part_text}",
            lines(lambda row: [_at_lengths(run, row, part) for run in row.judged]),
            log_x=True,
            log_y=part != "accuracy",
            trained_at=next((row.options["task.seq_len"] for row in group.rows if "task.seq_len" in row.options), None),
            chance=scored["chance"],
        ),
        *(
            Chart(
                "fact",
                f"{part_text.capitalize()} by {fact.replace('_', ' ')}",
                f"{fact.replace('_', ' ')}, at most",
                f"test {part_text}",
                lines(lambda row, fact=fact: [by_facts(run.metrics, part).get(fact, {}) for run in row.judged]),
                log_x=True,
                log_y=part != "accuracy",
                chance=scored["chance"],
            )
            for fact in facts
        ),
        Chart(
            "state",
            f"{against} state",
            "state after the sequence, batch of one",
            tested,
            by_size(lambda row: row.center("state_bytes") or stateless) if sizes else (),
            log_x=True,
            without=stateless,
            joined=False,
            **scored,
        ),
        Chart(
            "rate",
            f"{against} learning rate",
            "learning rate (score at the last rung that its trial reached)",
            validated,
            lines(lambda row: [_by_rate(row.window)]),
            log_x=True,
            **scored,
        ),
    ]
    if any("mixer.n_heads" in row.telling for row in group.rows):
        heads = by_size(lambda row: row.options.get("mixer.n_heads"), "mixer.n_heads")
        shape: dict[str, Any] = {"floor": _floor(group), "joined": False}
        found.append(Chart("heads", f"{against} heads", "heads H", tested, heads, **scored | shape))
    return [chart for chart in found if chart.series and (chart.kind in ("curve", "loss") or len(chart.abscissae) > 1)]


def _curve(tag: str) -> Callable[[Row], list[dict[Number, Number]]]:
    """Return a function that reads the curve of each run of a row."""
    return lambda row: [dict(run.curves.get(tag, [])) for run in row.runs]


def _by_rate(window: Mapping[str, Any] | None) -> dict[Number, Number]:
    """Return {learning rate: score} without diverged rates."""
    rates = window.get("rates", ()) if window else ()
    return {rate["lr"]: rate["score"] for rate in rates if rate["score"] is not None}


def _at_lengths(run: Run, row: Row, score: str) -> dict[Number, Number]:
    """Return {length: score}, with the score at the training length if there are other lengths."""
    found: dict[Number, Number] = {**at_lengths(run.metrics, score)}
    length, value = row.options.get("task.seq_len"), number_at(run.metrics, row.split, score)
    if found and length is not None and value is not None:
        found.setdefault(length, value)
    return found


def _lines(group: Group, points: Callable[[Row], Sequence[Mapping[Any, Number]]]) -> tuple[Series, ...]:
    """Return a line per configuration, from the points {x: y} of each of its seeds."""
    lines = {}
    for row in sorted(group.rows, key=lambda row: numbers_by_size(row.label)):
        seeds = points(row)
        places = sorted({x for seed in seeds for x in seed})
        places = [*places[: -1 : len(places) // _MOST_POINTS + 1], *places[-1:]]
        at = {x: [seed[x] for seed in seeds if x in seed] for x in places}
        lines[row.mixer, row.label] = [(x, *_mean_and_spread(values)) for x, values in at.items()]
    return _series(lines)


def _by_size(group: Group, size: Callable[[Row], Number | None], without: str = "") -> tuple[Series, ...]:
    """Return a line per mixer through its tested configurations; with `without`, one per value of all other options."""
    lines = defaultdict(list)
    for row in group.rows:
        x, values = size(row), row.values()
        if row.tested and x is not None and values:
            label = label_of(row.mixer, row.options, row.telling - {without}) if without else row.mixer
            lines[row.mixer, label].append((x, *_mean_and_spread(values), row.label))
    return _series(lines)


def _series(lines: Mapping[tuple[str, str], Sequence[tuple[Any, ...]]]) -> tuple[Series, ...]:
    """Return the lines that have points, from {(mixer, label): points of x, y, spread and perhaps a label}."""
    drawn = {key: sorted(points) for key, points in lines.items() if points}
    alone = len({mixer for mixer, _ in lines}) == 1 < len(lines)
    found, variants = [], defaultdict(itertools.count)
    for (mixer, label), points in drawn.items():
        variant = next(variants[mixer])
        look = plots.nth_look(variant) if alone else plots.look_of(mixer)
        found.append(Series(label, mixer, variant, look, *zip(*points, strict=True)))
    return tuple(found)


def _mean_and_spread(values: Sequence[Number]) -> tuple[Number, Number]:
    mean, spread = mean_and_spread(values)
    assert mean is not None  # there are values
    return mean, spread or 0.0


def _floor(group: Group) -> dict[Number, Number]:
    """Return {heads: least error}, without errors that are numerically zero."""
    known = [run.metrics.get("floor_at_heads", {}) for row in group.rows for run in row.judged]
    found = {int(heads): error for each in known for heads, error in each.items() if error is not None}
    return {heads: error for heads, error in sorted(found.items()) if error > _ROUNDOFF}
