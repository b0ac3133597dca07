"""Commands: `python -m lab experiments` judges experiments from their runs, `python -m lab pages` renders the pages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.experiments.judge import judge
from lab.experiments.page import Pages, figure, pages
from lab.experiments.papers import papers_page
from lab.experiments.power import check_power
from lab.experiments.record import NoRunsError, Record, read_listed, read_records, record, register
from lab.experiments.rows import read_rows
from lab.experiments.spec import ROOT, list_specs, read_spec
from zoo.evidence import Prediction, Verdict, exit_status
from zoo.report.files import as_json, write_all
from zoo.report.terminal import listing, make_console

PAGE, STORED = "results.md", "results.json"
HELP = """\
Make the runs first; both commands resume where they stopped:

  python sweep.py configs/experiment/*.yaml --setting small && python -m lab experiments --setting small

An experiment is one file of configs/experiment; docs/experiments.md describes its checks and plots. Without runs in
--run_dir, the command judges the committed lists of runs in docs/results. Without names, it judges all experiments
that have runs or a list. `--predict` registers a prediction before its runs: the hash of its checks and grid, and
their commit. It rejects a check with too little power at its number of seeds.

Exit status: 0 all predictions hold; 1 one fails; 3 none fails, but one is undecided or has no runs; 2 invalid command
line.

experiments:
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status; see HELP."""
    questions = list_specs()
    parser = argparse.ArgumentParser(
        "python -m lab experiments",
        description="Judge experiments from their runs; write docs/results.md.",
        epilog="\n".join([HELP.rstrip(), *listing(questions)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments; default all")
    add("--setting", default="small", help="setting in the experiments' files (small)")
    add("--run_dir", type=Path, default=Path("runs"), metavar="DIR", help="folder of sweep.py's runs (runs)")
    add("--out", type=Path, default=ROOT / "docs", metavar="DIR", help="folder of the page (docs)")
    add("--predict", action="store_true", help="register predictions before their runs, without judging")
    arguments = parser.parse_args(argv)
    from zoo.evidence.page import verdict_table

    names = list(dict.fromkeys(arguments.names)) or list(questions)
    verdicts: list[Verdict] = []
    files: dict[str, str | bytes] = {}
    not_run: list[str] = []
    specs = [read_spec(name, arguments.setting) for name in names]
    records: dict[str, Record] = read_records(arguments.out / STORED)
    for spec in specs:
        stored, kept = records.get(spec.name, {}), f"results/{spec.name}.csv"
        if arguments.predict:
            if "predicted" not in stored:
                check_power(spec)
            records[spec.name] = register(spec, stored)
            if records[spec.name]["predicted"]["commit"] is None:
                not_yet = f"{spec.name}.yaml is not committed: its runs would be exploratory"
                print(f"{not_yet}; commit it and repeat --predict before they start", file=sys.stderr)
            continue
        try:
            listed = read_listed(spec, arguments.run_dir, arguments.out / kept, stored)
        except NoRunsError:
            if arguments.names:
                raise
            not_run.append(spec.name)
            continue
        rows = read_rows(listed.text, spec.experiment.fixed) if listed.text else []
        recorded = {} if listed.fresh else {check["quantity"]: check for check in stored["checks"]}
        evidence = replace(judge(spec, rows, recorded), missing=listed.missing)
        claim = Prediction(spec.name, spec.experiment.prediction, spec.source, spec.refuted_by)
        verdicts.append(Verdict(claim, evidence, claim.judge(evidence), listed.origin["seconds"]))
        records[spec.name] = record(spec, verdicts[-1], listed, stored)
        if listed.fresh and rows:
            files[kept] = listed.text
        if drawn := figure(spec, rows):
            files[f"figures/results_{spec.name}.png"] = drawn
    if not_run == names:
        raise NoRunsError(f"no runs of any experiment in {arguments.run_dir}: `--help` shows how to make them")
    ordered = {name: records[name] for name in questions if name in records}
    files = {PAGE: Pages(ordered).render(f"{PAGE}.j2"), STORED: as_json(ordered)} | files
    written = write_all(arguments.out, files)
    if verdicts:
        make_console().print(verdict_table(verdicts))
    print(*written, sep="\n")
    if not_run:
        print(f"no runs yet: {', '.join(not_run)}")
    return exit_status(verdicts) or (3 if not_run else 0)


def render(argv: Sequence[str] | None = None) -> int:
    """Render the pages whose numbers come from records; return 0.

    Raises:
        ValueError: a placeholder without a record.
    """
    parser = argparse.ArgumentParser(
        "python -m lab pages",
        description="Render README.md's findings and docs/{findings,results,choosing,papers}.md from their records.",
    )
    parser.parse_args(argv)
    docs = ROOT / "docs"
    files = pages(read_records(docs / STORED))
    files["docs/papers.md"] = papers_page(read_records(docs / "papers.json"))
    written = write_all(ROOT, files)
    print(*written, sep="\n")
    return 0
