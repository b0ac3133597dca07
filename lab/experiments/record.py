"""Records of verdicts in docs/results.json: checks, the hash of the prediction, and the origin of the runs."""

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

Record = dict[str, Any]
ORIGIN = ("seeds", "machine", "dates", "commits", "command", "seconds", "trial_seconds", "saved")


class NoRunsError(UsageError):
    """An experiment has neither runs nor a list of them."""


@dataclass(frozen=True)
class Listed:
    """The runs of an experiment, just read from a sweep's folder or kept from an earlier time.

    Attributes:
        text: list of runs, a line each; empty if it was not kept.
        origin: seeds, machine, dates, commits, command, seconds, share of the steps saved by stopping early.
        missing: folders of planned runs that are not done.
        fresh: whether the runs are from a sweep's folder.
    """

    text: str
    origin: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    fresh: bool = False


def read_listed(spec: Spec, run_dir: Path, kept: Path, stored: Mapping[str, Any]) -> Listed:
    """Read the runs that `sweep.py` left in `run_dir`; without these the list that was kept, and its origin.

    Raises:
        NoRunsError: there are no runs and no list of this setting.
        UsageError: a file that cannot be read.
    """
    setting = str(spec.experiment.setting)
    folder = (run_dir.expanduser() / spec.name / setting).resolve()
    if (folder / INDEX).is_file():
        return _read_sweep(spec, folder)
    if stored.get("setting") == setting and stored.get("checks"):
        text = kept.read_text(encoding="utf-8") if kept.is_file() else ""
        return Listed(text, {key: stored[key] for key in ORIGIN if key in stored})
    command = f"python sweep.py configs/experiment/{spec.name}.yaml --setting {setting}"
    command += "" if run_dir == Path("runs") else f" --run_dir {shlex.quote(str(run_dir))}"
    raise NoRunsError(f"no runs of {spec.name} in {folder}: make them with {command}")


def _read_sweep(spec: Spec, folder: Path) -> Listed:
    index = _read(folder / INDEX)
    entries = [entry for entry in index["runs"] if entry["kind"] == "run"]
    stages = [stage for entry in index["runs"] for stage in read_rungs(folder / entry["folder"])]
    done = {(folder / entry["folder"]).resolve() for entry in entries if entry["state"] == "done"}
    # A folder may hold runs of a grid that has changed since: the index says which ones count.
    runs = [run for run in read_runs(folder) if run.folder in done] if done else []
    environments = [_read(run.folder / ENVIRONMENT) for run in runs]
    marks = [_read(run.folder / DONE) for run in runs]
    columns = {run.folder: found for run, found in zip(runs, measure(spec.probes, runs), strict=True)}
    origin = {
        "seeds": sorted({run.seed for run in runs}),
        "machine": "; ".join(dict.fromkeys(map(machine_of, environments))),
        "dates": sorted({mark["finished"][:10] for mark in marks}),
        "commits": sorted({str(environment["git"])[:9] for environment in environments}),
        # With the flags that were laid over the file, but not where the runs lay.
        "command": re.sub(r" --run_dir[ =]('[^']*'|\S+)", "", f"python {index['command']}"),
        "seconds": sum((mark["seconds"] for mark in marks), 0.0),
        "trial_seconds": sum((stage.get("seconds") or 0.0 for stage in stages), 0.0),
        "saved": _saved(runs),
    }
    missing = tuple(str(entry["folder"]) for entry in entries if entry["state"] != "done")
    # Conditions of checks and of a paper's cells hold while the runs do not differ in them yet.
    cells = [each for table in spec.published for each in (table.get("where", {}), *table["cells"].values())]
    named = {key for cell in cells for key in cell if key.startswith(("mixer.", "task."))}
    flags = {f"{key}.name" if key in ("mixer", "task") else key for grid in spec.experiment.grids for key in grid}
    named |= flags - {"seed"} if missing else flags & {key for run in runs for key in run.options}
    return Listed(runs_as_csv(group_runs(runs), columns, named) if runs else "", origin, missing, fresh=True)


def _saved(runs: Sequence[Run]) -> float:
    """Return the share of all planned steps that was not trained because a callback stopped the run."""
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
    """Return the records that earlier commands kept; none without the file.

    Raises:
        UsageError: the file is not JSON.
    """
    return _read(file) if file.is_file() else {}


def register(spec: Spec, stored: Mapping[str, Any]) -> Record:
    """Return the record of a prediction before its runs: what is frozen, by its hash, and the commit that has it.

    Until there are runs, a prediction whose file was not committed yet is registered anew.
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
    for check in checks:  # a share or a correlation is over all seeds
        check["seeds"] = check["seeds"] or listed.origin["seeds"]
    found = {"verdict": verdict.status, "checks": checks, "missing": verdict.evidence.missing}
    return finite({**registered, **listed.origin, **_texts(spec), **found})


def is_before(commit: str | None, others: Sequence[str]) -> bool:
    """Tell whether a commit is an ancestor of each of the others."""
    found = (git("merge-base", "--is-ancestor", commit, other) for other in others) if commit else [None]
    return all(each is not None for each in found)
