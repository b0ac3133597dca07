"""Make and read the records of verdicts in docs/results.json: checks, hash of the prediction, origin of the runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.experiments import spec as specs
from lab.experiments.probes import PROBES, measure
from lab.experiments.spec import Spec
from lab.run.environment import git, machine_of
from lab.run.files import DONE, ENVIRONMENT, INDEX
from lab.run.record import Run, read_rungs
from lab.view.rows import group_runs
from lab.view.runs import read_runs
from lab.view.table import runs_as_csv
from zoo.errors import UsageError
from zoo.evidence import Verdict
from zoo.evidence.page import check_record
from zoo.report.files import finite, read_json
from zoo.targets import expanded

Record = dict[str, Any]
ORIGIN = ("seeds", "machine", "dates", "commits", "command", "seconds", "trial_seconds", "saved")


class NoRunsError(UsageError):
    """An experiment has no runs, and no list of runs."""


@dataclass(frozen=True)
class Listed:
    """The list of an experiment's runs, from a sweep's folder or from an earlier record.

    Attributes:
        text: CSV with a line per run; empty if it was not kept.
        origin: seeds, machine, dates, commits, command, seconds, share of the steps saved by early stopping.
        missing: folders of planned runs that are not done, and configurations without a tuned value.
        fresh: whether the runs come from a sweep's folder.
    """

    text: str
    origin: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    fresh: bool = False


def read_listed(spec: Spec, run_dir: Path, kept: Path, stored: Mapping[str, Any]) -> Listed:
    """Read the runs of `sweep.py` in `run_dir`; until one is done, the list of runs that was kept, and its origin.

    Raises:
        NoRunsError: there are no runs, and no list of this setting.
        UsageError: a file that cannot be read.
    """
    setting = str(spec.experiment.setting)
    folder = (expanded(run_dir) / spec.name / setting).resolve()
    is_kept = stored.get("setting") == setting and stored.get("checks")
    if (folder / INDEX).is_file():
        listed = _read_sweep(spec, folder)
        if listed.text or not (is_kept and kept.is_file()):
            return listed
    if is_kept:
        text = kept.read_text(encoding="utf-8") if kept.is_file() else ""
        return Listed(text, {key: stored[key] for key in ORIGIN if key in stored})
    command = f"python sweep.py configs/experiment/{spec.name}.yaml --setting {setting}"
    command += "" if run_dir == Path("runs") else f" --run_dir {shlex.quote(str(run_dir))}"
    raise NoRunsError(f"no runs of {spec.name} in {folder}: make them with {command}")


def _read_sweep(spec: Spec, folder: Path) -> Listed:
    index = _read(folder / INDEX)
    entries = [entry for entry in index["runs"] if entry["kind"] == "run"]
    # The seconds at a rung include those up to the rungs before.
    trials = [[stage.get("seconds") or 0.0 for stage in read_rungs(folder / each["folder"])] for each in index["runs"]]
    done = {(folder / entry["folder"]).resolve() for entry in entries if entry["state"] == "done"}
    # The folder may also hold runs of an earlier grid: the index lists the runs that count.
    runs = [run for run in read_runs(folder) if run.folder in done] if done else []
    environments = [_read(run.folder / ENVIRONMENT) for run in runs]
    marks = [_read(run.folder / DONE) for run in runs]
    columns = {run.folder: found for run, found in zip(runs, measure(spec.probes, runs), strict=True)}
    origin = {
        "seeds": sorted({run.seed for run in runs}),
        "machine": "; ".join(dict.fromkeys(map(machine_of, environments))),
        "dates": sorted({mark["finished"][:10] for mark in marks}),
        "commits": sorted({str(environment["git"])[:9] for environment in environments}),
        # With the flags that override the file, but without --run_dir.
        "command": re.sub(r" --run_dir[ =]('[^']*'|\S+)", "", f"python {index['command']}"),
        "seconds": sum((mark["seconds"] for mark in marks), 0.0),
        "trial_seconds": sum((max(seconds, default=0.0) for seconds in trials), 0.0),
        "saved": _saved(runs),
    }
    missing = tuple(str(entry["folder"]) for entry in entries if entry["state"] != "done")
    missing += tuple(f"{each} (no trial was picked)" for each in index.get("unpicked", ()))
    # Options in conditions need a column even while the runs do not differ in them yet.
    cells = [each for table in spec.published for each in (table.get("where", {}), *table["cells"].values())]
    named = {key for cell in cells for key in cell if key.startswith(("mixer.", "task."))}
    flags = {f"{key}.name" if key in ("mixer", "task") else key for grid in spec.experiment.grids for key in grid}
    named |= flags - {"seed"} if missing else flags & {key for run in runs for key in run.options}
    return Listed(runs_as_csv(group_runs(runs), columns, named) if runs else "", origin, missing, fresh=True)


def _saved(runs: Sequence[Run]) -> float:
    """Return the share of all planned steps that early stopping saved."""
    planned = [int(run.config["trainer"]["max_steps"]) for run in runs]
    untrained = [
        steps - max(map(int, run.metrics["curve"]))
        for run, steps in zip(runs, planned, strict=True)
        if run.metrics.get("stopped_early")
    ]
    return sum(untrained) / sum(planned) if untrained else 0.0


def _read(file: Path) -> Any:
    try:
        return read_json(file)
    except ValueError as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def read_records(file: Path) -> dict[str, Record]:
    """Return the records of earlier commands; empty without the file.

    Raises:
        UsageError: the file is not JSON.
    """
    return _read(file) if file.is_file() else {}


def register(spec: Spec, stored: Mapping[str, Any]) -> Record:
    """Return the record of a prediction before its runs: the hash of its frozen part, and the commit of its file.

    A prediction whose file was not committed is registered again until there are runs.
    """
    file = str(specs.CONFIGS / "experiment" / f"{spec.name}.yaml")
    is_committed = git("status", "--porcelain", "--", file) == "" and git("ls-files", "--", file)
    commit = git("rev-parse", "--short=9", "HEAD") if is_committed else None
    predicted = stored.get("predicted")
    if predicted is None or (predicted["commit"] is None and stored["verdict"] == "open"):
        predicted = {"hash": spec.hash, "commit": commit, "before_runs": False}
    changed_after = predicted["hash"] != spec.hash
    opened = {**_texts(spec), "verdict": "open", "checks": [], "missing": [], **stored}
    return opened | {"predicted": predicted, "changed_after": changed_after}


def _texts(spec: Spec) -> Record:
    texts = {key: getattr(spec, key) for key in ("name", "question", "source", "refuted_by")}
    texts |= {key: getattr(spec.experiment, key) for key in ("prediction", "changed", "setting")}
    return texts | {"probes": {name: PROBES[name].version for name in spec.probes}}


def record(spec: Spec, verdict: Verdict, listed: Listed, stored: Mapping[str, Any]) -> Record:
    """Return a verdict as plain data: its checks, its prediction's hash, and the origin of its runs."""
    registered = register(spec, stored)
    if listed.fresh:
        before_runs = is_before(registered["predicted"]["commit"], listed.origin["commits"])
        registered["predicted"] = registered["predicted"] | {"before_runs": before_runs}
    checks = [check_record(check) for check in verdict.evidence.checks]
    for check in checks:  # a share or a correlation uses all seeds
        check["seeds"] = check["seeds"] or listed.origin["seeds"]
    found = {"verdict": verdict.status, "checks": checks, "missing": verdict.evidence.missing}
    return finite({**registered, **listed.origin, **_texts(spec), **found})


def is_before(commit: str | None, others: Sequence[str]) -> bool:
    """Return whether a commit is an ancestor of each of the others."""
    found = (git("merge-base", "--is-ancestor", commit, other) for other in others) if commit else [None]
    return all(each is not None for each in found)
