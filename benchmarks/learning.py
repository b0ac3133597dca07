"""Measure accuracy and wall time of short training runs, per seed: benchmarks/learning.md.

    python -m benchmarks.learning            every experiment below, about half an hour on two cores
    python -m benchmarks.learning mqar       the experiments of one table

Each run is one `train.py` process, timed as a whole: imports, data, training, evaluation. The table is rewritten after
every run. Runs that are in `benchmarks/learning.json` are skipped unless you give `--again`.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import describe_machine
from benchmarks.timing import trained
from zoo.report.files import as_json, write_atomically
from zoo.report.markdown import table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "learning.json"
TABLE = ROOT / "benchmarks" / "learning.md"


@dataclass(frozen=True)
class Experiment:
    """One command, run for several seeds; `expected` is the required result in words."""

    task: str
    title: str
    flags: str
    seeds: int
    expected: str
    metric: str = "accuracy"


SHORT = "--mixer.dt_min 0.1 --mixer.dt_max 0.5"
EXPERIMENTS = [
    Experiment("mqar", "hybrid", "--mixer hybrid", 5, "≥ .99 in 100 s"),
    Experiment("mqar", "attention, 4 heads", "--mixer attention --mixer.n_heads 4", 5, "≥ .99 in 100 s"),
    Experiment("mqar", "diagonal SSM", "--mixer diagonal_ssm", 5, "< .35 in this budget"),
    Experiment("needle", "attention", "--mixer attention", 3, "≥ .99 in 40 s"),
    Experiment("needle", "hybrid", "--mixer hybrid", 3, "≥ .99 in 40 s"),
    Experiment("needle", "diagonal SSM, dt .1 to .5", f"--mixer diagonal_ssm {SHORT}", 3, "chance"),
    Experiment("needle", "the same, short conv", f"--mixer diagonal_ssm {SHORT} --d_conv 4", 3, "chance"),
    *(
        Experiment(
            "ssm_teacher",
            f"factorized, {n} head{'s' * (n > 1)}",
            f"--mixer factorized --mixer.n_heads {n} --backbone bare",
            3,
            "< 1e-6" if n == 4 else "within 3 % of the bound",
            "relative_squared_error",
        )
        for n in (1, 2, 3, 4)
    ),
]


def run(experiment: Experiment, seed: int) -> dict[str, Any]:
    """Run one process; return its test score, chance, wall time in seconds, and the machine."""
    flags = (*experiment.flags.split(), "--seed", str(seed), "--threads", str(os.cpu_count()))
    metrics, seconds = trained("--task", experiment.task, *flags)
    return {
        experiment.metric: metrics["test"][experiment.metric],
        "chance": metrics.get("chance"),
        "wall_seconds": seconds,
        "measured": describe_machine(),
    }


def machines(results: dict[str, dict[str, Any]]) -> str:
    """Return where and when the results were measured."""
    return "; ".join(sorted({run["measured"] for run in results.values()}))


def bounds() -> dict[int, float]:
    """Return the exact relative squared error of the best n heads for the task's teacher."""
    import torch

    from tasks.generators.memory.ssm_teacher import SSMTeacher
    from zoo.theory import head_count_bound

    lags = torch.as_tensor(SSMTeacher().lags, dtype=torch.float64)
    return {n: head_count_bound(lags, n) for n in (1, 2, 3, 4)}


def render(results: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = ["# What is learned in a small budget", ""]
    lines += [f"Made by `python -m benchmarks.learning` on {machines(results)}."]
    lines += ["Wall time is for the whole process: imports, data, training, evaluation.", ""]
    for task in dict.fromkeys(e.task for e in EXPERIMENTS):
        rows = [e for e in EXPERIMENTS if e.task == task and f"{e.task} {e.flags} 0" in results]
        if not rows:
            continue
        error = rows[0].metric != "accuracy"
        lines += [f"## {task}", ""]
        if error:
            each = ", ".join(f"{n} heads {bound:.5f}" for n, bound in bounds().items())
            lines += [f"The bound is the exact error of the best heads (weighted Eckart–Young): {each}.", ""]
        cells_of = []
        for e in rows:
            found = {seed: run for seed in range(e.seeds) if (run := results.get(f"{e.task} {e.flags} {seed}"))}
            shown = ".3g" if error else ".4f"
            cells = [f"{s}: {run[e.metric]:{shown}}, {run['wall_seconds']:.0f}" for s, run in found.items()]
            chance = f" (chance {found[0]['chance']:.3f})" if e.expected == "chance" else ""
            cells_of.append((f"{e.title}: `--task {e.task} {e.flags}`", " · ".join(cells), f"{e.expected}{chance}"))
        headings = ("command", f"seed: {'relative squared error' if error else 'accuracy'}, s", "must be")
        lines += [*table(headings, cells_of), ""]
    return "\n".join(lines)


def main() -> None:
    """Run the missing experiments, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=sorted({e.task for e in EXPERIMENTS}), help="only this table")
    parser.add_argument("--again", action="store_true", help="repeat finished runs")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    wanted = [(e, s) for e in EXPERIMENTS for s in range(e.seeds) if options.task in (None, e.task)]
    for number, (experiment, seed) in enumerate(wanted, start=1):
        key = f"{experiment.task} {experiment.flags} {seed}"
        if key in results and not options.again:
            continue
        results[key] = run(experiment, seed)
        value, seconds = results[key][experiment.metric], results[key]["wall_seconds"]
        print(f"[{number}/{len(wanted)}] {key}: {value:.4g}, {seconds:.0f} s", flush=True)
        write_atomically(RESULTS, as_json(dict(sorted(results.items()))))
        write_atomically(TABLE, render(results))
    write_atomically(TABLE, render(results))


if __name__ == "__main__":
    main()
