"""Start many runs of train.py: `python sweep.py --mixer attention,lstm --mixer.n_heads 1,2 --seed 0-4`; see `--help`.

The grid is checked and printed before anything starts. Each run is a separate process (`lab.sweep.engine`): if one
fails, the others continue. The same command resumes the runs that are not done. The sweep's folder
`<run_dir>/<name>[/<setting>]/` holds the run folders of train.py and their index `sweep.json`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.build import build_task, trivial_guess
from lab.run.files import DONE, ENVIRONMENT, INDEX, METRICS
from lab.run.metrics import Metrics, number_at
from lab.run.record import LEAK, read_fields, read_rungs
from lab.run.score import score_of, score_text, window_text
from lab.sweep.board import Board
from lab.sweep.command import HELP, PROGRAM, Request
from lab.sweep.engine import NOT_STARTED, Job, Outcome, Stop, check_cluster, run_local, run_ray, slot_environments
from lab.sweep.experiment import Experiment
from lab.sweep.grid import Configuration, Grid, GridPoint, arguments, expand, label
from lab.sweep.summary import show_grid, show_summary
from lab.sweep.tuning import (
    END,
    MOST_BEYOND,
    RATE,
    averaged,
    beats_guessing,
    beyond,
    promoted,
    usual_rungs,
    window,
)
from zoo.errors import UsageError
from zoo.extras import require_extra
from zoo.report.files import as_json, write_atomically
from zoo.report.numbers import count, plain
from zoo.report.terminal import ends_unread, fail, make_console, say
from zoo.signals import CTRL_C, SCHEDULER, handled
from zoo.targets import expanded


@ends_unread
def main(argv: Sequence[str]) -> int:
    """Run a command line and return the exit status; see HELP."""
    try:
        request = Request.read(argv)
        if request is None:
            print(HELP, end="")
            return 0
        if request.engine == "ray":
            require_extra("ray", "ray")
        planned = [Sweep.plan(experiment, request) for experiment in request.experiments()]
        if request.engine == "ray" and request.address and not request.dry_run:
            check_cluster(request.address, any(sweep.use_gpus for sweep in planned), request.per_device)
    except (UsageError, ImportError) as error:
        return fail(PROGRAM, error, 2)
    for sweep in planned:
        show_grid(sweep)
    if request.dry_run:
        return 0
    status = 0
    stop = Stop()
    # The first signal, Ctrl-C or a scheduler's, makes the runs save and stop; a second one kills them.
    with handled((CTRL_C, *SCHEDULER), lambda *_: stop.ask()):
        for sweep in planned:
            try:
                sweep.run(stop)
            except (UsageError, OSError) as error:
                return fail(PROGRAM, error, 2)
            show_summary(sweep)
            status = max(status, 1 if sweep.failed or sweep.unpicked else 0)
            if stop.soft.is_set():
                rest = [each for each in argv if each != "--overwrite"]
                print(f"{PROGRAM}: stopped; to resume: {shlex.join(['python', 'sweep.py', *rest])}", file=sys.stderr)
                return 130
    return status


@dataclass
class Sweep:
    """The execution of one experiment.

    Attributes:
        experiment: the flags with their values.
        request: the command line.
        folder: folder of the runs and their index.
        grid: the runs, with --tune also the trials.
        varying: options that differ between configurations, which tables show.
        outcomes: outcomes of ended jobs, by run folder.
    """

    experiment: Experiment
    request: Request
    folder: Path
    grid: Grid
    varying: list[str]
    outcomes: dict[Path, Outcome] = field(default_factory=dict)
    _noted: dict[Path, dict[float, Metrics]] = field(default_factory=dict)

    @classmethod
    def plan(cls, experiment: Experiment, request: Request) -> Sweep:
        """Expand the experiment and check everything, before anything runs or is written.

        Raises:
            UsageError: see `expand` and `_check_rungs`; a folder holds a run of another configuration or other data.
        """
        folder = expanded(request.run_dir).resolve() / experiment.name / (experiment.setting or "")
        for key in experiment.tune:
            if key in experiment.flags | {"seed"}:
                raise UsageError(f"--tune {key}: {key} has values in the grid already, or is the seed; leave one out")
        grid = expand(experiment, folder)
        for point in grid.points if experiment.tune else ():
            point.left = list(point.trials)
            point.tune_seeds = experiment.tune_seeds or point.seeds[:1]
            if experiment.tune_seeds and (judged := {*point.seeds} & {*point.tune_seeds}):
                raise UsageError(f"--tune_seeds: {min(judged)} is a seed of the runs; give seeds that are not tested")
        for point in grid.points if not request.overwrite else ():
            for each in point.trials or [point.configuration]:
                folders = {seed: each.folder(seed) for seed in (*point.seeds, *point.tune_seeds)}
                for seed, run_folder in folders.items():
                    run_folder.check_config(each.command.config | {"seed": seed})
                if started := [run for run in folders.values() if (run.path / ENVIRONMENT).is_file()]:
                    fingerprint = build_task(each.command.config).fingerprint()
                    for run_folder in started:
                        run_folder.check_data(fingerprint)
        options = [configuration.options for configuration, _ in grid]
        # A matched option is shown even if it comes out the same for all.
        varying = [
            key
            for key in dict.fromkeys(key for each in options for key in each)
            if key not in experiment.flags or len({json.dumps(each.get(key)) for each in options}) > 1
        ]
        sweep = cls(experiment, request, folder, grid, varying)
        if not request.overwrite:
            sweep._check_rungs()
        return sweep

    def _check_rungs(self) -> None:
        """Check that each trial has a score at every rung that it has passed, so that trials can be compared there.

        Raises:
            UsageError: a trial lacks a score, because an earlier sweep had other rungs.
        """
        for point in self.grid.points:
            for trial, seed in itertools.product(point.trials, point.tune_seeds):
                folder = trial.folder(seed).path
                # A trial may have diverged before a rung. If it ended early, its last score counts at every later rung.
                noted = {each["stop_at"]: "diverged" not in each for each in read_rungs(folder)}
                ended = read_fields(folder / METRICS)
                shares = [share for share, reached in noted.items() if reached and isinstance(share, float)]
                last = END if ended and not ended.get("stopped_early") else max(shares, default=0.0)
                if missed := [rung for rung in self.rungs if rung < last and rung not in noted]:
                    raise UsageError(
                        f"{folder} has no score at {missed[0]:g} of its steps, where trials are compared, but has "
                        f"reached {last:g}: give the same --rungs and seeds as before, another --name, or --overwrite"
                    )

    # Running

    def run(self, stop: Stop) -> None:
        """Run everything: with --tune, first the trials, then the best one of each configuration on every seed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.experiment.tune:
            self._tune(stop)
            if stop.soft.is_set():
                return
        jobs = [
            [self._job(chosen, seed) for seed in point.seeds]
            for point in self.grid.points
            if (chosen := point.chosen) is not None
        ]
        # The first seed of every configuration comes before any second seed: an unfinished sweep can compare all.
        by_seed = [job for nth in itertools.zip_longest(*jobs) for job in nth if job is not None]
        self._carry_out(by_seed, stop, "runs")
        self.write_index()

    @property
    def use_gpus(self) -> bool:
        """Whether any run uses a GPU if there is one."""
        return any(each.command.config["trainer"]["accelerator"] != "cpu" for each, _ in self.grid)

    def _job(self, configuration: Configuration, seed: int, stop_at: float | None = None) -> Job:
        folder = configuration.folder(seed).path
        flags = arguments(configuration.options | {"seed": seed, "run_dir": str(self.folder)})
        outcome = self.outcomes.get(folder)
        anew = self.request.overwrite and not (outcome and outcome.state == "done")
        name = f"{self.describe(configuration.options)} seed={seed}".strip()
        expected = {"params": configuration.params, "state_bytes": configuration.state_bytes}
        return Job(name, (*flags, *(["--overwrite"] if anew else [])), folder, stop_at, expected)

    def describe(self, options: Mapping[str, Any]) -> str:
        """Describe a configuration by the options that differ between configurations."""
        keys = [*self.varying, *self.experiment.tune]
        shown = {key.removeprefix("mixer."): options[key] for key in keys if key in options}
        return label(shown) if shown else ""

    def _carry_out(self, jobs: Sequence[Job], stop: Stop, what: str) -> None:
        done = [job for job in jobs if job.is_done and "--overwrite" not in job.arguments]
        for job in done:
            noted = read_fields(job.folder / DONE) if job.stop_at is None else job.metrics() or {}
            self.outcomes[job.folder] = Outcome(job, "done", noted.get("seconds", 0.0))
        waiting = [job for job in jobs if job not in done]
        self.write_index()
        if not jobs:
            return
        if not waiting:
            say(make_console(), f"{what}: all {len(jobs)} are done already")
            return
        # A run's share of the cores depends on all slots, even if some stay empty, so that a resumed run has the same.
        slots = slot_environments(self.request.slots, self.use_gpus, self.request.per_device)[: len(waiting)]
        board = Board(waiting, len(slots))
        say(board.console, f"{what}: {len(waiting)} to do, {len(done)} done already, {len(slots)} at a time")
        if self.request.engine == "ray":
            coming = run_ray(waiting, slots, stop, self.request.address, self.use_gpus, self.request.per_device)
        else:
            coming = run_local(waiting, slots, stop)
        with board.live():
            for outcome in coming:
                self.outcomes[outcome.job.folder] = outcome
                self._noted.pop(outcome.job.folder, None)
                board.take(outcome)
                if outcome.message != NOT_STARTED:
                    self.write_index()
        self.write_index()

    # Tuning

    @functools.cached_property
    def rungs(self) -> tuple[float, ...]:
        """Shares of the steps after which the better half of a configuration's trials continues."""
        return self.experiment.rungs or usual_rungs(max(len(point.trials) for point in self.grid.points))

    @property
    def unpicked(self) -> list[GridPoint]:
        """The configurations with no trial left."""
        return [point for point in self.grid.points if point.trials and not point.left]

    def _tune(self, stop: Stop) -> None:
        """Choose each configuration's best trial by validation, rung by rung (`lab.sweep.tuning`)."""
        for rung in dict.fromkeys((*self.rungs, END)):
            # A single trial has no rival: it continues as the first seed's run.
            compared = [point for point in self.grid.points if len(point.left) > 1 or rung == self.rungs[0]]
            jobs = [
                self._job(*each, rung) for point in compared for each in itertools.product(point.left, point.tune_seeds)
            ]
            if not jobs:
                break
            self._carry_out(jobs, stop, f"trials, {rung:.4g} of the steps")
            if stop.soft.is_set():
                return
            undecided = 0
            for point in compared:
                found = [self._noted_by(point, trial).get(rung) for trial in point.left]
                score, guess = self._judged_by(point)
                point.left = [point.left[i] for i in promoted(found, score, rung, self.rungs[-1], guess)]
                guessing = not beats_guessing(filter(None, found), score, guess)
                undecided += rung < END and len(point.left) > 1 and guessing
            if undecided:
                where = f"{undecided} of {count(len(compared), 'configuration')}"
                say(make_console(), f"no trial beats guessing in {where}: all continue")
        if RATE in self.experiment.tune:
            self._extend(stop)
            if stop.soft.is_set():
                return
        console = make_console()
        for point in self.grid.points:
            name = self.describe(point.configuration.options) or "the configuration"
            if not point.left:
                say(console, f"{name}: every trial failed or diverged, nothing to pick", "red")
                continue
            point.picked = point.left[0]
            say(console, f"{name}: {self._measure(point, point.picked)}")

    def _extend(self, stop: Stop) -> None:
        """If the best trial is at an end of the grid, try rates beyond it as long as each is better than the last."""
        rung = self.rungs[-1]
        for _ in range(MOST_BEYOND):
            further: list[tuple[GridPoint, Configuration]] = []
            for point in self.grid.points:
                best = point.left[0] if len(point.trials) > 1 and point.left else None
                noted = self._noted_by(point, best).get(rung) if best else None
                if best is None or noted is None or not beats_guessing([noted], *self._judged_by(point)):
                    continue
                rates = [each.options[RATE] for each in self._rivals(point, best)]
                if (rate := beyond(rates, best.options[RATE])) is not None:
                    further.append((point, Configuration.of(best.options | {RATE: rate}, self.folder)))
            if not further:
                return
            for point, trial in further:
                point.trials.append(trial)
            jobs = [self._job(trial, seed, rung) for point, trial in further for seed in point.tune_seeds]
            self._carry_out(jobs, stop, f"trials beyond the grid, {rung:.4g} of the steps")
            if stop.soft.is_set():
                return
            for point, trial in further:
                pair = [point.left[0], trial]
                found = [self._noted_by(point, each).get(rung) for each in pair]
                score, guess = self._judged_by(point)
                point.left = [pair[i] for i in promoted(found, score, rung, rung, guess)[:1]]

    def _rivals(self, point: GridPoint, best: Configuration) -> list[Configuration]:
        """Return the trials that differ from the best one only in the learning rate."""
        kept = {option: best.options[option] for option in self.experiment.tune if option != RATE}
        return [each for each in point.trials if kept.items() <= each.options.items()]

    def _measure(self, point: GridPoint, best: Configuration) -> str:
        """Measure the window of learning rates around the picked trial, and return a line that describes the choice."""
        (score, guess), tune = self._judged_by(point), self.experiment.tune
        rung, metrics = max(self._noted_by(point, best).items())
        values = {each: number_at(metrics, "val", each) for each in dict.fromkeys((score, "loss"))}
        shown = ", ".join(f"{each.replace('_', ' ')} {score_text(each, value)}" for each, value in values.items())
        if RATE in tune:
            # If several options are tuned, the others keep their picked values.
            rivals = self._rivals(point, best)
            found = {each.options[RATE]: noted for each in rivals if (noted := self._noted_by(point, each))}
            point.window = window(found, best.options[RATE], score, guess)
            shown += f"; window {window_text(point.window)} octaves"
        if not beats_guessing([metrics], score, guess):
            shown += "; no better than guessing, so the choice is arbitrary"
        chosen = " ".join(f"{option}={plain(best.options[option])}" for option in tune)
        where = f"seed {', '.join(map(str, point.tune_seeds))} after {rung:.4g} of the steps"
        return f"picked {chosen} by validation on {where} among {len(point.trials)}: {shown}"

    def _noted_by(self, point: GridPoint, trial: Configuration) -> dict[float, Metrics]:
        """Return the metrics of a trial, averaged over its seeds, by each rung that all seeds reached."""
        every = []
        for folder in (trial.folder(seed).path for seed in point.tune_seeds):
            if folder not in self._noted:
                self._noted[folder] = {each["stop_at"]: each for each in read_rungs(folder)}
            every.append(self._noted[folder])
        reached = [rung for rung in (*self.rungs, END) if all(rung in each for each in every)]
        return {rung: dict(averaged([each[rung] for each in every])) for rung in reached}

    def _judged_by(self, point: GridPoint) -> tuple[str, float | None]:
        """Return the score that ranks trials and, for an accuracy, the score of guessing among the tokens read."""
        found = (metrics for trial in point.trials for metrics in self._noted_by(point, trial).values())
        score = (*self.experiment.score, score_of(found, "val"))[0]
        guess = trivial_guess(point.configuration.command.config, "guess_among_read")
        # If only one token is read, that guess is always right, so it is no baseline.
        return score, guess if score == "accuracy" and guess is not None and guess < 1 else None

    # Results

    @property
    def failed(self) -> list[Outcome]:
        """The runs that failed or do not have the planned size."""
        return [outcome for outcome in self.outcomes.values() if outcome.state == "failed"]

    def ended(self, configuration: Configuration, seed: int) -> Outcome | None:
        """Return how a run ended; None before its end, even if it has stopped at a rung."""
        outcome = self.outcomes.get(configuration.folder(seed).path)
        return outcome if outcome is not None and outcome.job.stop_at is None else None

    def metrics(self, configuration: Configuration, seeds: Iterable[int]) -> list[Metrics]:
        """Return the metrics of the finished runs of a configuration."""
        outcomes = [self.ended(configuration, seed) for seed in seeds]
        found = [outcome.job.metrics() for outcome in outcomes if outcome and outcome.state == "done"]
        return [metrics for metrics in found if metrics is not None]

    def leak(self, configuration: Configuration, seeds: Iterable[int]) -> str:
        """Describe how a configuration's model reads later positions, as its runs recorded; empty if it does not."""
        folders = [configuration.folder(seed).path for seed in seeds]
        return next((leak for each in folders if (leak := read_fields(each / ENVIRONMENT).get(LEAK))), "")

    def write_index(self) -> None:
        """Write `sweep.json`: the request, and each run with its options, folder, state and sizes.

        A configuration has no runs until a trial is picked; "unpicked" lists these configurations.
        """
        runs = []
        for point in self.grid.points:
            scores = dict.fromkeys((self._judged_by(point)[0], "loss")) if point.trials else {}
            for trial, seed in itertools.product(point.trials, point.tune_seeds):
                if trial is not point.picked or seed not in point.seeds:
                    runs.append(self._entry(trial, seed, "trial") | {"rungs": self._rung_scores(point, trial, scores)})
            if (final := point.chosen) is not None:
                tuned: dict[str, Any] = {}
                if point.trials:
                    tuned = {"rungs": self._rung_scores(point, final, scores), "window": point.window}
                runs += [self._entry(final, seed, "run") | tuned for seed in point.seeds]
        experiment = self.experiment
        index = {
            "name": experiment.name,
            "setting": experiment.setting,
            "prediction": experiment.prediction,
            "command": shlex.join(sys.argv),
            "tune": experiment.tune,
            "tune_seeds": list(experiment.tune_seeds),
            "rungs": list(self.rungs) if experiment.tune else [],
            "match": experiment.match,
            "varying": self.varying,
            "left_out": self.grid.left_out,
            "unpicked": [label(point.configuration.options) for point in self.grid.points if point.chosen is None],
            "runs": runs,
        }
        write_atomically(self.folder / INDEX, as_json(index))

    def _rung_scores(self, point: GridPoint, trial: Configuration, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return each rung that a trial reached, with these validation scores, or why it diverged."""
        return [
            {"rung": rung, "step": metrics.get("step")}
            | (
                {"diverged": metrics["diverged"]}
                if "diverged" in metrics
                else {name: number_at(metrics, "val", name) for name in names}
            )
            for rung, metrics in self._noted_by(point, trial).items()
        ]

    def _entry(self, configuration: Configuration, seed: int, kind: str) -> dict[str, Any]:
        folder = configuration.folder(seed).path
        outcome = self.ended(configuration, seed) if kind == "run" else self.outcomes.get(folder)
        return {
            "folder": os.path.relpath(folder, self.folder),
            "kind": kind,
            "options": configuration.options,
            "seed": seed,
            "state": outcome.state if outcome else "waiting",
            "message": outcome.message if outcome else "",
            "seconds": outcome.seconds if outcome else None,
            "params": configuration.params,
            "state_bytes": configuration.state_bytes,
        }
