"""What every experiment's judge uses: the runs by option and by seed, limits that several share, lines of a plot.

A judge takes the runs as they are, whatever the setting: values that the grid varies are read off the runs, never
repeated in it. Its checks are made by `zoo.evidence` from samples, one number for each seed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.run.metrics import number_at, numbers_at
from lab.run.record import Run
from zoo.evidence import Check, Curve, Evidence, Panel, Samples, at_least, at_most, controlled, paired
from zoo.evidence.interval import FEWEST_PAIRS, of_rank_correlation
from zoo.report.numbers import count

ACCURACY, ERROR, BITS = ("test", "accuracy"), ("test", "relative_squared_error"), ("test", "bits_per_token")
STATE, SPEED, STEPS_TO_90 = ("state_bytes",), ("tokens_per_second",), ("steps_to_90",)
"""Return where the metrics have these numbers."""
ZERO = 1e-6
"""A relative squared error that is nothing: an optimiser in float32 stops near 1e-11."""
NOISE = 0.03
"""Relative, of a trained error: 2 % of Adam's noise (the median of seeds), 1 % of the sample that it is tested on."""
LEARNED, GUESSED = 0.9, 0.1
"""An accuracy from which a task of one answer counts as learned; above chance, one up to which it does not."""
SPREAD = 0.05
"""Accuracies that differ by less are alike."""
STEPS, LONGER = "trainer.max_steps", 4
"""The length of training, and how many times as long a negative has been tried."""


@dataclass(frozen=True)
class Runs:
    """Some runs of one experiment, and what is asked of them together."""

    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.runs)

    def where(self, options: Mapping[str, Any]) -> Runs:
        """Return the runs with these values."""
        return Runs(tuple(r for r in self.runs if all(r.options.get(key) == value for key, value in options.items())))

    def values(self, option: str) -> list[Any]:
        """Return the values of an option, each once: numbers ascending, others in the order of the runs."""
        found = {json.dumps(run.options.get(option)): run.options.get(option) for run in self.runs}
        values = [value for value in found.values() if value is not None]
        return sorted(values) if all(isinstance(value, int | float) for value in values) else values

    def by(self, option: str) -> Iterator[tuple[Any, Runs]]:
        """Return each value of an option with its runs."""
        return ((value, self.where({option: value})) for value in self.values(option))

    def easiest(self, option: str) -> Runs:
        """Return those at the least value of an option that makes the task harder; all of them where it has one."""
        return self.where({option: min(self.values(option), default=None)})

    def hardest(self, option: str) -> Runs:
        """Return those at its largest value."""
        return self.where({option: max(self.values(option), default=None)})

    @property
    def usual(self) -> Runs:
        """Return those that were trained as long as the shortest."""
        return self.easiest(STEPS)

    @property
    def longer(self) -> Runs:
        """Return those that were trained four times as long; none where there are none."""
        return self.where({STEPS: LONGER * min(self.values(STEPS), default=0)})

    def scores(self, metric: Sequence[str]) -> list[float]:
        """Return a metric of each run that has it; see `lab.run.metrics.number_at`."""
        return numbers_at((run.metrics for run in self.runs), *metric)

    def samples(self, metric: Sequence[str]) -> Samples:
        """Return a metric by seed, NaN where the run has none.

        Raises:
            ValueError: two runs of one seed, which are no samples of one thing.
        """
        found = {run.seed: number_at(run.metrics, *metric) for run in self.runs}
        if len(found) < len(self.runs):
            raise ValueError(f"{len(self.runs)} runs of {len(found)} seeds: samples need one run per seed")
        return {seed: math.nan if value is None else value for seed, value in found.items()}

    def median(self, metric: Sequence[str]) -> float:
        """Return the median over the runs; NaN where none has the metric."""
        return statistics.median(self.scores(metric) or [math.nan])

    def kinds(self) -> dict[str, Runs]:
        """Return the runs by mixer, and where runs of a mixer differ in its options, by these too."""
        found: dict[str, Runs] = {}
        for name, of_mixer in self.by("mixer.name"):
            keys = {key for run in of_mixer.runs for key in run.options if key.startswith("mixer.")}
            # An option that only some runs have given differs too.
            varying = sorted(key for key in keys if len({json.dumps(r.options.get(key)) for r in of_mixer.runs}) > 1)
            for run in of_mixer.runs:
                settings = {key: run.options.get(key) for key in varying}
                words = [f"{key.removeprefix('mixer.')} {value}" for key, value in settings.items()]
                found.setdefault(", ".join([name, *words]), of_mixer.where(settings))
        return found


@dataclass(frozen=True)
class Prediction:
    """How an experiment is judged.

    Attributes:
        source: where the prediction comes from.
        refuted_by: what would refute it, in words.
        judge: the checks and plots that its runs give.
    """

    source: str
    refuted_by: str
    judge: Callable[[Runs], Evidence]


def at_length(length: int) -> tuple[str, ...]:
    """Return where the metrics have the accuracy on test sequences of another length than in training."""
    return "test", "at_length", str(length), "accuracy"


def least(several: Iterable[Samples]) -> Samples:
    """Return the least of several measurements of each seed."""
    given = list(several)
    return paired(lambda *values: min(values), *given) if given else {}


def not_learned(quantity: str, scores: Samples, most: float, control: Check, longer: Samples) -> Check:
    """Predict that the larger of each seed's two scores, after usual and after longer training, is at most `most`.

    It says nothing unless the control holds. Where only some seeds have been trained longer, the largest of their
    scores is a control too.
    """
    either = paired(lambda *both: math.nan if any(map(math.isnan, both)) else max(both), scores, longer)
    after = f"the larger of those after 1 and {LONGER} times the training ({count(len(either), 'seed')})"
    check = at_most(f"{quantity}, {after}", {**scores, **either}, most)
    if either and len(either) == len(scores):
        return controlled(check, control)
    largest = max(either.values(), default=math.nan)
    return controlled(check, control, at_most(f"the largest after {LONGER} times the training", largest, most))


def correlated(quantity: str, cells: Sequence[tuple[float, float]], least: float) -> Check:
    """Predict, over cells with the medians of their seeds, a rank correlation of at least `least`."""
    kept = [cell for cell in cells if all(map(math.isfinite, cell))]
    if len(kept) < FEWEST_PAIRS:
        reason = f"{count(len(kept), 'cell')} of the {FEWEST_PAIRS} that a correlation needs"
        return Check(quantity, math.nan, least, reason=reason)
    x, y = zip(*kept, strict=True)
    return at_least(quantity, of_rank_correlation(x, y), least)


def curve(label: str, points: Mapping[Any, float], style: Any = "marked") -> Curve:
    """Return a line through points from left to right, those that were not measured left out."""
    shown = {x: points[x] for x in sorted(points) if math.isfinite(points[x])}
    return Curve(label, tuple(shown), tuple(shown.values()), style)


def panel(title: str, x: str, y: str, curves: Sequence[Curve], **options: Any) -> Panel:
    """Return a plot of the lines that have points, of accuracies from 0 to 1."""
    return Panel(title, x, y, tuple(each for each in curves if each.x), share=y.endswith("accuracy"), **options)
