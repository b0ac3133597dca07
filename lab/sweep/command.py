"""The command line of sweep.py: experiment files, flags of train.py, and how to run them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.config import REGISTRIES, read_flags
from lab.plain import digest
from lab.sweep.experiment import Experiment, read_experiment, seeds_of, usual_flag, values_of
from lab.sweep.grid import NOT_SWEPT
from lab.sweep.matching import target
from lab.sweep.tuning import rungs_of
from zoo.errors import UsageError, unknown

PROGRAM = "sweep.py"
ENGINES = ("local", "ray")
SWITCHES = ("dry_run", "overwrite")

HELP = """\
usage: sweep.py [EXPERIMENT.yaml ...] [--FLAG VALUE[,VALUE ...] ...]

Run train.py for every combination of the values given: on this machine, or on a Ray cluster.

  --FLAG A,B,C                    any flag of train.py, with one value or several; [a,b] is one value,
                                  and so is a,b for a flag that takes a list, such as --task.test_lengths
  --seed 0-4                      a range, both ends included, for any flag that counts
  EXPERIMENT.yaml                 flags and values from a file (configs/experiment/); flags win over it
  --setting NAME                  which of the file's settings, such as small or full

  --tune lr=1e-4..1e-2            picked for each configuration by validation on its first seed; then tested.
                                  LOW..HIGH:N are N values with equal ratios, by default two per decade; or a list
                                  If a rate at an end is picked, rates beyond it are tried too
  --tune_seeds 100,101            tune on the mean over seeds of their own, which are not tested
  --rungs 1/8,1/4,1/2             shares of its steps after which the better half of the trials continues, from its
                                  checkpoints; after the last share the best trial, as the first seed's run. All go on
                                  while none is a tenth of the way from a guess to a perfect score. 1: all train to the
                                  end. Default: the last of these three that halve the trials down to one
  --match params=1e6              choose d_model so that every model has this number of parameters (within 5 %)
  --match state=64KiB             choose the mixer's state size (or d_model) so that every state has this many bytes

  --slots N                       runs at a time; default: the GPUs, or the cores
  --per_device N                  or: runs at a time on each GPU; without a GPU, on the CPU
  --engine ray [--address HOST]   as tasks of Ray, here or on a cluster whose nodes share this folder
  --run_dir DIR  --name NAME      runs are kept in DIR/NAME (runs/<the experiment's name>)
  --dry_run                       print the grid and stop
  --overwrite                     start every run anew

The window of a tuned learning rate (docs/tuning.md) is the octaves over which the score, less chance, is within 90 % of
the best (an error: the part of 1 that is explained; bits: at most 1/0.9 of the best), each rate compared at the last
rung that it reached; "≥" if it reaches an end of the grid, or a rate at whose last rung none did better than a guess.

An option of the grid that a mixer lacks is left out for it; one that is tuned all mixers must have. The same command
continues. Exit status: 0 when every run is done, 1 when some failed, 2 for a command that is not valid, 130 when
interrupted.

examples:
  sweep.py --mixer attention,hybrid --mixer.n_heads 1,2,4 --task mqar --seed 0-4 --trainer.max_steps 500
  sweep.py --mixer lstm,ssd --match params=1e6 --tune lr=1e-4..1e-2 --seed 0-2
  sweep.py configs/experiment/tracking.yaml --setting small
"""


@dataclass
class Request:
    """A command line: experiments' files, flags with their values, and how to carry them out."""

    files: list[str] = field(default_factory=list)
    flags: dict[str, list[Any]] = field(default_factory=dict)
    tune: dict[str, list[Any]] = field(default_factory=dict)
    tune_seeds: tuple[int, ...] = ()
    rungs: tuple[float, ...] | None = None
    match: dict[str, float] = field(default_factory=dict)
    setting: str | None = None
    slots: int | None = None
    per_device: int | None = None
    engine: str = "local"
    address: str | None = None
    run_dir: Path = Path("runs")
    name: str | None = None
    dry_run: bool = False
    overwrite: bool = False

    @classmethod
    def read(cls, argv: Sequence[str]) -> Request | None:
        """Read a command line; return None if it asks for help.

        Raises:
            UsageError: a flag without a value, invalid values of sweep.py's own flags.
        """
        request = cls()
        for flag, value in read_flags(argv, ("help", *SWITCHES), request.files):
            if flag == "help":
                return None
            if flag in SWITCHES:
                setattr(request, flag, True)
            elif value is None and flag in NOT_SWEPT:
                raise UsageError(f"--{flag} cannot be swept; give it to train.py")
            elif value is None:
                raise UsageError(f"--{flag} needs a value; see sweep.py --help")
            else:
                request._take(flag, value.typed)
        return request

    def _take(self, flag: str, value: str) -> None:
        if flag in ("setting", "address", "name"):
            setattr(self, flag, value)
        elif flag == "run_dir":
            self.run_dir = Path(value)
        elif flag in ("slots", "per_device"):
            if not value.isdigit() or int(value) < 1:
                raise UsageError(f"--{flag} must be a whole number >= 1, got {value}")
            setattr(self, flag, int(value))
            if self.slots and self.per_device:
                raise UsageError("--slots and --per_device cannot be combined: both limit the runs at a time")
        elif flag == "engine":
            if value not in ENGINES:
                raise UsageError(unknown("engine", value, ENGINES))
            self.engine = value
        elif flag == "rungs":
            self.rungs = rungs_of("--rungs", value)
        elif flag == "tune_seeds":
            self.tune_seeds = seeds_of("", "--tune_seeds", value)
        elif flag in ("tune", "match"):
            name, given, text = value.partition("=")
            if not given:
                example = "lr=1e-4..1e-2" if flag == "tune" else "params=1e6"
                raise UsageError(f"--{flag} expects a name and values such as {example}, got {value}")
            if flag == "tune":
                self.tune[name] = values_of("", f"--tune {name}", text)
            else:
                self.match[name] = target(name, text)
        elif flag == "config":
            # Every file is part of every run; paths hold wherever a run is started.
            self.flags.setdefault("config", [[]])[0].append(str(Path(value).resolve()))
        else:
            self.flags[usual_flag(flag)] = values_of("", f"--{flag}", value)

    def experiments(self) -> list[Experiment]:
        """Return the experiments of the files, each overridden by the command's flags; or one made only of the flags.

        Raises:
            UsageError: neither files nor flags, files that are not valid.
        """
        if not self.files:
            if self.setting is not None:
                raise UsageError(
                    "--setting is for an experiment's file: name one, such as configs/experiment/tracking.yaml"
                )
            if not self.flags and not self.tune and not self.match:
                raise UsageError("nothing to run: give flags with values, or an experiment's file; see sweep.py --help")
            bases = [Experiment(self.name or f"sweep-{digest([self.flags, self.tune, self.match], 8)}")]
        else:
            for file, (group, registry) in itertools.product(self.files, REGISTRIES.items()):
                if file in [*registry]:  # not a target, which a path is too
                    raise UsageError(f"{file} is no experiment's file; give --{group} {file}")
            bases = [read_experiment(file, self.setting) for file in self.files]
        found = []
        for base in bases:
            over = base.overridden(self.flags)
            tune, match = over.tune | self.tune, over.match | self.match
            tuning = {"tune": tune, "tune_seeds": self.tune_seeds or over.tune_seeds, "rungs": self.rungs or over.rungs}
            found.append(replace(over, name=self.name or over.name, match=match, **tuning))
        return found
