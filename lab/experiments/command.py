"""Commands: `python -m lab experiments` judges experiments by their runs, `python -m lab pages` renders the pages."""

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
The runs come first; both commands resume where they stopped:

  python sweep.py configs/experiment/*.yaml --setting small && python -m lab experiments --setting small

An experiment is one file of configs/experiment; docs/experiments.md describes its checks and plots. Without runs in
--run_dir the committed lists in docs/results are judged. Without names, all experiments that have either are judged.
`--predict` registers a prediction before its runs: the hash of its checks and grid, and the commit that has them. A
check that could not decide at its number of seeds is refused.

Exit status: 0 when all that was predicted holds, 1 when something fails, 3 when nothing fails and something is
undecided or has no runs, 2 for a command that is not valid.

experiments:
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; see HELP for the exit status."""
    questions = list_specs()
    parser = argparse.ArgumentParser(
        "python -m lab experiments",
        description="Judge experiments by their runs; write docs/results.md.",
        epilog="\n".join([HELP.rstrip(), *listing(questions)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments; default all")
    add("--setting", default="small", help="setting in the experiments' files (small)")
    add("--run_dir", type=Path, default=Path("runs"), metavar="DIR", help="where sweep.py kept the runs (runs)")
    add("--out", type=Path, default=ROOT / "docs", metavar="DIR", help="where the page goes (docs)")
    add("--predict", action="store_true", help="register predictions before their runs, and judge nothing")
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
                print(f"{not_yet}; commit it and give --predict again before they start", file=sys.stderr)
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
        raise NoRunsError(f"no runs of any experiment in {arguments.run_dir}: make them as `--help` shows")
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
    """Render the pages that have numbers from records; return 0.

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
