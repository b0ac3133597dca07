"""Runs as they lie on disk: configuration, metrics, curves; of finished and unfinished ones, at any depth."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.run.files import CONFIG, EVENTS, INDEX, METRICS
from lab.run.record import Run, one_line, read_run
from zoo.extras import require_extra
from zoo.loading.names import CHECKPOINTS
from zoo.report.files import read_json

logger = logging.getLogger(__name__)

# What our other commands leave where runs are kept: nothing to complain of.
_OTHER_RESULTS = {"claims.json", "compare.csv", "measure.json"}


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
                self.runs.append(read_run(folder, self._entries.get(real, {})))
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
            self._skip(folder / INDEX, f"cannot be read: {one_line(error)}")
            return {}

    def _skip(self, path: Path, why: str) -> None:
        self.n_skipped += 1
        logger.warning("skipped %s: %s", path, why)
