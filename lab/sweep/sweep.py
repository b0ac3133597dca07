"""Many runs of train.py: `python sweep.py --mixer attention,lstm --mixer.n_heads 1,2 --seed 0-4`; `--help` says more.

The grid is printed and checked before anything starts. Then each run is a process of its own (`lab.sweep.engine`). A
failure is reported and stops no other run, and the same command goes on with the runs that are not done. The sweep's
folder `<run_dir>/<name>[/<setting>]/` holds the runs, as train.py lays them out, and their index `sweep.json`.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.run.files import DONE, INDEX
from lab.run.metrics import Metrics, number_at, numbers_at
from lab.run.record import read_fields, read_rungs
from lab.score import FACTS, WINDOW, fact_text, score_of, score_text, window_text
from lab.sweep.board import Board, judged, range_text
from lab.sweep.command import HELP, PROGRAM, Request
from lab.sweep.engine import Job, Outcome, Stop, run_local, run_ray, slot_environments
from lab.sweep.grid import Configuration, Experiment, Grid, arguments, expand, label, product
from lab.sweep.matching import TOLERANCE
from lab.sweep.scores import SCORES_JSON, SCORES_MD, Point, score_table, scores, scores_as_markdown
from lab.sweep.tuning import END, RATE, Window, going_on, left_guessing, usual_rungs, window
from zoo.errors import UsageError
from zoo.extras import MissingExtraError, require_extra
from zoo.report.files import as_json, write_all, write_atomically
from zoo.report.numbers import count, duration, number, plain
from zoo.report.terminal import ends_unread, fail, make_console, make_table, say
from zoo.signals import CTRL_C, SCHEDULER, handled

SIZES = ("parameters", "state bytes")


@ends_unread
def main(argv: Sequence[str]) -> int:
    """Carry out a command line; see HELP for the exit status."""
    try:
        request = Request.read(argv)
        if request is None:
            print(HELP, end="")
            return 0
        if request.engine == "ray":
            require_extra("ray", "ray")
        planned = [Sweep.plan(experiment, request) for experiment in request.experiments()]
    except (UsageError, MissingExtraError) as error:
        return fail(PROGRAM, error, 2)
    for sweep in planned:
        sweep.show_grid()
    if request.dry_run:
        return 0
    status = 0
    stop = Stop()
    # Ctrl-C, or a scheduler, asks the runs to save and stop; a second signal kills them.
    with handled((CTRL_C, *SCHEDULER), lambda *_: stop.ask()):
        for sweep in planned:
            try:
                sweep.run(stop)
            except (UsageError, OSError) as error:
                return fail(PROGRAM, error, 2)
            sweep.show_summary()
            status = max(status, 1 if sweep.failed or sweep.unpicked else 0)
            if stop.soft.is_set():
                rest = [each for each in argv if each != "--overwrite"]
                print(f"{PROGRAM}: stopped; to go on: {shlex.join(['python', 'sweep.py', *rest])}", file=sys.stderr)
                return 130
    return status


@dataclass
class Sweep:
    """One experiment being carried out."""

    experiment: Experiment
    request: Request
    folder: Path
    grid: Grid
    varying: list[str]
    """Options in which the configurations differ: what a table shows of them."""
    trials: dict[str, list[Configuration]]
    """With --tune: what each configuration chooses from."""
    picked: dict[str, Configuration] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    """Of learning rates, where they are tuned, for each configuration that has picked."""
    unpicked: list[str] = field(default_factory=list)
    """Configurations of which no trial is left."""
    outcomes: dict[Path, Outcome] = field(default_factory=dict)
    _read: dict[Path, dict[str, Metrics]] = field(default_factory=dict)
    """What the runs' rungs.json said when last read."""

    @classmethod
    def plan(cls, experiment: Experiment, request: Request) -> Sweep:
        """Check everything that can be refused, before anything runs or is written.

        Raises:
            UsageError: see `expand`; a folder that holds a run of another configuration.
        """
        folder = request.run_dir.expanduser().resolve() / experiment.name / (experiment.setting or "")
        for key in experiment.tune:
            if key in experiment.flags | {"seed"}:
                raise UsageError(f"--tune {key}: {key} has values in the grid already, or is the seed; leave one out")
        grid = expand(experiment, folder)
        trials = {
            key: [Configuration.of(configuration.options | choice, folder) for choice in product(experiment.tune)]
            for key, configuration in grid.configurations.items()
            if experiment.tune
        }
        if not request.overwrite:
            for key, seeds in grid.seeds.items():
                for each in trials.get(key, [grid.configurations[key]]):
                    for seed in seeds:
                        each.folder(seed).check_config(each.command.config | {"seed": seed})
        options = [configuration.options for configuration in grid.configurations.values()]
        keys = dict.fromkeys(key for each in options for key in each)
        # What is matched is shown even where it comes out alike for all.
        varying = [
            key
            for key in keys
            if key not in experiment.flags or len({json.dumps(each.get(key)) for each in options}) > 1
        ]
        return cls(experiment, request, folder, grid, varying, trials)

    # Carrying out

    def run(self, stop: Stop) -> None:
        """Run everything: with --tune first the trials of each configuration, then the picked ones on every seed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.trials:
            self._tune(stop)
            if stop.soft.is_set():
                return
        chosen = self.picked if self.trials else self.grid.configurations
        seeds = {key: seeds for key, seeds in self.grid.seeds.items() if key in chosen}
        jobs = [self._job(chosen[key], seed) for key in seeds for seed in seeds[key]]
        # Every configuration's first seed comes before any second one: an unfinished sweep compares all.
        order = {key: i for i, key in enumerate(dict.fromkeys(job.folder.name for job in jobs))}
        self._carry_out(sorted(jobs, key=lambda job: order[job.folder.name]), stop, "runs")
        self.write_index()

    def _job(self, configuration: Configuration, seed: int, stop_at: float | None = None) -> Job:
        folder = configuration.folder(seed).path
        flags = arguments(configuration.options | {"seed": seed, "run_dir": str(self.folder)})
        anew = self.request.overwrite and not (self.outcomes.get(folder) and self.outcomes[folder].state == "done")
        name = f"{self.describe(configuration.options)} seed={seed}".strip()
        expected = {"params": configuration.params, "state_bytes": configuration.state_bytes}
        return Job(name, (*flags, *(["--overwrite"] if anew else [])), folder, stop_at, expected)

    def describe(self, options: Mapping[str, Any]) -> str:
        """Describe a configuration by the options in which it differs from the others."""
        keys = [*self.varying, *self.experiment.tune]
        shown = {key.removeprefix("mixer."): options[key] for key in keys if key in options}
        return label(shown) if shown else ""

    def _carry_out(self, jobs: Sequence[Job], stop: Stop, what: str) -> None:
        done = [job for job in jobs if job.is_done and "--overwrite" not in job.arguments]
        for job in done:
            told = read_fields(job.folder / DONE) if job.stop_at is None else job.metrics() or {}
            self.outcomes[job.folder] = Outcome(job, "done", told.get("seconds", 0.0))
        waiting = [job for job in jobs if job not in done]
        self.write_index()
        if not jobs:
            return
        if not waiting:
            say(make_console(), f"{what}: all {len(jobs)} are done already")
            return
        # Threads are shared among all slots even where the last runs leave some empty: results depend on their number.
        slots = slot_environments(self.request.slots, self.use_gpus)[: len(waiting)]
        board = Board(waiting, len(slots))
        say(board.console, f"{what}: {len(waiting)} to do, {len(done)} done already, {len(slots)} at a time")
        if self.request.engine == "ray":
            coming = run_ray(waiting, slots, stop, self.request.address, self.use_gpus)
        else:
            coming = run_local(waiting, slots, stop)
        with board.live():
            for outcome in coming:
                self.outcomes[outcome.job.folder] = outcome
                self._read.pop(outcome.job.folder, None)
                board.take(outcome)
                self.write_index()

    @property
    def use_gpus(self) -> bool:
        """Whether any run would take a GPU where there is one."""
        trainers = [configuration.command.config["trainer"] for configuration, _ in self.grid]
        return any(trainer["accelerator"] != "cpu" for trainer in trainers)

    @property
    def rungs(self) -> tuple[float, ...]:
        """The shares of the steps after which the better half of a configuration's trials goes on."""
        return self.experiment.rungs or usual_rungs(max(map(len, self.trials.values()), default=1))

    def _tune(self, stop: Stop) -> None:
        """Choose each configuration's best trial by validation, rung by rung (`lab.sweep.tuning`)."""
        left = dict(self.trials)
        for rung in self._stops:
            # A single trial has nothing to be compared with: it goes on as the run.
            compared = {key: trials for key, trials in left.items() if len(trials) > 1 or rung == self.rungs[0]}
            jobs = [self._job(trial, self.grid.seeds[key][0], rung) for key, each in compared.items() for trial in each]
            if not jobs:
                break
            self._carry_out(jobs, stop, f"trials on the first seed, {rung:.4g} of the steps")
            if stop.soft.is_set():
                return
            untold = 0
            for key, trials in compared.items():
                found, score, guess = [self._rungs(key, each).get(rung) for each in trials], *self._judged_by(key)
                left[key] = [trials[i] for i in going_on(found, score, rung, self.rungs[-1], guess)]
                untold += rung < END and len(left[key]) > 1 and not left_guessing(filter(None, found), score, guess)
            if untold:
                where = f"{untold} of {count(len(compared), 'configuration')}"
                say(make_console(), f"no trial has left guessing in {where}: all go on")
        console = make_console()
        for key, trials in left.items():
            name = self.describe(self.grid.configurations[key].options) or "the configuration"
            if not trials:
                self.unpicked.append(name)
                say(console, f"{name}: every trial failed or diverged, nothing to pick", "red")
                continue
            self.picked[key] = trials[0]
            say(console, f"{name}: {self._measure(key, trials[0])}")

    @property
    def _stops(self) -> tuple[float, ...]:
        """The rungs, and the end for trials that they could not tell apart."""
        return tuple(dict.fromkeys((*self.rungs, END)))

    def _measure(self, key: str, best: Configuration) -> str:
        """Measure the window of learning rates around the trial that was picked, and say what was found."""
        (score, guess), tune = self._judged_by(key), self.experiment.tune
        rung, metrics = max(self._rungs(key, best).items())
        if RATE in tune:
            # Of several options that are tuned, the others stay as they were picked.
            kept = {option: best.options[option] for option in tune if option != RATE}
            same = [each for each in self.trials[key] if kept.items() <= each.options.items()]
            found = {float(each.options[RATE]): rungs for each in same if (rungs := self._rungs(key, each))}
            self.windows[key] = window(found, float(best.options[RATE]), score, guess)
        chosen = " ".join(f"{option}={plain(best.options[option])}" for option in tune)
        values = {each: number_at(metrics, "val", each) for each in dict.fromkeys((score, "loss"))}
        said = ", ".join(f"{each.replace('_', ' ')} {score_text(each, value)}" for each, value in values.items())
        wide = f"; window {window_text(self.windows[key])} octaves" if key in self.windows else ""
        where = f"seed {self.grid.seeds[key][0]} after {rung:.4g} of the steps"
        return f"picked {chosen} by validation on {where} among {len(self.trials[key])}: {said}{wide}"

    def _rungs(self, key: str, trial: Configuration) -> dict[float, Metrics]:
        """Return the metrics of a trial at each rung that it reached."""
        folder = trial.folder(self.grid.seeds[key][0]).path
        if folder not in self._read:
            self._read[folder] = read_rungs(folder)
        found = self._read[folder]
        return {rung: found[str(rung)] for rung in self._stops if str(rung) in found}

    def _score(self, key: str) -> str:
        """Return the name of the score that the trials of a configuration are judged by."""
        found = (metrics for trial in self.trials[key] for metrics in self._rungs(key, trial).values())
        return (*self.experiment.score, score_of(found, "val"))[0]

    def _judged_by(self, key: str) -> tuple[str, float | None]:
        """Return the score of `_score`, and what guessing among the tokens that were read reaches."""
        from lab.build import trivial_guess

        score = self._score(key)
        guess = trivial_guess(self.grid.configurations[key].command.config, "guess_among_read")
        # A single token that was read can be named without fail: there is nothing to leave behind.
        return score, guess if score == "accuracy" and guess is not None and guess < 1 else None

    def ended(self, configuration: Configuration, seed: int) -> Outcome | None:
        """Return how a run ended; None before, also where it has only stopped at a rung."""
        outcome = self.outcomes.get(configuration.folder(seed).path)
        return outcome if outcome is not None and outcome.job.stop_at is None else None

    # What is said and written

    @property
    def failed(self) -> list[Outcome]:
        """Return the runs that failed, and those that do not have the matched size."""
        return [outcome for outcome in self.outcomes.values() if outcome.state == "failed"]

    def rows(self) -> Iterator[tuple[str, Configuration, list[int]]]:
        """Return by its key each configuration as it was run, with --tune the picked one, and its seeds."""
        for key, each in self.grid.configurations.items():
            yield key, self.picked.get(key, each), self.grid.seeds[key]

    def show_grid(self) -> None:
        """Print the grid: configurations, seeds, sizes, how many runs."""
        console, experiment = make_console(), self.experiment
        title = f"{experiment.name}{f' ({experiment.setting})' if experiment.setting else ''}"
        rows = [
            (*self._cells(each, self.varying), range_text(seeds), number(each.params), number(each.state_bytes))
            for each, seeds in self.grid
        ]
        headings = (*(key.removeprefix("mixer.") for key in self.varying), "seeds", *SIZES)
        console.print(make_table(headings, rows, "l" * (len(headings) - len(SIZES)) + "r" * len(SIZES), title=title))
        for line in self.grid.left_out:
            say(console, line)
        for quantity, wanted in experiment.match.items():
            say(console, f"matched: {quantity} = {wanted:,.0f} within {TOLERANCE:.0%}")
        if experiment.prediction:
            say(console, f"prediction: {experiment.prediction}")
        runs, configurations = count(self.grid.n_runs, "run"), count(len(self.grid.configurations), "configuration")
        text = f"{runs} of {configurations}"
        if self.trials:
            trials = count(len(next(iter(self.trials.values()))), "trial")
            rungs = ", ".join(f"{rung:.4g}" for rung in self.rungs)
            text = f"{configurations} x {trials} on the first seed, halved after {rungs} of the steps, then {runs}"
            text += " of the picked"
        say(console, f"{text}, kept in {self.folder}")

    def _cells(self, configuration: Configuration, keys: Iterable[str]) -> list[str]:
        """Return the values of options; nothing for one that the configuration has not."""
        options = configuration.options
        return [plain(options[key]) if options.get(key) is not None else "" for key in keys]

    def _summary(self) -> tuple[list[str], list[list[str]], str]:
        """Return headings, rows and alignment of the table of configurations, seeds together."""
        keys = [*self.varying, *self.experiment.tune]
        wide = RATE in self.experiment.tune
        rows = []
        for key, configuration, seeds in self.rows():
            found = self._metrics(configuration, seeds)
            score = score_of(found, "test", "val")
            facts = {name: numbers_at(found, name) for name in FACTS.values()}
            # The sizes are known before any run is done, but for the state of a mixer that does not stream.
            sizes = {"params": configuration.params, "state_bytes": configuration.state_bytes}
            facts |= {name: [] if size is None else [size] for name, size in sizes.items()}
            seconds = numbers_at(found, "seconds")
            rows.append(
                [
                    *self._cells(configuration, keys),
                    f"{len(found)}/{len(seeds)}",
                    judged(found, "test"),
                    judged(found, "val"),
                    *(fact_text(name, each, score, len(found)) if each else "" for name, each in facts.items()),
                    *([window_text(self.windows.get(key))] if wide else []),
                    duration(statistics.mean(seconds)) if seconds else "",
                ]
            )
        numbers = [*FACTS, *([WINDOW] if wide else []), "time"]
        headings = [*(key.removeprefix("mixer.") for key in keys), "done", "test", "validation", *numbers]
        return headings, rows, "l" * (len(headings) - len(numbers)) + "r" * len(numbers)

    def show_summary(self) -> None:
        """Print what was found, seeds together, and what failed."""
        console, (headings, rows, align) = make_console(), self._summary()
        title = f"{self.experiment.name}: mean ± standard deviation over seeds"
        console.print(make_table(headings, rows, align, title=title))
        for outcome in self.failed:
            say(console, f"failed: {outcome.job.name}: {outcome.message}; see {outcome.job.folder}")
        say(console, str(self.folder / INDEX))
        if self.experiment.score:
            self._show_scores()

    def _show_scores(self) -> None:
        """Print each model's score over all tasks, and write it next to the index."""
        metrics, console, points = self.experiment.score, make_console(), []
        for key, each, seeds in self.rows():
            # What is matched or tuned follows from the model and the grid point.
            options = {flag: value for flag, value in each.options.items() if flag in self.experiment.flags}
            task, done = each.command.config["task"]["name"], self._metrics(each, seeds)
            points.append(Point(task, options, len(seeds), done, self.windows.get(key)))
        found = scores(points, metrics)
        title = f"{self.experiment.name}: means over the grid of each task, and over the tasks"
        console.print(make_table(*score_table(found, metrics), title=title))
        data = as_json({"metrics": metrics, "models": found})
        page = scores_as_markdown(self.experiment.name, found, metrics, self._summary())
        write_all(self.folder, {SCORES_JSON: data, SCORES_MD: page})
        say(console, str(self.folder / SCORES_MD))

    def metrics(self, configuration: Configuration, seed: int) -> Metrics | None:
        """Return the metrics of a run that is done."""
        outcome = self.ended(configuration, seed)
        return outcome.job.metrics() if outcome is not None and outcome.state == "done" else None

    def _metrics(self, configuration: Configuration, seeds: Sequence[int]) -> list[Metrics]:
        return [metrics for seed in seeds if (metrics := self.metrics(configuration, seed)) is not None]

    def write_index(self) -> None:
        """Write `sweep.json`: what was asked, and each run with its options, folder, state and sizes."""
        runs = []
        for key, configuration in self.grid.configurations.items():
            trials = self.trials.get(key, [])
            chosen, seeds = self.picked.get(key), self.grid.seeds[key]
            runs += [
                self._entry(trial, seeds[0], "trial") | {"rungs": self._rung_scores(key, trial)}
                for trial in trials
                if trial is not chosen
            ]
            final = chosen if trials else configuration
            if final is not None:
                told = {"rungs": self._rung_scores(key, final), "window": self.windows.get(key)} if trials else {}
                runs += [self._entry(final, seed, "run") | told for seed in seeds]
        index = {
            "name": self.experiment.name,
            "setting": self.experiment.setting,
            "prediction": self.experiment.prediction,
            "command": shlex.join(sys.argv),
            "tune": self.experiment.tune,
            "rungs": list(self.rungs) if self.trials else [],
            "match": self.experiment.match,
            "varying": self.varying,
            "left_out": self.grid.left_out,
            "runs": runs,
        }
        write_atomically(self.folder / INDEX, as_json(index))

    def _rung_scores(self, key: str, trial: Configuration) -> dict[str, Any]:
        """Each rung that a trial reached, with its score and loss by validation there, or why it diverged."""
        names = dict.fromkeys((self._score(key), "loss"))
        told = {}
        for rung, found in self._rungs(key, trial).items():
            scores = {name: number_at(found, "val", name) for name in names}
            said = {"diverged": found["diverged"]} if "diverged" in found else scores
            told[str(rung)] = {"step": found.get("step")} | said
        return told

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
