"""The command line of sweep.py: experiment files, flags of train.py with several values, and flags of its own."""

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
  --seed 0-4                      a range of integers, both ends included, for any flag
  EXPERIMENT.yaml                 flags and values from a file (configs/experiment/); flags win over it
  --setting NAME                  one of the file's settings, such as small or full

  --tune lr=1e-4..1e-2            pick the value for each configuration by validation on its first seed, then test it.
                                  LOW..HIGH:N means N log-spaced values, by default two per decade; or give a list.
                                  If the best learning rate is at an end, rates beyond it are tried too
  --tune_seeds 100,101            rank trials by their mean over these seeds, which are not tested
  --rungs 1/8,1/4,1/2             shares of the steps after which the better half of the trials continues from its
                                  checkpoints; after the last share only the best one, as the first seed's run. All
                                  continue until one is a tenth of the way from a guess to a perfect score. 1: train all
                                  to the end. Default: the last of these three, enough to halve the trials down to one
  --match params=1e6              choose d_model so that every model has this number of parameters (within 5 %)
  --match state=64KiB             choose the mixer's state size (or d_model) so that every state has this size

  --slots N                       runs at a time; default: the GPUs, or the cores
  --per_device N                  instead of --slots: runs at a time on each GPU; without a GPU, on the CPU
  --engine ray [--address HOST]   run as tasks of Ray, here or on a cluster whose nodes share this folder; a cluster
                                  has no --slots: each run reserves a core and, if there is one, a GPU
  --run_dir DIR  --name NAME      keep the runs in DIR/NAME (runs/<the experiment's name>)
  --dry_run                       print the grid and stop
  --overwrite                     restart every run from scratch

The window of a tuned learning rate (docs/tuning.md) is the range of good rates around the best one, in octaves. A rate
is good if its score, less chance, is at least 90 % of the best at the last rung that it reached (for an error: 1 - the
error; for bits: at most 1/0.9 of the best). "≥" means that the window may be wider: it reaches an end of the grid, or a
rate at whose last rung no trial beat a guess.

An option of the grid that a mixer lacks is left out for it, but a tuned option must exist in all mixers. To resume,
repeat the command. Exit status: 0 every run is done; 1 some failed; 2 invalid command line; 130 interrupted.

examples:
  sweep.py --mixer attention,hybrid --mixer.n_heads 1,2,4 --task mqar --seed 0-4 --trainer.max_steps 500
  sweep.py --mixer lstm,ssd --match params=1e6 --tune lr=1e-4..1e-2 --seed 0-2
  sweep.py configs/experiment/tracking.yaml --setting small
"""


@dataclass
class Request:
    """A parsed command line: files of experiments, flags of train.py with their values, and flags of sweep.py."""

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
        """Parse a command line; return None if it asks for help.

        Raises:
            UsageError: a flag without a value, an invalid value of one of sweep.py's own flags, flags that cannot be
                combined.
        """
        request = cls()
        for flag, value in read_flags(argv, ("help", *SWITCHES), request.files):
            if flag == "help":
                return None
            if flag in SWITCHES:
                setattr(request, flag, True)
            elif value is None and flag in NOT_SWEPT:
                raise UsageError(f"--{flag} cannot be swept; use it with train.py")
            elif value is None:
                raise UsageError(f"--{flag} needs a value; see sweep.py --help")
            else:
                request._take(flag, value.typed)
        if request.address is not None and request.engine != "ray":
            raise UsageError("--address is the address of a Ray cluster: it needs --engine ray")
        if request.address is not None and request.slots is not None:
            raise UsageError("--slots and --address cannot be combined: the resources of the cluster limit its runs")
        return request

    def _take(self, flag: str, value: str) -> None:
        if flag in ("setting", "address", "name"):
            setattr(self, flag, value)
        elif flag == "run_dir":
            self.run_dir = Path(value)
        elif flag in ("slots", "per_device"):
            if not value.isdecimal() or int(value) < 1:
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
            # Every run reads every file, through an absolute path, since a run may start in another folder.
            self.flags.setdefault("config", [[]])[0].append(str(Path(value).resolve()))
        elif flag.endswith("+") and flag in self.flags:
            raise UsageError(f"--{flag} may be given once; list several callbacks in a --config file")
        else:
            self.flags[usual_flag(flag)] = values_of("", f"--{flag}", value)

    def experiments(self) -> list[Experiment]:
        """Return the experiments of the files, overridden by the flags; without files, one experiment of the flags.

        Raises:
            UsageError: no files and no flags, an invalid file, two experiments that would share a folder, flags of
                tuning without --tune.
        """
        if not self.files:
            if self.setting is not None:
                raise UsageError(
                    "--setting needs the file of an experiment: give one, such as configs/experiment/tracking.yaml"
                )
            if not self.flags and not self.tune and not self.match:
                raise UsageError("nothing to run: give flags with values, or the file of an experiment; see --help")
            bases = [Experiment(self.name or f"sweep-{digest([self.flags, self.tune, self.match], 8)}")]
        else:
            for file, (group, registry) in itertools.product(self.files, REGISTRIES.items()):
                if file in [*registry]:  # a registered name; `in registry` would also accept paths
                    raise UsageError(f"{file} is not the file of an experiment; give --{group} {file}")
            bases = [read_experiment(file, self.setting) for file in self.files]
        found = []
        for base in bases:
            over = base.overridden(self.flags)
            tune, match = over.tune | self.tune, over.match | self.match
            tuning = {"tune": tune, "tune_seeds": self.tune_seeds or over.tune_seeds, "rungs": self.rungs or over.rungs}
            found.append(replace(over, name=self.name or over.name, match=match, **tuning))
        folders = [f"{each.name}/{each.setting or ''}" for each in found]
        if shared := [folder for folder in folders if folders.count(folder) > 1]:
            where = f"{folders.count(shared[0])} experiments would share the folder {self.run_dir / shared[0]}"
            raise UsageError(f"{where}: give each its own name, or run them one by one with their own --run_dir")
        for flag, given in (("tune_seeds", self.tune_seeds), ("rungs", self.rungs)):
            if given and not any(each.tune for each in found):
                raise UsageError(f"--{flag} has no effect without --tune")
        return found
