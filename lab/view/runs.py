"""Runs as they lie on disk: configuration, metrics, curves; of finished and unfinished ones, at any depth."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from lab.run import (
    CONFIG,
    ENVIRONMENT,
    EVENTS,
    INDEX,
    METRICS,
    Metrics,
    State,
    deciding_options,
    nested_metrics,
    read_fields,
    read_metrics,
    said_by,
    state_of,
)
from zoo.loading.names import CHECKPOINTS
from zoo.naming import flatten, require_extra
from zoo.report.files import read_json
from zoo.targets import short

logger = logging.getLogger(__name__)

# What our other commands leave where runs are kept: nothing to complain of.
_OTHER_RESULTS = {"claims.json", "compare.csv", "measure.json"}

Curve: TypeAlias = list[tuple[int, float]]
"""(step, value), by step."""


@dataclass(frozen=True)
class Run:
    """One run of train.py.

    Attributes:
        folder: where it is kept.
        config: config.yaml, nested as there.
        metrics: numbers of metrics.json, nested as there (see `lab.run.Metrics`), None for one that is not finite. An
            unfinished run has the last value logged of each curve.
        state: "tested"; "trained", with --no_test; "unfinished", whether it is under way or has failed.
        trial: whether it is one of those from which `sweep.py --tune` picked another.
        message: why a sweep's run failed.
        window: of the learning rates among which `sweep.py --tune` picked this run's (`lab.sweep.tuning.Window`).
        commit: of the code that ran; empty if that was in no repository.
    """

    folder: Path
    config: dict[str, Any]
    metrics: Metrics
    state: State
    trial: bool = False
    message: str = ""
    window: Mapping[str, Any] | None = None
    commit: str = ""

    @property
    def task(self) -> str:
        """The task's name in the registry; of one of your own file.function, or the file's name."""
        return short(self.config["task"]["name"])

    @property
    def mixer(self) -> str:
        """The mixer's name in the registry; of one of your own file.Class."""
        return short(self.config["mixer"]["name"])

    @property
    def seed(self) -> int:
        """Of weights, data and order."""
        return self.config["seed"]

    @cached_property
    def options(self) -> dict[str, Any]:
        """What makes the configuration, by dotted name: no seed, nothing incidental."""
        return {key: value for key, value in deciding_options(self.config).items() if key != "seed"}

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """TensorBoard's scalars by tag, read when first asked for; none where the events cannot be read."""
        return read_curves(self.folder)

    @property
    def step(self) -> int:
        """The optimizer step that the metrics are of: the best checkpoint's, or the last one logged."""
        if self.state == "unfinished":
            return max((curve[-1][0] for curve in self.curves.values()), default=0)
        return int(self.metrics.get("step") or 0)


def read_runs(folder: str | Path, trials: bool = False) -> list[Run]:
    """Read every run under a folder, sorted by path; the folder may be a run itself.

    What is foreign or broken is skipped, with one warning each in the log (`lab.view`) that names it.

    Args:
        folder: where runs were kept, such as the --run_dir of train.py or sweep.py.
        trials: whether to include what `sweep.py --tune` tried and did not pick.

    Raises:
        ValueError: no such folder, or no run in it that can be read.
        MissingExtraError: yaml or tensorboard is not installed.
    """
    for module in ("yaml", "tensorboard"):
        require_extra(module)
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ValueError(f"no folder {root}; give one that holds runs of train.py, such as runs")
    search = _Search()
    search.visit(root)
    if not search.runs:
        broken = f": {search.n_skipped} skipped" if search.n_skipped else ""
        raise ValueError(f"no run of train.py that can be read in {root}{broken}")
    return [run for run in search.runs if trials or not run.trial]


@dataclass
class _Search:
    """A walk through folders."""

    runs: list[Run] = field(default_factory=list)
    n_skipped: int = 0
    _entries: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    """What the sweeps say of their runs, by folder."""
    _seen: set[Path] = field(default_factory=set)

    def visit(self, folder: Path) -> bool | None:
        """Add the runs in a folder; return whether there are any, or None where none was to be expected.

        A tree without runs is named by its top only, and only if there are runs next to it.
        """
        try:
            real = folder.resolve()
            with os.scandir(folder) as entries:
                kept = [entry for entry in entries if entry.name != CHECKPOINTS and not entry.name.startswith(".")]
                inner = sorted(folder / entry.name for entry in kept if entry.is_dir())
            files = {entry.name for entry in kept} - {each.name for each in inner}
        except OSError as error:
            self._skip(folder, str(error.strerror))
            return None
        if real in self._seen:  # reached again by a link
            return None
        self._seen.add(real)
        if files & _OTHER_RESULTS:
            return None
        if INDEX in files:
            self._entries |= self._read_index(folder)
        if files & {CONFIG, METRICS} or any(name.startswith(EVENTS) for name in files):
            try:
                self.runs.append(_read_run(folder, self._entries.get(real, {})))
                return True
            except ValueError as why:
                self._skip(folder, str(why))
                files = set()  # once is enough
        found = {each: self.visit(each) for each in inner}
        if True not in found.values():
            return False if files or False in found.values() else None
        for each, has_runs in found.items():
            if has_runs is False:
                self._skip(each, "no run of train.py in it")
        return True

    def _read_index(self, folder: Path) -> dict[Path, Mapping[str, Any]]:
        try:
            index = read_json(folder / INDEX)
            return {(folder / entry["folder"]).resolve(): entry for entry in index["runs"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._skip(folder / INDEX, f"cannot be read: {said_by(error)}")
            return {}

    def _skip(self, path: Path, why: str) -> None:
        self.n_skipped += 1
        logger.warning("skipped %s: %s", path, why)


def _read_run(folder: Path, entry: Mapping[str, Any]) -> Run:
    """Return a run; `entry` is what a sweep says of it.

    Raises:
        ValueError: no configuration, or files that are not a run's; the message says why, without the folder's name.
    """
    config, metrics = read_config(folder), read_metrics(folder)
    commit = str(read_fields(folder / ENVIRONMENT).get("git") or "")
    trial = entry.get("kind") == "trial"
    if metrics is not None:
        return Run(folder, config, metrics, state_of(metrics), trial, window=entry.get("window"), commit=commit)
    message = str(entry.get("message") or "") if entry.get("state") == "failed" else ""
    run = Run(folder, config, {}, "unfinished", trial, message, commit=commit)
    planned = {name: entry[name] for name in ("params", "state_bytes") if isinstance(entry.get(name), int)}
    logged = {tag: curve[-1][1] for tag, curve in run.curves.items() if tag.count("/") == 1}
    run.metrics.update(planned | nested_metrics(logged))
    return run


def read_config(folder: Path) -> dict[str, Any]:
    """config.yaml of a run.

    Raises:
        ValueError: there is none, or it is not one of train.py; the message says why, without the folder's name.
    """
    import yaml

    try:
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no {CONFIG}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{CONFIG} cannot be read: {said_by(error)}") from None
    values = dict(flatten(config)) if isinstance(config, dict) else {}
    for name, kind in (("mixer.name", str), ("task.name", str), ("seed", int)):
        if not isinstance(values.get(name), kind):
            raise ValueError(f"{CONFIG} is not one of train.py: it has no {name}")
    return config


def read_curves(folder: Path) -> dict[str, Curve]:
    """Return the scalars of a folder's TensorBoard events by tag; of a resumed run, what it went back on is left out.

    Events that cannot be read give a warning in the log and no curves.
    """
    if not any(folder.glob(f"{EVENTS}*")):
        return {}
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    # It warns of every run that has gone on; steps that were taken back are what is wanted here.
    theirs = logging.getLogger("tensorboard")
    level = theirs.level
    theirs.setLevel(logging.ERROR)
    try:
        # Of scalars every point (0), of pictures and the rest only the last (1).
        events = EventAccumulator(str(folder), size_guidance={SCALARS: 0, "images": 1, "histograms": 1})
        events.Reload()
        return {
            tag: sorted({each.step: each.value for each in events.Scalars(tag)}.items())
            for tag in events.Tags()[SCALARS]
        }
    except Exception as error:  # noqa: BLE001 (what it raises on foreign bytes is no one type)
        logger.warning("no curves of %s: its events cannot be read: %s", folder, said_by(error))
        return {}
    finally:
        theirs.setLevel(level)
