"""Judge the experiments of configs/experiment/: `python -m lab experiments --setting small`; `--help` says more.

`sweep.py` makes the runs. This reads them, judges each experiment by what `lab.experiments.predictions` expects, and
keeps the verdicts in docs/results.json, from which docs/results.md is written, with a figure and a CSV file of the runs
for each.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from lab.experiments.predictions import PREDICTIONS
from lab.experiments.vocabulary import LONGER, Prediction, Runs
from lab.run.environment import git, machine_of
from lab.run.files import DONE, ENVIRONMENT, INDEX
from lab.run.record import Run, read_rungs
from lab.sweep.grid import read_experiment, values_of
from lab.view.runs import read_runs
from lab.view.table import Group, cells_of, group_runs, runs_as_csv
from zoo.errors import UsageError
from zoo.evidence import Check, Evidence, Verdict
from zoo.report.files import as_json, read_json, write_all
from zoo.report.markdown import table
from zoo.report.numbers import NOTHING, duration
from zoo.report.terminal import fail, make_console
from zoo.theory.claims.claim import Claim

ROOT = Path(__file__).resolve().parents[2]
NOT_HERE = """\
## What is not here

For want of machine time: words of all elements of A4 and A5 in the small settings (`rotations` has them in its full
one; two reflections per token did not learn them within 1,600 steps, one seed of each, where words of two generators
are learned, `generators`); functional heads in the course of training, of every layer of a stack, and on further tasks
(`zoo heads` and TensorBoard measure them of any run). Pairs of attention layers were not placed on k_hop, where places
of one differ no more than seeds do (`placement_of_two`, one hop). `placement_probes` asks its three probes for one
place, on recall only: on the needle, where places differ by more than seeds in loss, each has accuracy 1, and any is as
good. A number before training that sees what a norm of the output does for Mamba-1 was looked for on untrained models,
and not found; `starts_of_mamba` does not show that the norm is needed. One record is of one rate for all, that of
`head_count`, which ends at a bound that is known; the others tune over a decade and a half, on the first seed and by
score, and steps to 90 % are those at that rate. Four times the training is of one seed in `gradient_highway`,
`hybrid_ratio`, `trainability`, `copying` and `recall_capacity`, and was not tried on what does not recall in
`placement_of_two` with two layers of attention (of one layer it was, besides the records: docs/findings.md), nor on
sixteen pairs in `recall_capacity`. The full settings have never been run: they are for a GPU, at most 800,000 steps of
training each, the trials of rates among them, where some trial is dropped at each rung; in 30 minutes that is 445 steps
per second, of several runs at a time together, which is not measured.
""".splitlines()
FURTHER = " These are further runs of the same setting: the verdict is of those named above, of which no list was kept."
EXPERIMENTS = ROOT / "configs" / "experiment"
PAGE, STORED, FIGURES, LISTS = "results.md", "results.json", "figures", "results"

HELP = """\
The runs come first; both commands go on where they stopped:

  python sweep.py configs/experiment/*.yaml --setting small && python -m lab experiments --setting small

Exit status: 0 when all that was predicted holds, 1 when something fails, 3 when nothing fails and something is
undecided, 2 for a command that is not valid.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; see HELP for the exit status."""
    parser = argparse.ArgumentParser(
        "python -m lab experiments",
        description="Judge experiments by their runs; write docs/results.md.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"{', '.join(PREDICTIONS)}; default all")
    add("--setting", default="small", help="of the experiments' files (small)")
    add("--run_dir", type=Path, default=Path("runs"), metavar="DIR", help="where sweep.py kept the runs (runs)")
    add("--out", type=Path, default=ROOT / "docs", metavar="DIR", help="where the page goes (docs)")
    add("--tables", action="store_true", help="keep the verdicts; take scores, rates and windows from these runs")
    arguments = parser.parse_args(argv)
    names = list(dict.fromkeys(arguments.names)) or list(PREDICTIONS)
    from zoo.evidence import exit_status
    from zoo.evidence.page import verdict_table

    try:
        for name in names:
            PREDICTIONS.check(name)
        sweeps = [SweptRuns(name, arguments.setting, arguments.run_dir) for name in names]
        stored = read_stored(arguments.out / STORED)
        if arguments.tables:
            verdicts = {}
            records = {sweep.name: _kept(stored, sweep) | {"tables": tables_of(sweep)} for sweep in sweeps}
        else:
            verdicts = {sweep.name: judge(sweep) for sweep in sweeps}
            records = {sweep.name: record(verdicts[sweep.name], sweep) for sweep in sweeps}
        judged = [sweep for sweep in sweeps if sweep.runs and _are_judged(records[sweep.name])]
        lists = {_list(sweep.name): runs_as_csv(sweep.groups) for sweep in judged}
        files = write_results(verdicts, stored | records, arguments.out, lists)
    except (ValueError, ImportError, OSError) as error:
        return fail("lab experiments", error, 2)
    if verdicts:
        make_console().print(verdict_table(verdicts.values()))
    for file in files:
        print(file)
    return exit_status(verdicts.values())


class SweptRuns:
    """The results of sweep.py for one experiment in one setting.

    Attributes:
        experiment: what its file says.
        command: the command that made the runs.
        missing: folders of planned runs that are not done.
        runs: the finished ones.
        environments: environment.json of each.
        machine: what that says, in one phrase; several where runs were made on several.
        seeds: of the finished ones, ascending.
        commits: of the code that made them, ascending.
        dates: days on which runs finished, ascending.
        seconds: total duration of the runs.
        trial_seconds: of the trials of learning rates besides, the picked ones' until they were.

    Raises:
        UsageError: no such setting, no runs, or files among them that cannot be read.
    """

    def __init__(self, name: str, setting: str, run_dir: Path) -> None:
        self.name, self.setting = name, setting
        self.experiment = read_experiment(EXPERIMENTS / f"{name}.yaml", setting)
        folder = (run_dir.expanduser() / name / setting).resolve()
        if not (folder / INDEX).is_file():
            command = f"python sweep.py configs/experiment/{name}.yaml --setting {setting}"
            command += "" if run_dir == Path("runs") else f" --run_dir {shlex.quote(str(run_dir))}"
            raise UsageError(f"no runs of {name} in {folder}: make them with {command}")
        index = _read_json(folder / INDEX)
        # As it was given: what its flags laid over the file belongs to the result.
        self.command = f"python {index['command']}"
        entries = [entry for entry in index["runs"] if entry["kind"] == "run"]
        stages = [stage for entry in index["runs"] for stage in read_rungs(folder / entry["folder"]).values()]
        self.trial_seconds = sum(stage.get("seconds") or 0.0 for stage in stages)
        done = {(folder / entry["folder"]).resolve() for entry in entries if entry["state"] == "done"}
        self.missing = tuple(str(entry["folder"]) for entry in entries if entry["state"] != "done")
        # A folder may hold runs of a grid that has changed since: the index says which ones count.
        self.runs: list[Run] = [run for run in read_runs(folder) if run.folder in done] if done else []
        self.environments = [_read_json(run.folder / ENVIRONMENT) for run in self.runs]
        self.seeds = sorted({run.seed for run in self.runs})
        self.machine = "; ".join(dict.fromkeys(map(machine_of, self.environments)))
        self.commits = sorted({str(environment["git"])[:9] for environment in self.environments})
        marks = [_read_json(run.folder / DONE) for run in self.runs]
        self.dates = sorted({mark["finished"][:10] for mark in marks})
        self.seconds = sum(mark["seconds"] for mark in marks)

    @cached_property
    def groups(self) -> list[Group]:
        """The finished runs by task and configuration."""
        return group_runs(self.runs) if self.runs else []


def _read_json(file: Path) -> Any:
    try:
        return read_json(file)
    except ValueError as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def judge(sweep: SweptRuns) -> Verdict:
    """Return the verdict on an experiment; nothing is decided while runs are missing."""
    expected = PREDICTIONS[sweep.name]
    evidence = replace(_evidence(expected, sweep), missing=sweep.missing)
    prediction = sweep.experiment.prediction
    claim = Claim(sweep.name, prediction, expected.source, expected.refuted_by, lambda _: evidence)
    return Verdict(claim, evidence, claim.judge(evidence), sweep.seconds)


def _evidence(expected: Prediction, sweep: SweptRuns) -> Evidence:
    """Return what the runs say; a judge may look for cells that are missing while a sweep is not at its end."""
    reason = "no run is done"
    if sweep.runs:
        try:
            return expected.judge(Runs(tuple(sweep.runs)))
        except (LookupError, ValueError, ArithmeticError):
            if not sweep.missing:
                raise
            reason = "a cell has no run yet"
    return Evidence((Check("anything", math.nan, reason=reason),))


def record(verdict: Verdict, sweep: SweptRuns) -> dict[str, Any]:
    """Return a verdict as plain data, as `zoo claims` writes it, and where it comes from."""
    from zoo.evidence.page import verdict_record

    predicted = prediction_commit(sweep.name, sweep.setting)
    is_before = predicted is not None and all(
        git("merge-base", "--is-ancestor", predicted, commit) is not None for commit in sweep.commits
    )
    found = verdict_record(verdict)
    for check in found["checks"]:
        check["seeds"] = check["seeds"] or sweep.seeds  # a share, a correlation or a ratio of variances is of all runs
    return found | {
        "setting": sweep.setting,
        "changed": sweep.experiment.changed,
        "command": sweep.command,
        "seeds": sweep.seeds,
        "machine": sweep.machine,
        "dates": sweep.dates,
        "prediction_commit": predicted,
        "predicted_before_runs": is_before,
        "commits": sweep.commits,
        "tables": tables_of(sweep),
    }


def tables_of(sweep: SweptRuns) -> dict[str, Any]:
    """Return scores, sizes, rates and windows by configuration as plain data, a table for each task."""
    return {
        "groups": [{"title": group.title, "cells": cells_of(group)} for group in sweep.groups],
        "seeds": sweep.seeds,
        "machine": sweep.machine,
        "trial_seconds": sweep.trial_seconds,
        "dates": sweep.dates,
        "commits": sweep.commits,
    }


def _kept(stored: Mapping[str, Any], sweep: SweptRuns) -> dict[str, Any]:
    """Return the record that tables are added to, which must be of the same setting as their runs."""
    kept = stored.get(sweep.name)
    if kept is None:
        raise UsageError(f"no verdict on {sweep.name} is kept to add tables to: judge it first, without --tables")
    if kept["setting"] != sweep.setting:
        raise UsageError(f"the verdict on {sweep.name} is of setting {kept['setting']}, its runs of {sweep.setting}")
    return kept


def prediction_commit(name: str, setting: str) -> str | None:
    """Return the commit since which a setting of an experiment and its checks say the same; None where none does.

    What the file says was changed after results had been seen is no part of the prediction, nor are comments, other
    settings, nor seeds that were added.
    """
    files = [f"configs/experiment/{name}.yaml", f"lab/experiments/predictions/{name}.py"]
    now = _predicted(((ROOT / file).read_text(encoding="utf-8") for file in files), setting)
    since = None
    for commit in (git("log", "--format=%h", "--abbrev=9", "--", *(str(ROOT / file) for file in files)) or "").split():
        if not _says(now, _predicted((git("show", f"{commit}:{file}") for file in files), setting)):
            break
        since = commit
    return since


def _predicted(texts: Iterable[str | None], setting: str) -> dict[str, Any]:
    """Return what an experiment's file in a setting and its checks predict; either may be missing."""
    file, checks = texts
    values = {key: value for key, value in (yaml.safe_load(file or "") or {}).items() if key != "changed"}
    if "settings" in values:
        values["settings"] = values["settings"].get(setting)
    return {"file": values, "checks": (checks or "").strip()}


def _says(now: Any, before: Any) -> bool:
    """Tell whether plain data is what it was before, but for seeds that were added."""
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        return now.keys() == before.keys() and all(
            set(values_of("", key, before[key])) <= set(values_of("", key, value))
            if key == "seed"
            else _says(value, before[key])
            for key, value in now.items()
        )
    if isinstance(now, list) and isinstance(before, list):
        return len(now) == len(before) and all(map(_says, now, before))
    return now == before


def read_stored(file: Path) -> Any:
    """Return what earlier commands kept in a file, such as the verdicts by name; nothing where there is no file.

    Raises:
        UsageError: the file is not JSON.
    """
    return _read_json(file) if file.is_file() else {}


def write_results(
    verdicts: Mapping[str, Verdict], stored: Mapping[str, Mapping[str, Any]], out: Path, lists: Mapping[str, str]
) -> list[Path]:
    """Write all that is kept, the page made of it, the figures of the new verdicts and lists of runs, by their paths.

    Returns:
        The files.
    """
    from zoo.evidence.page import panels_figure
    from zoo.report.plots import as_png

    ordered = {name: stored[name] for name in PREDICTIONS if name in stored}
    shown = {name: verdict.evidence.panels for name, verdict in verdicts.items() if verdict.evidence.panels}
    figures = {
        _figure(name): as_png(panels_figure(panels, n_rows=2 if len(panels) % 2 == 0 and len(panels) > 2 else 1))
        for name, panels in shown.items()
    }
    return write_all(out, {PAGE: page(ordered), STORED: as_json(ordered)} | figures | dict(lists))


def _figure(name: str) -> str:
    return f"{FIGURES}/results_{name}.png"


def _list(name: str) -> str:
    return f"{LISTS}/{name}.csv"


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/results.md: what holds, fails and is undecided, then each experiment with its checks, figure and origin."""
    from zoo.evidence.page import RULE, section

    lines = [
        "# What training shows of the theory",
        "",
        "Each of these experiments (`configs/experiment`) was predicted, in words and in numbers, before its runs were",
        "made, but where its section says that it was after the runs, or what was changed after results had been seen:",
        "that much is exploratory. The commit of a prediction is that of its file and of its checks; limits that",
        "experiments share (`lab/experiments/vocabulary.py`) are not part of it. The verdict follows only from the",
        "checks. What did not come out as predicted is listed like the rest.",
        "",
        RULE,
        "That something is not learned counts only if the same mixer learns an easier task, the control, in the same",
        f"budget, and if {LONGER} times the training was tried as well.",
        "The files in [results](results) have a line per run; there is none where a section's tables are of further",
        "runs, as it says. A best or a worst of several is picked on the runs that are judged. Where seeds were added",
        "because something was undecided, as its section says, intervals are somewhat narrow: of three looks, at five,",
        "ten and twenty seeds, one or another misses the median in 10 %, by simulation; of two looks, in less. Times",
        "are sums over runs, most of which shared the cores with others.",
        "",
    ]
    verdicts = ("holds", "fails", "undecided")
    for verdict in verdicts:
        names = [f"[{name}](#{name})" for name, each in records.items() if each["verdict"] == verdict]
        lines += [f"- {verdict}: {_listed(names) or 'none'}"]
    lines += ["", "These commands make the runs with the seeds of the files, and this page:", "", "```sh"]
    for setting in dict.fromkeys(each["setting"] for each in records.values()):
        lines.append(f"python sweep.py configs/experiment/*.yaml --setting {setting} && \\")
        lines.append(f"python -m lab experiments --setting {setting}")
    rows = []
    for name, each in records.items():
        found = [check["verdict"] for check in each["checks"]]
        cells = [f"[{name}](#{name})", each["verdict"], *(str(found.count(verdict)) for verdict in verdicts)]
        trials = each["tables"]["trial_seconds"] if "tables" in each else None
        took = [duration(each["seconds"]), duration(trials) if trials else NOTHING]
        rows.append([*cells, each["setting"], _listed(each["seeds"]), *took])
    checks = ("checks that hold", "fail", "are undecided")
    times = ("all runs, one by one", "trials of rates")
    headings = ("experiment", "verdict", *checks, "setting", "seeds", *times)
    lines += ["```", "", *table(headings, rows, "llrrrllrr"), ""]
    for name, each in records.items():
        lines += section(each, [_figure(name)])
        dates = " to ".join(dict.fromkeys((each["dates"][0], each["dates"][-1]))) if each["dates"] else "never"
        but = "; what was changed is exploratory" if each["changed"] else ""
        order = f"before the runs{but}" if each["predicted_before_runs"] else "after the runs: exploratory"
        predicted = f"prediction of commit {each['prediction_commit']}, {order}"
        if each["prediction_commit"] is None:
            predicted = "prediction not committed: exploratory"
        origin = f"Seeds {_listed(each['seeds'])}; {dates}; {each['machine']}; {predicted}; runs of commit "
        lines += [f"Changed after results had been seen: {each['changed']}", ""] if each["changed"] else []
        lines += [f"{origin}{_listed(each['commits'])}: `{each['command']}`", ""]
        lines += _folded(each)
    return "\n".join([*lines, *NOT_HERE])


def _folded(record: Mapping[str, Any]) -> list[str]:
    """Return the runs of an experiment by configuration, a table for each task, which a click unfolds."""
    tables = record.get("tables")
    if not tables or not tables["groups"]:
        return []
    which = f"seeds {_listed(tables['seeds'])}; {_listed(tables['dates'])}; commit {_listed(tables['commits'])}"
    means = ", mean ± standard deviation" if len(tables["seeds"]) > 1 else ""
    measured = f"Measured on {tables['machine']}; speeds are those beside other runs."
    listed = _list(record["name"])
    measured += f" Run by run: [{listed}]({listed})." if _are_judged(record) else FURTHER
    lines = [f"<details><summary>Scores, rates and windows ({which}){means}</summary>", "", measured, ""]
    for each in tables["groups"]:
        lines += [f"**{each['title']}**", "", *table(*each["cells"]), ""]
    return [*lines, "</details>", ""]


def _are_judged(record: Mapping[str, Any]) -> bool:
    """Tell whether a record's tables are of the runs that its verdict is of."""
    tables = record["tables"]
    return (tables["seeds"], tables["commits"]) == (record["seeds"], record["commits"])


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
