"""Many runs of train.py: `python sweep.py --mixer attention,lstm --mixer.n_heads 1,2 --seed 0-4`; `--help` says more.

The grid is printed and checked before anything starts. Then each run is a process of its own (`sweep_engine`), what
fails is reported and stops no other, and the same command goes on with what is not done. The sweep's folder
`<run_dir>/<name>[/<setting>]/` holds the runs, as train.py lays them out, and their index `sweep.json`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import UsageError
from grid import Configuration, Experiment, Grid, arguments, expand, label, read_experiment, target, values_of
from sweep_engine import NOT_STARTED, Job, Outcome, Stop, progress, require_ray, run_local, run_ray, slot_environments
from zoo.files import write_atomically
from zoo.naming import unknown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

INDEX = "sweep.json"
ENGINES = ("local", "ray")
# What a finished run is judged by: the first of these that it has.
JUDGED_BY = ("accuracy", "relative_squared_error", "loss")

HELP = """\
usage: sweep.py [EXPERIMENT.yaml ...] [--FLAG VALUE[,VALUE ...] ...]

Run train.py for every combination of the values given: on this machine, or on a Ray cluster.

  --FLAG A,B,C                    any flag of train.py, with one value or several; [a,b] is one value
  --seed 0-4                      a range, both ends included, for any flag that counts
  EXPERIMENT.yaml                 flags and values from a file (configs/experiment/); flags win over it
  --setting NAME                  which of the file's settings, such as small or full

  --tune lr=1e-4,3e-4,1e-3        picked for each configuration by validation on its first seed; then tested
  --match params=1e6              choose d_model so that every model has as many parameters (within 5 %)
  --match state=64KiB             choose the mixer's state size (or d_model) so that every state has as many bytes

  --slots N                       runs at a time; the GPUs, or the cores, when absent
  --engine ray [--address HOST]   as tasks of Ray, here or on a cluster whose nodes share this folder
  --run_dir DIR  --name NAME      runs are kept in DIR/NAME (runs/<the experiment's name>)
  --dry_run                       print the grid and stop
  --overwrite                     start every run anew

An option that a mixer lacks is left out for it. The same command goes on where it stopped. Exit status: 0 when every
run is done, 1 when some failed, 2 for a command that cannot be followed, 130 when interrupted.

examples:
  sweep.py --mixer attention,hybrid --mixer.n_heads 1,2,4 --task mqar --seed 0-4 --trainer.max_steps 500
  sweep.py --mixer lstm,ssd --match params=1e6 --tune lr=1e-3,3e-3 --seed 0-2
  sweep.py configs/experiment/head_count.yaml --setting small
"""


def main(argv: Sequence[str]) -> int:
    """Carry out a command line; see HELP for the exit status."""
    try:
        request = Request.read(argv)
        if request is None:
            print(HELP, end="")
            return 0
        if request.engine == "ray":
            require_ray()
        sweeps = [Sweep.plan(experiment, request) for experiment in request.experiments()]
    except UsageError as error:
        print(f"sweep.py: error: {error}", file=sys.stderr)
        return 2
    for sweep in sweeps:
        sweep.show_grid()
    if request.dry_run:
        return 0
    status = 0
    stop = Stop()
    with _signals(stop):
        for sweep in sweeps:
            try:
                sweep.run(stop)
            except (UsageError, OSError) as error:
                print(f"sweep.py: error: {error}", file=sys.stderr)
                return 2
            sweep.show_summary()
            status = max(status, 1 if sweep.failed else 0)
            if stop.soft.is_set():
                rest = [each for each in argv if each != "--overwrite"]
                print(f"sweep.py: stopped; to go on: {shlex.join(['python', 'sweep.py', *rest])}", file=sys.stderr)
                return 130
    return status


@contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C or SIGTERM asks the runs to save and stop; a second one kills them."""

    def handle(number: int, frame: object) -> None:
        stop.ask()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Request:
    """A command line: experiments' files, flags with their values, and how to carry them out."""

    files: list[str] = field(default_factory=list)
    flags: dict[str, list[Any]] = field(default_factory=dict)
    tune: dict[str, list[Any]] = field(default_factory=dict)
    match: dict[str, float] = field(default_factory=dict)
    setting: str | None = None
    slots: int | None = None
    engine: str = "local"
    address: str | None = None
    run_dir: Path = Path("runs")
    name: str | None = None
    dry_run: bool = False
    overwrite: bool = False

    @classmethod
    def read(cls, argv: Sequence[str]) -> Request | None:
        """None where help is asked for.

        Raises:
            UsageError: a flag without value, values of our own flags that mean nothing.
        """
        request = cls()
        rest = list(argv)
        while rest:
            token = rest.pop(0)
            if token in ("-h", "--help"):
                return None
            if not token.startswith("--"):
                request.files.append(token)
            elif token in ("--dry_run", "--overwrite"):
                setattr(request, token.removeprefix("--"), True)
            else:
                flag, given, value = token.removeprefix("--").partition("=")
                if not given:
                    if not rest or rest[0].startswith("--"):
                        raise UsageError(f"--{flag} needs a value; see sweep.py --help")
                    value = rest.pop(0)
                request._take(flag, value)
        return request

    def _take(self, flag: str, value: str) -> None:
        if flag in ("setting", "address", "name"):
            setattr(self, flag, value)
        elif flag == "run_dir":
            self.run_dir = Path(value)
        elif flag == "slots":
            if not value.isdigit() or int(value) < 1:
                raise UsageError(f"--slots must be a whole number >= 1, got {value}")
            self.slots = int(value)
        elif flag == "engine":
            if value not in ENGINES:
                raise UsageError(unknown("engine", value, ENGINES))
            self.engine = value
        elif flag in ("tune", "match"):
            name, given, text = value.partition("=")
            if not given:
                example = "lr=1e-4,1e-3" if flag == "tune" else "params=1e6"
                raise UsageError(f"--{flag} expects a name and values such as {example}, got {value}")
            if flag == "tune":
                self.tune[name] = values_of("", f"--tune {name}", text)
            else:
                self.match[name] = target(name, text)
        elif flag == "config":
            # Every file is part of every run; paths hold wherever a run is started.
            self.flags.setdefault("config", [[]])[0].append(str(Path(value).resolve()))
        else:
            flag = flag.removesuffix(".name") if flag in ("mixer.name", "task.name") else flag
            self.flags[flag] = values_of("", f"--{flag}", value)

    def experiments(self) -> list[Experiment]:
        """The experiments of the files, each with this command's flags over it; or one of the flags alone.

        Raises:
            UsageError: neither files nor flags, files that cannot be followed.
        """
        if not self.files:
            if self.setting is not None:
                raise UsageError(
                    "--setting is for an experiment's file: name one, such as configs/experiment/recall.yaml"
                )
            if not self.flags and not self.tune and not self.match:
                raise UsageError("nothing to run: give flags with values, or an experiment's file; see sweep.py --help")
            digest = hashlib.sha256(json.dumps([self.flags, self.tune, self.match], sort_keys=True).encode())
            bases = [Experiment(self.name or f"sweep-{digest.hexdigest()[:8]}")]
        else:
            bases = [read_experiment(file, self.setting) for file in self.files]
        found = []
        for base in bases:
            over = base.overridden(self.flags)
            tune, match = over.tune | self.tune, over.match | self.match
            found.append(
                Experiment(self.name or over.name, over.grids, over.fixed, tune, match, over.setting, over.prediction)
            )
        return found


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
    outcomes: dict[Path, Outcome] = field(default_factory=dict)

    @classmethod
    def plan(cls, experiment: Experiment, request: Request) -> Sweep:
        """Everything that can be refused is refused here, before anything runs or is written.

        Raises:
            UsageError: see `expand`; a folder that holds a run of another configuration.
        """
        folder = request.run_dir.expanduser().resolve() / experiment.name / (experiment.setting or "")
        for key in experiment.tune:
            if key == "seed" or key in experiment.fixed or any(key in grid for grid in experiment.grids):
                raise UsageError(f"--tune {key}: {key} has values in the grid already, or is the seed; leave one out")
        grid = expand(experiment, folder)
        trials = {
            key: [Configuration.of(configuration.options | choice, folder) for choice in _choices(experiment.tune)]
            for key, configuration in grid.configurations.items()
            if experiment.tune
        }
        if not request.overwrite:
            for key, seeds in grid.seeds.items():
                for each in trials.get(key, [grid.configurations[key]]):
                    for seed in seeds:
                        each.check_folder(seed)
        options = [configuration.options for configuration in grid.configurations.values()]
        keys = dict.fromkeys(key for each in options for key in each)
        given = {*experiment.fixed, *(key for each in experiment.grids for key in each)}
        # What is matched is shown even where it comes out alike for all.
        varying = [key for key in keys if key not in given or len({json.dumps(each.get(key)) for each in options}) > 1]
        return cls(experiment, request, folder, grid, varying, trials)

    # Carrying out

    def run(self, stop: Stop) -> None:
        """Carry out all runs: with --tune first the trials of each configuration, then the picked on every seed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.trials:
            jobs = [
                self._job(trial, self.grid.seeds[key][0], test=False)
                for key, trials in self.trials.items()
                for trial in trials
            ]
            self._carry_out(jobs, stop, "trials on the first seed")
            if stop.soft.is_set():
                return
            self._pick()
            rest = [key for key in self.grid.seeds if key in self.picked]
            runs = [(self.picked[key], seed) for key in rest for seed in self.grid.seeds[key]]
            jobs = [self._job(configuration, seed) for configuration, seed in runs]
        else:
            jobs = [self._job(configuration, seed) for configuration, seeds in self.grid for seed in seeds]
        # Every configuration's first seed comes before any second one: an unfinished sweep compares all.
        order = {key: i for i, key in enumerate(dict.fromkeys(job.folder.name for job in jobs))}
        self._carry_out(sorted(jobs, key=lambda job: order[job.folder.name]), stop, "runs")
        self.write_index()

    def _job(self, configuration: Configuration, seed: int, test: bool = True) -> Job:
        folder = configuration.folder(seed).path
        flags = arguments(configuration.options | {"seed": seed, "run_dir": str(self.folder)})
        anew = self.request.overwrite and not (self.outcomes.get(folder) and self.outcomes[folder].state == "done")
        name = f"{self.describe(configuration.options)} seed={seed}".strip()
        expected = {"params": configuration.params, "state_bytes": configuration.state_bytes}
        return Job(name, (*flags, *(["--overwrite"] if anew else [])), folder, test, expected)

    def describe(self, options: Mapping[str, Any]) -> str:
        """A configuration by what sets it apart from the others."""
        keys = [*self.varying, *self.experiment.tune]
        shown = {key.removeprefix("mixer."): options[key] for key in keys if key in options}
        return label(shown) if shown else ""

    def _carry_out(self, jobs: Sequence[Job], stop: Stop, what: str) -> None:
        done = [job for job in jobs if job.is_done and "--overwrite" not in job.arguments]
        for job in done:
            self.outcomes[job.folder] = Outcome(job, "done", job.seconds())
        waiting = [job for job in jobs if job not in done]
        self.write_index()
        board = Board(waiting, len(done), what)
        if not waiting:
            board.say(f"{what}: all {len(jobs)} are done already")
            return
        # Threads are shared among all slots even where the last runs leave some empty: results depend on their number.
        slots = slot_environments(self.request.slots, self.use_gpus)[: len(waiting)]
        board.say(f"{what}: {len(waiting)} to do, {len(done)} done already, {len(slots)} at a time")
        if self.request.engine == "ray":
            coming = run_ray(waiting, slots, stop, self.request.address, self.use_gpus)
        else:
            coming = run_local(waiting, slots, stop)
        with board.live(len(slots)):
            for outcome in coming:
                self.outcomes[outcome.job.folder] = outcome
                board.take(outcome)
                self.write_index()

    @property
    def use_gpus(self) -> bool:
        """Whether any run would take a GPU where there is one."""
        trainers = [configuration.command.config["trainer"] for configuration, _ in self.grid]
        return any(trainer["accelerator"] != "cpu" for trainer in trainers)

    def _pick(self) -> None:
        """Choose each configuration's best trial by validation: accuracy, then loss."""
        console = _console()
        for key, trials in self.trials.items():
            seed = self.grid.seeds[key][0]
            found = [(trial, *self._metrics(trial, [seed])) for trial in trials]
            scored = [(_by_validation(metrics[0]), i, trial) for i, (trial, *metrics) in enumerate(found) if metrics]
            name = self.describe(self.grid.configurations[key].options) or "the configuration"
            if not scored:
                _say(console, f"{name}: no trial is done, nothing to pick", "red")
                continue
            (negative, loss), _, best = min(scored)
            self.picked[key] = best
            chosen = " ".join(f"{option}={_text(best.options[option])}" for option in self.experiment.tune)
            judged = f"accuracy {-negative:.4f}, loss {loss:.4g}" if negative else f"loss {loss:.4g}"
            _say(console, f"{name}: picked {chosen} by validation on seed {seed} among {len(trials)}: {judged}")

    def _state(self, configuration: Configuration, seed: int) -> str:
        outcome = self.outcomes.get(configuration.folder(seed).path)
        return "waiting" if outcome is None else outcome.state

    # What is said and written

    @property
    def failed(self) -> list[Outcome]:
        """Runs that failed, and those whose size is not the one that was matched."""
        return [outcome for outcome in self.outcomes.values() if outcome.state == "failed"]

    def rows(self) -> Iterator[tuple[Configuration, list[int]]]:
        """The configurations as they were run: with --tune the picked ones."""
        return ((self.picked.get(key, each), self.grid.seeds[key]) for key, each in self.grid.configurations.items())

    def show_grid(self) -> None:
        """Print the grid: configurations, seeds, sizes, how many runs."""
        console, experiment = _console(), self.experiment
        title = f"{experiment.name}{f' ({experiment.setting})' if experiment.setting else ''}"
        table = _table(title, [*map(_heading, self.varying), "seeds", "parameters", "state bytes"])
        for configuration, seeds in self.grid:
            sizes = (f"{configuration.params:,}", f"{configuration.state_bytes:,}")
            table.add_row(*self._cells(configuration), _ranges(seeds), *sizes)
        console.print(table)
        for line in self.grid.left_out:
            _say(console, line)
        for quantity, wanted in experiment.match.items():
            _say(console, f"matched: {quantity} = {wanted:,.0f} within 5 %")
        if experiment.prediction:
            _say(console, f"prediction: {experiment.prediction}")
        trials = sum(map(len, self.trials.values()))
        if trials:
            # The picked trial's first seed is not trained again.
            more = self.grid.n_runs - len(self.trials)
            each = len(next(iter(self.trials.values())))
            text = (
                f"{len(self.trials)} configurations x {each} trials on the first seed, then {more} runs of the picked"
            )
        else:
            text = f"{_count(self.grid.n_runs, 'run')} of {_count(len(self.grid.configurations), 'configuration')}"
        _say(console, f"{text}, kept in {self.folder}")

    def _cells(self, configuration: Configuration) -> list[str]:
        return [_text(configuration.options.get(key)) for key in self.varying]

    def show_summary(self) -> None:
        """Print what was found, seeds together, and what failed."""
        console = _console()
        tuned = list(self.experiment.tune)
        columns = [
            *map(_heading, self.varying),
            *tuned,
            "done",
            "test",
            "validation",
            "parameters",
            "state bytes",
            "time",
        ]
        table = _table(f"{self.experiment.name}: mean ± standard deviation over seeds", columns)
        for configuration, seeds in self.rows():
            found = self._metrics(configuration, seeds)
            choice = [_text(configuration.options.get(key)) for key in tuned]
            seconds = [metrics["seconds"] for metrics in found if metrics.get("seconds")]
            table.add_row(
                *self._cells(configuration),
                *choice,
                f"{len(found)}/{len(seeds)}",
                _judged(found, "test"),
                _judged(found, "val"),
                f"{configuration.params:,}",
                f"{configuration.state_bytes:,}",
                f"{statistics.mean(seconds):.0f} s" if seconds else "",
            )
        console.print(table)
        for outcome in self.failed:
            _say(console, f"failed: {outcome.job.name}: {outcome.message}; see {outcome.job.folder}")
        _say(console, str(self.folder / INDEX))

    def _metrics(self, configuration: Configuration, seeds: Sequence[int]) -> list[dict[str, Any]]:
        found = []
        for seed in seeds:
            outcome = self.outcomes.get(configuration.folder(seed).path)
            if outcome is not None and outcome.state == "done" and (metrics := outcome.job.metrics()) is not None:
                found.append(metrics)
        return found

    def write_index(self) -> None:
        """Write `sweep.json`: what was asked, and each run with its options, folder, state and sizes."""
        runs = []
        for key, configuration in self.grid.configurations.items():
            trials = self.trials.get(key, [])
            chosen = self.picked.get(key)
            first = self.grid.seeds[key][:1]
            runs += [self._entry(trial, seed, "trial") for trial in trials if trial is not chosen for seed in first]
            final = chosen if trials else configuration
            if final is not None:
                runs += [self._entry(final, seed, "run") for seed in self.grid.seeds[key]]
        index = {
            "name": self.experiment.name,
            "setting": self.experiment.setting,
            "prediction": self.experiment.prediction,
            "command": shlex.join(sys.argv),
            "tune": self.experiment.tune,
            "match": self.experiment.match,
            "varying": self.varying,
            "left_out": self.grid.left_out,
            "runs": runs,
        }
        write_atomically(self.folder / INDEX, json.dumps(index, indent=2) + "\n")

    def _entry(self, configuration: Configuration, seed: int, kind: str) -> dict[str, Any]:
        folder = configuration.folder(seed).path
        outcome = self.outcomes.get(folder)
        return {
            "folder": os.path.relpath(folder, self.folder),
            "kind": kind,
            "options": configuration.options,
            "seed": seed,
            "state": self._state(configuration, seed),
            "message": outcome.message if outcome else "",
            "seconds": outcome.seconds if outcome else None,
            "params": configuration.params,
            "state_bytes": configuration.state_bytes,
        }


class Board:
    """What a person sees while runs are under way: a live table in a terminal, plain lines in a log."""

    def __init__(self, jobs: Sequence[Job], n_before: int, what: str) -> None:
        self.jobs, self.n_before, self.what = jobs, n_before, what
        self.console = _console()
        self.outcomes: dict[Path, Outcome] = {}
        self.n_slots = 1
        self.start, self.wall_start = time.monotonic(), time.time()

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line, above the live table if there is one."""
        _say(self.console, text, style)

    @contextmanager
    def live(self, n_slots: int) -> Iterator[None]:
        """Show the table for the duration."""
        from rich.live import Live

        self.n_slots = n_slots
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self.table, console=self.console, refresh_per_second=1, transient=True):
            yield

    def take(self, outcome: Outcome) -> None:
        """Note how a run ended, and say so at once."""
        self.outcomes[outcome.job.folder] = outcome
        count = f"[{len(self.outcomes)}/{len(self.jobs)}]"
        if outcome.state == "done":
            found = [metrics] if (metrics := outcome.job.metrics()) else []
            split = "test" if outcome.job.test else "val"
            words = [f"{split} {_judged(found, split)}", f"{outcome.seconds:.0f} s", self.time_left()]
            self.say(f"{count} done     {outcome.job.name}   {', '.join(filter(None, words))}")
            return
        if outcome.message == NOT_STARTED:
            return
        self.say(f"{count} {outcome.state:<8} {outcome.job.name}   {outcome.message}", "red")
        if outcome.state == "failed":
            for line in outcome.tail:
                self.say(f"    {line}")

    def time_left(self) -> str:
        """What is left at the pace of the runs that are done."""
        n_done = sum(outcome.state != "stopped" for outcome in self.outcomes.values())
        n_left = len(self.jobs) - len(self.outcomes)
        if not n_left or not n_done:
            return ""
        return f"about {_duration((time.monotonic() - self.start) / n_done * n_left)} left"

    def table(self) -> Table:
        """One line a run, as many as the terminal holds: those that run first, then what failed, waits, is done."""
        rows = sorted((self._row(job) for job in self.jobs), key=lambda row: _ORDER.index(row[1]))
        table = _table(None, ["run", "state", "step", "metric", "time left"])
        room = max(4, self.console.height - 8)
        for row in rows[:room]:
            table.add_row(*row, style=_STYLES.get(row[1]))
        counts = {state: sum(row[1] == state for row in rows) for state in _ORDER}
        words = [f"{n} {state}" for state, n in counts.items() if n]
        table.caption = ", ".join([*words, *filter(None, [self.time_left()])])
        return table

    def _row(self, job: Job) -> tuple[str, str, str, str, str]:
        outcome = self.outcomes.get(job.folder)
        if outcome is not None:
            found = [metrics] if outcome.state == "done" and (metrics := job.metrics()) else []
            judged = _judged(found, "test" if job.test else "val") or outcome.message
            return job.name, outcome.state, "", judged, f"took {_duration(outcome.seconds)}"
        if not job.touched_since(self.wall_start):
            return job.name, "waiting", "", "", ""
        now = progress(job)
        if now is None:
            return job.name, "running", "", "", ""
        return job.name, "running", f"{now.step:,}/{now.steps:,}", now.metrics, now.left


_ORDER = ("running", "failed", "stopped", "waiting", "done")
_STYLES = {"running": "bold", "failed": "red", "done": "green", "waiting": "dim"}


def _choices(tune: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(tune, values, strict=True)) for values in itertools.product(*tune.values()))


def _say(console: Console, text: str, style: str | None = None) -> None:
    # A path or a line of a log stays in one piece.
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _by_validation(metrics: Mapping[str, Any]) -> tuple[float, float]:
    """Least is best: by accuracy, where equal (or without accuracy) by loss."""
    loss = metrics.get("val/loss")
    return -(metrics.get("val/accuracy") or 0.0), math.inf if loss is None else loss


def _console() -> Console:
    from rich.console import Console

    # A log has no width of its own: lines there are as long as they are.
    return Console() if sys.stdout.isatty() else Console(width=200)


def _table(title: str | None, columns: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _heading(option: str) -> str:
    return option.removeprefix("mixer.")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' if n != 1 else ''}"


def _ranges(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))


def _judged(found: Sequence[Mapping[str, Any]], split: str) -> str:
    """The first metric of `JUDGED_BY` that the runs have: mean, and spread where there are several."""
    for name in JUDGED_BY:
        values = [m[f"{split}/{name}"] for m in found if m.get(f"{split}/{name}") is not None]
        if values:
            spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
            return f"{name.replace('_', ' ')} {statistics.mean(values):.4g}{spread}"
    return ""


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
