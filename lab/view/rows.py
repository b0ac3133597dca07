"""Group runs by task, with a row per configuration that averages over seeds."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from lab.run.identity import given_options
from lab.run.metrics import numbers_at
from lab.run.record import Run
from lab.run.score import LEFT, guess_level, level, mean_and_spread, median_steps, merit, score_of, score_text
from zoo.registry import MIXERS
from zoo.report.numbers import Number, plain

logger = logging.getLogger(__name__)

# Options of the data that do not change the task: the amount of data, additional test lengths.
_OF_THE_DATA = {f"task.{name}" for name in ("n_train", "n_val", "n_test", "fresh", "test_lengths")}
_BUDGET = (
    *("trainer.max_steps", "trainer.max_epochs", "batch_size", "trainer.accumulate_grad_batches"),
    *("task.fresh", "task.n_train"),
)
_RANK = {"tested": 0, "trained": 1, "unfinished": 2}


@dataclass(frozen=True)
class Row:
    """One configuration; its numbers are means over seeds.

    Attributes:
        label: the mixer, and the options that differ between its configurations in the group.
        options: options of the configuration, by dotted name.
        runs: one run per seed, ordered by seed.
        score: the metric that judges it, such as accuracy.
        telling: the options in the label.
        decimals: decimals of an accuracy in tables.
    """

    decimals: ClassVar[int] = 4

    label: str
    options: Mapping[str, Any]
    runs: tuple[Run, ...]
    score: str
    telling: frozenset[str] = frozenset()

    @property
    def mixer(self) -> str:
        """The mixer's name in the registry."""
        return self.runs[0].mixer

    @cached_property
    def judged(self) -> tuple[Run, ...]:
        """The runs that count: the tested ones, else the trained ones, else the unfinished ones."""
        best = min(_RANK[run.state] for run in self.runs)
        return tuple(run for run in self.runs if _RANK[run.state] == best)

    @property
    def tested(self) -> bool:
        """Whether the score is a test score; otherwise it is a validation score and cannot be the best."""
        return self.judged[0].state == "tested"

    @property
    def split(self) -> str:
        """The split of the score."""
        return "test" if self.tested else "val"

    @property
    def budget(self) -> tuple[float, ...]:
        """Values of the options for training length and amount of data; scores are ranked within equal budgets."""
        return tuple(float(self.options.get(key) or 0) for key in _BUDGET)

    def values(self, *path: str) -> list[Number]:
        """Return a metric, by default the score, of the runs that count and have it.

        Args:
            path: names for `lab.run.metrics.number_at`.
        """
        return numbers_at((run.metrics for run in self.judged), *(path or (self.split, self.score)))

    def center(self, *path: str) -> float | None:
        """Return the mean of `values`."""
        return mean_and_spread(self.values(*path))[0]

    @property
    def spread(self) -> float | None:
        """The score's standard deviation over the runs that count; None for fewer than two."""
        return mean_and_spread(self.values())[1]

    def text(self, value: Number | None, spread: Number | None = None) -> str:
        """Format a value of the score for tables, ± its spread over seeds."""
        return score_text(self.score, value, spread, self.decimals)

    @property
    def score_text(self) -> str:
        """The score as text for tables, with its spread over seeds."""
        return self.text(self.center(), self.spread)

    @property
    def short_text(self) -> str:
        """The score with two decimals, and the number of seeds that solved the task; `score_text` for perplexities."""
        middle, solved = self.center(), self.solved
        return self.score_text if middle is None or solved is None else f"{middle:.2f} ({solved[0]} of {solved[1]})"

    def fact(self, name: str) -> Number | None:
        """Return one of `lab.run.score.FACTS`, by its name in the metrics."""
        if name == "chance":
            return guess_level(self.score, self.center(name))
        return median_steps(self.values(name), len(self.judged)) if name == "steps_to_90" else self.center(name)

    @property
    def solved(self) -> tuple[int, int] | None:
        """Number of runs that solved the task, and of all runs; None for losses, perplexities and untested runs.

        A run solves its task at nine tenths of the way from chance to a perfect test score.
        """
        goal, values = level(self.score, self.center("chance")), self.values("test", self.score)
        if goal is None or not values:
            return None
        return sum(merit(self.score, value) >= merit(self.score, goal) for value in values), len(values)

    @property
    def window(self) -> Mapping[str, Any] | None:
        """The window of learning rates that a sweep measured for this configuration; None without one."""
        return next((run.window for run in self.runs if run.window), None)

    @cached_property
    def baseline(self) -> float | None:
        """The score of the best guess without order, if known."""
        from lab.build import trivial_guess

        return trivial_guess(self.runs[0].config, "guess_without_order")

    @property
    def seeds(self) -> str:
        """The number of runs in the score, and of all runs if it differs, such as "3 of 5"."""
        n, total = len(self.values()), len(self.runs)
        return str(n) if n == total else f"{n} of {total}"

    @property
    def remark(self) -> str:
        """Warnings about the row's runs; empty if all are tested and come from one version of the code."""
        notes = [] if self.tested else ["validation"]
        for run in self.runs:
            if run.state == "unfinished":
                how = f"failed: {run.message}" if run.message else "unfinished"
                steps = run.config.get("trainer", {}).get("max_steps", -1)
                total = f" of {steps:,}" if isinstance(steps, int) and steps > 0 else ""
                notes.append(f"seed {run.seed} {how} at step {run.step:,}{total}")
            elif run.state == "trained" and self.tested:
                notes.append(f"seed {run.seed} not tested")
        if len(commits := {run.commit for run in self.runs if run.commit}) > 1:
            notes.append(f"runs of {len(commits)} versions of the code")
        return "; ".join(notes)


@dataclass(frozen=True)
class Group:
    """The configurations of one task.

    Attributes:
        title: the task's name, and the options that differ between groups of this name.
        score: the metric that judges it, such as accuracy.
        rows: tested rows first; within tested and untested rows, the largest budget first, then the best score.
        unnamed: options that differ between rows but are in no label, such as d_model per mixer.
        any_budget: whether rows of different budgets are ranked together.
    """

    title: str
    score: str
    rows: tuple[Row, ...] = field(repr=False)
    unnamed: tuple[str, ...] = ()
    any_budget: bool = False

    @cached_property
    def best(self) -> set[str]:
        """Labels of the tested rows with the best score of their budget.

        Equal scores give several labels. There are none if only one row is tested, or if the best row does not beat a
        guess. A model that reads later positions is excluded.
        """
        by_budget: dict[tuple[float, ...], dict[str, float]] = {}
        for row in self.rows:
            if row.tested and not row.runs[0].leak:
                rivals = by_budget.setdefault(() if self.any_budget else row.budget, {})
                rivals[row.label] = merit(self.score, row.center())
        guessing = merit(self.score, level(self.score, self.chance, LEFT))
        best = [(rivals, max(rivals.values())) for rivals in by_budget.values() if len(rivals) > 1]
        return {label for rivals, top in best for label in rivals if rivals[label] == top > guessing}

    @property
    def chance(self) -> float | None:
        """The accuracy of a guess that ignores the input, if the runs have it."""
        found = (row.center("chance") for row in self.rows)
        return next((value for value in found if value is not None), None)


def group_runs(runs: Iterable[Run], any_budget: bool = False) -> list[Group]:
    """Group runs by task and configuration, and collect the seeds of each configuration in one row.

    Runs belong to one configuration if they agree in all options but the seed and incidental ones, whatever their
    folders are called. Of two runs with the same configuration and seed, the finished one counts, else the first; a
    warning lists one omitted run and the number of others. Another warning reports runs of a task that read different
    data, for example because your own function has changed.

    Args:
        runs: the runs.
        any_budget: whether to rank rows with different steps, batch sizes or amounts of data together.
    """
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        of_task = {key: run.options[key] for key in run.options if key.startswith("task.") and key not in _OF_THE_DATA}
        by_task.setdefault(_text(of_task), []).append(run)
    tasks = [members[0] for members in by_task.values()]
    groups = []
    for members in by_task.values():
        first = members[0]
        rivals = [run.options for run in tasks if run.task == first.task]
        telling = {key for key in differing_options(rivals) if key.startswith("task.") and key not in _OF_THE_DATA}
        groups.append(_group(label_of(first.task, first.options, telling), members, any_budget))
    return sorted(groups, key=lambda group: numbers_by_size(group.title))


def _group(title: str, runs: Sequence[Run], any_budget: bool) -> Group:
    found: dict[str, dict[int, Run]] = {}
    twins = []
    for run in sorted(runs, key=lambda run: _RANK[run.state]):
        by_seed = found.setdefault(_text(run.options), {})
        if (there := by_seed.setdefault(run.seed, run)) is not run:
            twins.append(f"{run.folder}: the same configuration and seed as {there.folder}")
    if twins:
        others = f", and {len(twins) - 1} more runs likewise" if twins[1:] else ""
        logger.warning("left out %s%s", twins[0], others)
    configurations = [tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in found.values()]
    noted = [run for members in configurations for run in members if run.data is not None]
    if others := [run for run in noted if run.data != noted[0].data]:
        logger.warning("not comparable: %s read other data of %s than %s", others[0].folder, title, noted[0].folder)
    score = score_of((run.metrics for run in runs), "test", "val")
    of_mixer: dict[str, list[Mapping[str, Any]]] = {}
    for first, *_ in configurations:
        of_mixer.setdefault(first.mixer, []).append(first.options)
    tellings = {mixer: _telling(options) for mixer, options in of_mixer.items()}
    named = {"mixer.name"}.union(*tellings.values())
    rows = []
    for members in configurations:
        first = members[0]
        telling = tellings[first.mixer]
        label = label_of(first.mixer, first.options, telling)
        rows.append(Row(label, first.options, members, score, frozenset(telling)))
    rows.sort(key=lambda row: (not row.tested, -merit(score, row.center()), numbers_by_size(row.label)))
    if not any_budget:
        rows.sort(key=lambda row: (not row.tested, [-amount for amount in row.budget]))
    differing = differing_options([row.options for row in rows]) - named
    unnamed = tuple(sorted(key for key in differing if not key.startswith("mixer.")))
    return Group(title, score, tuple(rows), unnamed, any_budget)


def _telling(options: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the options that distinguish configurations.

    An option that takes only one value and is absent elsewhere usually follows from another option, as the options of a
    hybrid's member follow from its pattern. Such options are omitted if the others suffice.
    """
    differing = differing_options(options)
    varied = {key for key in differing if len({_text({key: each[key]}) for each in options if key in each}) > 1}
    apart = {_text({key: each.get(key) for key in varied}) for each in options}
    return varied if len(apart) == len(options) else differing


def differing_options(options: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys whose values differ; a missing key counts as None, because an older run may lack a new option."""
    keys = {key for each in options for key in each}
    return {key for key in keys if any(each.get(key) != options[0].get(key) for each in options)}


def label_of(name: str, options: Mapping[str, Any], telling: Set[str]) -> str:
    """Return a label such as `attention n_heads=2`, without the prefixes mixer., task. and trainer. if unambiguous."""
    parts = []
    for key in sorted(telling & options.keys()):
        short = key.split(".", 1)[1] if key.startswith(("mixer.", "task.", "trainer.")) else key
        parts.append(f"{key if short != key and short in options else short}={value_text(options[key])}")
    return " ".join([name, *parts])


def numbers_by_size(label: str) -> list[str | float]:
    """Return a key that sorts n=8 before n=16, and lr=0.05 before lr=0.1."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [float(part) if n % 2 else part for n, part in enumerate(parts)]


def value_text(value: Any) -> str:
    """Format an option's value; None is "default", since the mixer, the task or the trainer chooses."""
    return "default" if value is None else plain(value)


def _text(options: Mapping[str, Any]) -> str:
    return json.dumps(given_options(options), sort_keys=True, default=str)


def mixers_of(groups: Iterable[Group]) -> list[str]:
    """Return the mixers of the configurations, in the order of the registry, your own last."""
    return sorted({row.mixer for group in groups for row in group.rows}, key=place)


def place(mixer: str) -> tuple[int, str]:
    """Return a key that sorts mixers in the order of the registry, then your own by name."""
    names = list(MIXERS)
    return (names.index(mixer) if mixer in names else len(names)), mixer
