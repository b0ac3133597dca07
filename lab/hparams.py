"""The options and results of a run for TensorBoard's HParams tab.

A run cannot know which other runs it will be compared with, so it writes all its options. The tab lists the options
that differ between the shown runs first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.run.identity import deciding_options
from lab.run.metrics import is_tested, number_at
from lab.run.score import score_of
from zoo.targets import short

NAMING = {"mixer.name": "mixer", "task.name": "task", "seed": "seed"}
"""Options that identify a run, with their headings in the tab."""


def compared_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide a run's result, by heading: the flag, prefixed by `model.` without a group."""
    options = deciding_options(config)
    named = {heading: options.pop(key) for key, heading in NAMING.items()}
    return {key: short(value) if isinstance(value, str) else value for key, value in named.items()} | {
        key if key.split(".")[0] in ("mixer", "task", "trainer") else f"model.{key}": value
        for key, value in options.items()
    }


def compared_results(metrics: Mapping[str, Any]) -> dict[str, int | float | None]:
    """Return the results of a run for the tab: the task's score, once tested, and sizes."""
    score = score_of([metrics], "test")
    tested = {score: number_at(metrics, "test", score)} if is_tested(metrics) else {}
    return tested | {"parameters": metrics["params"], "state_bytes": metrics["state_bytes"]}
