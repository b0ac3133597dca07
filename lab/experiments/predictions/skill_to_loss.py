"""Scores on synthetic tasks, from the leaderboard, against bits per byte of text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from lab.experiments.vocabulary import BITS, Prediction, Runs, correlated, curve, panel
from lab.plain import read_mapping
from lab.score import merit
from lab.sweep.grid import read_experiment
from zoo.evidence import Check, Evidence, at_least, controlled, paired
from zoo.report.files import read_json
from zoo.report.numbers import count

ROOT = Path(__file__).resolve().parents[3]
TEXT = "text"
"""The task of the leaderboard that is no synthetic one."""
APART = 0.05
"""Bits between the best mixer and the worst without which there is nothing to rank."""
NAMED = 6
"""Missing cells that are named."""


def synthetic_cells() -> tuple[list[str], dict[tuple[str, str], dict[str, Any]]]:
    """Return the synthetic tasks of the leaderboard, and what was run at their shapes of today, by mixer and task."""
    board = ROOT / "configs" / "leaderboard.yaml"
    tasks = [task for task in read_mapping(board)["settings"] if task != TEXT]
    shapes = {task: read_experiment(board, task).shape for task in tasks}
    file = ROOT / "docs" / "leaderboard.json"
    records = read_json(file) if file.is_file() else []
    return tasks, {(each["mixer"], each["task"]): each for each in records if each["shape"] == shapes.get(each["task"])}


def skills(mixers: list[str], tasks: list[str], cells: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, float]:
    """Return each mixer's mean over the tasks of the share of the others that it beats; equals count half."""
    merits = {task: {m: merit(cells[m, task]["metric"], cells[m, task]["score"]) for m in mixers} for task in tasks}

    def beaten(mixer: str, of_task: Mapping[str, float]) -> float:
        mine = of_task[mixer]
        return fmean((mine > other) + (mine == other) / 2 for name, other in of_task.items() if name != mixer)

    return {mixer: fmean(beaten(mixer, of_task) for of_task in merits.values()) for mixer in mixers}


def judge(runs: Runs) -> Evidence:
    """Expect the mixers that are better on synthetic tasks to need fewer bits of text."""
    tasks, cells = synthetic_cells()
    bits = {name: of_mixer.samples(BITS) for name, of_mixer in runs.by("mixer.name")}
    medians = {name: of_mixer.median(BITS) for name, of_mixer in runs.by("mixer.name")}
    missing = [f"{mixer} on {task}" for task in tasks for mixer in bits if (mixer, task) not in cells]
    quantity = "rank correlation of skill and fewer bits of text, over mixers"
    best, *_, worst = sorted(bits, key=medians.__getitem__) if len(bits) > 1 else [*bits, *bits]
    apart = at_least(
        "bits between the best mixer and the worst", paired(lambda a, b: a - b, bits[worst], bits[best]), APART
    )
    if missing:
        named = ", ".join(missing[:NAMED]) + (" and others" if len(missing) > NAMED else "")
        reason = f"the leaderboard lacks {count(len(missing), 'cell')}: {named}"
        return Evidence((Check(quantity, math.nan, 0.5, reason=reason), apart))
    skill = skills(list(bits), tasks, cells)
    points = [(skill[mixer], -medians[mixer]) for mixer in bits]
    lines = [curve(mixer, {skill[mixer]: medians[mixer]}, "points") for mixer in bits]
    title, x = "Synthetic tasks and text", "skill: mean share of the other mixers that are beaten"
    drawn = panel(title, x, "test bits per symbol", lines, log_y=False)
    return Evidence((controlled(correlated(quantity, points, 0.5), apart), apart), (drawn,))


PREDICTION = Prediction(
    "Poli et al., arXiv 2403.17844 (MAD: synthetic tasks predict the loss on text)",
    "a rank correlation below 0.5",
    judge,
)
