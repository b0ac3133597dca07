"""Find and read the runs under a folder, finished or not, at any depth."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.run.files import CONFIG, EVENTS, INDEX, METRICS
from lab.run.metrics import by_heading
from lab.run.record import Run, one_line, read_run
from zoo.extras import require_extra
from zoo.loading.names import CHECKPOINTS
from zoo.report.files import read_json
from zoo.targets import expanded

logger = logging.getLogger(__name__)

_OTHER_RESULTS = {"claims.json", "compare.csv", "measure.json"}
"""Files of our other commands: a folder with one of them, but without runs, gives no warning."""


class Runs(list[Run]):
    """A list of runs that converts to a pandas table."""

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a row per run: names, options by dotted name, metrics such as test/accuracy.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = require_extra("pandas", "train")
        named = ("task", "mixer", "seed", "state", "step")
        return pandas.DataFrame(
            {name: getattr(run, name) for name in named}
            | {key: value for key, value in run.options.items() if not isinstance(value, list | dict)}
            | {key: value for key, value in by_heading(run.metrics).items() if not key.startswith("curve/")}
            | {"folder": str(run.folder)}
            for run in self
        )


def read_runs(folder: str | Path, trials: bool = False) -> Runs:
    """Read every run under a folder, sorted by path; the folder may be a run itself.

    Other folders and broken runs are skipped, each with a warning in the log (`lab.view`).

    Args:
        folder: folder of runs, such as the --run_dir of train.py or sweep.py.
        trials: whether to include the trials that `sweep.py --tune` did not pick.

    Raises:
        ValueError: no such folder, or no readable run in it.
        MissingExtraError: yaml or tensorboard is not installed.
    """
    for module in ("yaml", "tensorboard"):
        require_extra(module)
    root = expanded(folder)
    if not root.is_dir():
        raise ValueError(f"no folder {root}; give a folder with runs of train.py, such as runs")
    runs = Runs()
    skipped: list[Path] = []
    entries: dict[Path, Mapping[str, Any]] = {}  # entries of the sweeps' indices, by run folder
    seen: set[Path] = set()
    with_files, with_runs = set(), set()  # folders directly under the root

    def skip(path: Path, why: str) -> None:
        skipped.append(path)
        logger.warning("skipped %s: %s", path, why)

    walk = os.walk(root, followlinks=True, onerror=lambda error: skip(Path(error.filename), str(error.strerror)))
    for place, inner, names in walk:
        here, files = Path(place), {name for name in names if not name.startswith(".")}
        inner[:] = sorted(name for name in inner if name != CHECKPOINTS and not name.startswith("."))
        real, top = here.resolve(), here.relative_to(root).parts[:1]
        if real in seen:  # a link may lead to a folder seen before
            inner.clear()
            continue
        seen.add(real)
        if files and not files & _OTHER_RESULTS:
            with_files.add(top)
        if INDEX in files:
            try:
                entries |= {(here / entry["folder"]).resolve(): entry for entry in read_json(here / INDEX)["runs"]}
            except (OSError, ValueError, KeyError, TypeError) as error:
                skip(here / INDEX, f"cannot be read: {one_line(error)}")
        if files & {CONFIG, METRICS} or any(name.startswith(EVENTS) for name in files):
            with_runs.add(top)
            try:
                runs.append(read_run(here, entries.get(real, {})))
                inner.clear()
            except ValueError as why:
                skip(here, str(why))
    if not runs:
        raise ValueError(f"no readable run of train.py in {root}{f': {len(skipped)} skipped' if skipped else ''}")
    for top in sorted(with_files - with_runs - {()}):
        skip(root.joinpath(*top), "no run of train.py in it")
    return Runs(run for run in runs if trials or not run.trial)
