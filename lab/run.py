"""A run on disk: the names of its files, its states, its metrics and their names, its lock, its identity.

Only this module spells them: train.py writes them, sweeps and comparisons read them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lab.config import Command, read_layer, write_yaml
from lab.config.layers import put
from zoo.loading.names import BEST, CHECKPOINTS, LAST, PREVIOUS
from zoo.naming import UsageError, flatten
from zoo.report.files import as_json, read_json, write_atomically
from zoo.report.numbers import Number
from zoo.targets import is_target
from zoo.targets import short as short_name

CONFIG, METRICS, ENVIRONMENT, LOCK = "config.yaml", "metrics.json", "environment.json", "lock"
RUNGS = "rungs.json"
"""The run's metrics where --stop_at stopped it, by that flag's value; of one that diverged, step and reason."""
HEADS = "heads.json"
"""What `zoo heads` says of the run's model, where an experiment asked for it."""
LOG, DONE, INDEX = "log.txt", "done.json", "sweep.json"
"""What sweep.py adds: a run's output, its mark when it needs nothing more; in its own folder, which runs it has."""
EVENTS, BY_LENGTH = "events.out.tfevents.", "_by_length.png"
"""How files of TensorBoard begin; how figures of a score against length end."""
HPARAMS = f"{EVENTS}0.hparams"
"""Of these the first in the alphabet: what the HParams tab knows the run by."""

State: TypeAlias = Literal["tested", "trained", "unfinished"]
"""With and without numbers of the test split; still under way, or failed."""
Metrics: TypeAlias = dict[str, Any]
"""What metrics.json holds, None for a number that is not finite:

    {"test": {"accuracy": 0.97, "loss": 0.1, "by_distance": [{"at_most": 8, "accuracy": 0.99}, ...],
              "at_length": {"128": {"accuracy": 0.9}, ...},
              "by_segment": {"seq_len=64,n_pairs=4": {"accuracy": 0.9, "loss": 0.2, "chance": 0.02}, ...}},
     "val": {"accuracy": 0.98, "loss": 0.1}, "chance": 0.02, "floor_at_heads": {"1": 0.3, ...}, "params": 12345,
     "state_bytes": 4096, "tokens_per_second": 1e5, "steps_to_90": 300, "step": 400, "seconds": 30.1}

"steps_to_90" is the first step whose validation stood at 90 % of the way from chance to a perfect score.

A run that has not been tested has no "test". Lightning and TensorBoard know the same numbers by flat names,
`test/loss`, `test/accuracy_by_distance/<=8`, `test/accuracy_at_length/128`, `test/by_segment/seq_len=64/loss`, and so
did older files: see `nested_metrics` and `flat_metrics`.
"""

INCIDENTAL = {
    "figures_every",
    "run_dir",
    "task.cache",
    "task.cache_dir",
    "trainer.default_root_dir",
    "trainer.detect_anomaly",
    "trainer.enable_autolog_hparams",
    "trainer.enable_checkpointing",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.inference_mode",
    "trainer.limit_predict_batches",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.model_registry",
    "trainer.num_sanity_val_steps",
    "trainer.profiler",
}
"""These, and what belongs to them (trainer.logger.init_args.save_dir), decide where results go and what is shown, not
what they are: runs that differ only in them are the same."""

WATCHING = {
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "RichModelSummary",
    "RichProgressBar",
    "TQDMProgressBar",
    "ThroughputMonitor",
}
"""Lightning's callbacks that watch a run and do not change its result; any other, such as EarlyStopping, does."""

LONGEST_NAME = 40
"""Characters of a task's or a mixer's part: TensorBoard shows two such names next to its charts."""
LAST_NAMED = {f"task.{name}" for name in ("n_train", "n_val", "n_test", "test_lengths", "test_segments")}
"""Options that say how much is trained and tested on: of a name that is cut, their end is."""
LIBRARIES = ("torch", "lightning", "numpy", "datasets", "jsonargparse", "tensorboard")


@dataclass(frozen=True)
class RunFolder:
    """The files of a run: configuration, environment, checkpoints, TensorBoard events, metrics.json once finished."""

    run_dir: Path
    name: str
    seed: int

    @classmethod
    def of(cls, command: Command) -> RunFolder:
        """Return the folder of a command: task and mixer, each with the options that are not default, then the seed."""
        config = command.config
        return cls(Path(config["run_dir"]).expanduser(), run_name(config, command.defaults), config["seed"])

    @property
    def path(self) -> Path:
        return self.run_dir / self.name / f"seed{self.seed}"

    @property
    def trial(self) -> str:
        """The run's name in TensorBoard, whose first characters tell configuration and seed apart."""
        return f"{hashlib.sha256(self.name.encode()).hexdigest()[:4]}-{self.seed} {self.name}/seed{self.seed}"

    def siblings(self) -> Iterator[RunFolder]:
        """Return the other runs of the run_dir that TensorBoard knows; without those of other sweeps in that folder."""
        for file in sorted(self.run_dir.glob(f"*/*/seed*/{HPARAMS}")):
            name, seed = file.parent.parent.relative_to(self.run_dir), file.parent.name.removeprefix("seed")
            if seed.isdecimal() and file.parent != self.path:
                yield RunFolder(self.run_dir, str(name), int(seed))

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def best(self) -> Path:
        return self.checkpoints / BEST

    @property
    def last(self) -> Path:
        return self.checkpoints / LAST

    @property
    def previous(self) -> Path:
        return self.checkpoints / PREVIOUS

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder and lock it against other processes; the kernel releases the lock when this one is killed.

        Folders made only for the lock are removed with it: a run that is refused leaves nothing.

        Raises:
            UsageError: another process trains there, or the folder cannot be written.
        """
        from filelock import FileLock, Timeout

        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        file = self.path / LOCK
        lock = FileLock(file, blocking=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            by = _holder(file)
            raise UsageError(f"{self.path} is in use by {by}; wait for it to end, or give another --run_dir") from None
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            with contextlib.suppress(OSError):  # who holds the lock is a courtesy to whom it keeps out
                file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
            yield
        finally:
            # Unlinked while it is held: who opened it before finds out and opens the one that is there then.
            with contextlib.suppress(OSError):
                file.unlink()
                for folder in made:
                    folder.rmdir()
            lock.release()

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Check that the folder is new, or holds the same configuration.

        Raises:
            UsageError: another configuration; names the first key that differs.
        """
        file = self.path / CONFIG
        if not file.exists():
            return
        there, here = (deciding_options(values) for values in (read_layer(file).values, config))
        for key in sorted(there.keys() | here.keys()):
            if there.get(key) != here.get(key):  # one that is None may have come later than the run
                values = f"{key} is {there.get(key)!r} there, {here.get(key)!r} here"
                raise UsageError(f"{self.path} holds another run: {values}; give another --run_dir, or --overwrite")

    def check_data(self, fingerprint: Mapping[str, Any]) -> None:
        """Check that the run, if it has begun, reads the data that it was begun with.

        Raises:
            UsageError: other data.
        """
        there = read_fields(self.path / ENVIRONMENT).get("data")  # nothing before it is begun, or by an older version
        if there not in (None, json.loads(as_json(fingerprint))):
            instead = "put that back, or give another --run_dir, or --overwrite"
            raise UsageError(f"{self.path} was begun with other data: {instead}")

    def metrics(self) -> Metrics | None:
        """Return the metrics of a finished run; None if there are none.

        Raises:
            UsageError: the file was not written by train.py.
        """
        try:
            return read_metrics(self.path)
        except ValueError as error:
            raise UsageError(f"{self.path / error.args[0]}; --overwrite starts the run anew") from None

    def checkpoint_for(self, command: Command) -> Path | None:
        """Return the checkpoint from which the command trains on, or which it tests; None for a new run.

        A run goes on from `last`; where that is damaged, from `previous`; where both are, from `best`, which may be
        many steps older. In each case the run ends as if it had never stopped.

        Raises:
            ValueError: nothing to test; no checkpoint left to go on from; a damaged `best`, which no later step
                restores.
        """
        from zoo.loading.saved import find_checkpoint, is_whole

        if command.ckpt_path is not None:
            return Path(command.ckpt_path)
        if command.test_only:
            return find_checkpoint(self.path, "best")
        there = [file for file in (self.last, self.previous, self.best) if file.is_file()]
        if command.overwrite or not there:
            return None
        whole = [file for file in there if is_whole(file)]
        if not whole or (self.best in there and self.best not in whole):
            damaged = ", ".join(str(file) for file in there if file not in whole)
            raise ValueError(f"damaged: {damaged}; --overwrite starts the run anew")
        return whole[0]

    def set_aside_damaged(self) -> list[Path]:
        """Rename the damaged checkpoint that `checkpoint_for` skipped, and return its new path.

        Under its old name, the next save would move it over the last good checkpoint.

        Raises:
            UsageError: the folder cannot be written.
        """
        from zoo.loading.saved import is_whole

        damaged = [file for file in (self.last, self.previous) if file.is_file() and not is_whole(file)]
        try:
            return [file.replace(file.with_name(f"{file.name}.damaged")) for file in damaged]
        except OSError as error:
            raise self._unwritable(error) from None

    def prepare(self, config: Mapping[str, Any], checkpoint: Path | None, fingerprint: Mapping[str, Any]) -> None:
        """Make the folder and write the files that are known before training.

        Without a checkpoint to go on from, the files of an earlier run are deleted. With a checkpoint of another
        folder, the best checkpoint of that folder is copied too: its score is the one to beat.

        Args:
            config: of the run.
            checkpoint: where training goes on; None for a new run.
            fingerprint: of the task's data.

        Raises:
            UsageError: the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / METRICS).unlink(missing_ok=True)
            if checkpoint is None:
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                kept = (RUNGS, HEADS, f"{EVENTS}*", f"*{BY_LENGTH}")
                for old in itertools.chain.from_iterable(map(self.path.glob, kept)):
                    old.unlink()
            elif (best := checkpoint.parent / self.best.name).is_file() and not self.best.exists():
                self.best.parent.mkdir(exist_ok=True)
                write_atomically(self.best, best.read_bytes())
            result = {key: value for key, value in config.items() if key != "run_dir"}
            write_atomically(self.path / CONFIG, write_yaml(result))
            write_atomically(self.path / ENVIRONMENT, as_json(environment() | {"data": fingerprint}))
        except OSError as error:
            raise self._unwritable(error) from None

    def write_metrics(self, metrics: Metrics) -> None:
        """Finish the run: write metrics.json, in which a number that is not finite is null."""
        write_atomically(self.path / METRICS, as_json(metrics))

    def write_rung(self, stop_at: float, metrics: Metrics) -> None:
        """Note what the run has come to where it stopped for now."""
        write_atomically(self.path / RUNGS, as_json(read_rungs(self.path) | {str(stop_at): metrics}))

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"cannot write the run folder {self.path}: {error.strerror}")


def _holder(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):
        return "another process"


def read_metrics(folder: Path) -> Metrics | None:
    """Read metrics.json of a run's folder, also an older file with flat names; None where the run is not finished.

    Raises:
        ValueError: a file that cannot be read, or is not one of train.py; the message begins with its name.
    """
    try:
        found = read_json(folder / METRICS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{METRICS} cannot be read: {said_by(error)}") from None
    if not isinstance(found, dict) or "params" not in found:
        raise ValueError(f"{METRICS} is not one of train.py: it has no params")
    found = _numbers(found)
    return nested_metrics(found) if any("/" in name for name in found) else found


def read_rungs(folder: Path) -> dict[str, Metrics]:
    """Read what `RunFolder.write_rung` has noted."""
    return read_fields(folder / RUNGS)


def read_fields(file: Path) -> dict[str, Any]:
    """Return the mapping that a JSON file holds; empty where there is no such file, or none that can be read."""
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def said_by(error: Exception) -> str:
    """Return on one line, without a file's name, why a file cannot be read."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())


def _numbers(value: Any) -> Any:
    """Return the same with None for each value that is neither a number nor contains one."""
    if isinstance(value, Mapping):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return value if isinstance(value, Number) and not isinstance(value, bool) else None


def nested_metrics(flat: Mapping[str, Any]) -> Metrics:
    """Nest metrics that have flat names, as in Lightning, TensorBoard and older files.

    >>> nested_metrics({"test/loss": 0.5, "test/accuracy_at_length/8": 0.9, "chance": 0.1})
    {'test': {'loss': 0.5, 'at_length': {'8': {'accuracy': 0.9}}}, 'chance': 0.1}
    """
    metrics: Metrics = {}
    for name, value in flat.items():
        head, *rest = name.split("/", 2)
        match rest:
            case [group, bound] if bound.startswith("<="):
                score, _, fact = group.partition("_by_")
                entries = metrics.setdefault(head, {}).setdefault(f"by_{fact}", [])
                entries.append({"at_most": int(bound.removeprefix("<=")), score: value})
                entries.sort(key=lambda entry: entry["at_most"])
            case ["by_segment", scored]:
                segment, _, score = scored.rpartition("/")
                put(metrics, (head, "by_segment", segment, score), value)
            case [group, length] if group.endswith("_at_length"):
                put(metrics, (head, "at_length", length, group.removesuffix("_at_length")), value)
            case _:
                put(metrics, (head, *rest), value)
    return metrics


def flat_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers by flat names; the inverse of `nested_metrics`.

    >>> flat_metrics({"test": {"loss": 0.5, "by_distance": [{"at_most": 8, "accuracy": 0.9}]}, "chance": 0.1})
    {'test/loss': 0.5, 'test/accuracy_by_distance/<=8': 0.9, 'chance': 0.1}
    """
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        match value:
            case list():
                for entry in value:
                    bound = f"{name}/<={entry['at_most']}"
                    found |= {f"{score}_{bound}": each for score, each in entry.items() if score != "at_most"}
            case Mapping() if name == "at_length":
                for length, scores in value.items():
                    found |= {f"{score}_at_length/{length}": each for score, each in scores.items()}
            case Mapping():
                found |= {f"{name}/{inner}": each for inner, each in flat_metrics(value).items()}
            case _:
                found[name] = value
    return found


def number_at(metrics: Mapping[str, Any], *path: str) -> Number | None:
    """Return the number under these names, such as "test", "accuracy"; None where there is none."""
    found: Any = metrics
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def numbers_at(several: Iterable[Mapping[str, Any]], *path: str) -> list[Number]:
    """Return `number_at` of those metrics that have it."""
    return [value for metrics in several if (value := number_at(metrics, *path)) is not None]


def at_lengths(metrics: Mapping[str, Any], score: str) -> dict[int, Number]:
    """Return {length: test score} for the further lengths at which it was measured."""
    found = {int(n): at.get(score) for n, at in metrics.get("test", {}).get("at_length", {}).items()}
    return {length: value for length, value in found.items() if value is not None}


def by_facts(metrics: Mapping[str, Any], score: str = "accuracy") -> dict[str, dict[int, Number]]:
    """Return {fact: {bound: test score where the fact lies above the previous bound and not above this one}}."""
    found = {
        name.removeprefix("by_"): {e["at_most"]: e[score] for e in entries if e.get(score) is not None}
        for name, entries in metrics.get("test", {}).items()
        if isinstance(entries, list)
    }
    return {fact: scores for fact, scores in found.items() if scores}


def state_of(metrics: Mapping[str, Any] | None) -> State:
    """Return the state of a run by its metrics; None where there are none."""
    return "unfinished" if metrics is None else "tested" if is_tested(metrics) else "trained"


def is_tested(metrics: Mapping[str, Any]) -> bool:
    """Return whether a finished run was tested: with --no_test it has no test metrics."""
    return "loss" in metrics.get("test", {})


def deciding_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide a run's result, with the seed, by dotted name."""
    trainer = dict(config.get("trainer") or {})
    if "callbacks" in trainer:
        given = trainer["callbacks"]
        each = given if isinstance(given, list) else [] if given is None else [given]
        trainer["callbacks"] = [one for one in each if _class_name(one) not in WATCHING] or None
        config = {**config, "trainer": trainer}
    incidental = tuple(f"{key}." for key in INCIDENTAL)
    return {key: value for key, value in flatten(config) if not f"{key}.".startswith(incidental)}


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None: one that is may have come later than what was run without it."""
    return {key: value for key, value in options.items() if value is not None}


def _class_name(callback: Any) -> str:
    path = callback.get("class_path", "") if isinstance(callback, Mapping) else callback
    return str(path).rpartition(".")[2]


def run_name(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """`<task>/<mixer>`, each followed by the options that differ from `defaults`: mqar-n_pairs8/attention-n_heads2.

    The mixer's own options come before those of model and training. Long names end with a digest instead.
    """
    values, differing = deciding_options(config), differing_options(config, defaults)
    parts = []
    for group in ("task", "mixer"):
        keys = [key for key in differing if key.startswith("task.") == (group == "task")]
        keys.sort(key=lambda key: (key in LAST_NAMED, not key.startswith(f"{group}.")))
        short = {key: key.removeprefix(f"{group}.").removeprefix("trainer.") for key in keys}
        # d_conv is an option of the model and of some mixers: then the mixer's keeps its prefix.
        short = {key: key if name != key and name in values else name for key, name in short.items()}
        parts.append(_folder_name(config[group]["name"], {short[key]: values[key] for key in keys}))
    return "/".join(parts)


def differing_options(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, by sorted dotted name, in which a run differs from its defaults; no names, no seed."""
    values, usual = deciding_options(config), deciding_options(defaults)
    named = {"seed", "mixer.name", "task.name"}
    absent = object()
    return {key: values[key] for key in sorted(values.keys() - named) if values[key] != usual.get(key, absent)}


def _folder_name(name: str, differing: Mapping[str, Any]) -> str:
    shown = short_name(name)
    parts = [shown, *(f"{key}{_value_name(value)}" for key, value in differing.items())]
    whole = "-".join(parts)
    # Files of several folders may have one short name: a digest of their paths tells them apart.
    told_whole = shown == name and not _has_target(differing)
    if told_whole and _safe(whole) == whole and len(whole) <= LONGEST_NAME:
        return whole
    told = differing if shown == name else [name, differing]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
    room = LONGEST_NAME - len(digest) - 1
    kept = _safe("-".join(parts[:2]))[:room]
    for part in map(_safe, parts[2:]):  # a number is whole or not there
        if len(kept) + 1 + len(part) > room:
            break
        kept = f"{kept}-{part}"
    return f"{kept}-{digest}"


def _has_target(value: Any) -> bool:
    if isinstance(value, list | Mapping):
        return any(map(_has_target, value.values() if isinstance(value, Mapping) else value))
    return is_target(value)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name)


def _value_name(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, list):
        items = [(text, len(list(same))) for text, same in itertools.groupby(map(_value_name, value))]
        return "_" + "+".join(f"{n}x" * (n > 1) + text.removeprefix("_") for text, n in items)
    if isinstance(value, Mapping) and "class_path" in value:
        return f"_{value['class_path'].rpartition('.')[2]}({value.get('init_args')})"
    if isinstance(value, Mapping):
        return "_" + ".".join(f"{key}{_value_name(each)}" for key, each in value.items())
    if value is None or isinstance(value, bool):
        return f"_{value}".lower()
    return f"_{short_name(value) if is_target(value) else value}"


def git(*arguments: str) -> str | None:
    """Return what git prints of this code's repository; None where it fails, or where there is no repository."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def environment() -> dict[str, Any]:
    """Return what a result depends on besides its configuration: code, versions, machine."""
    from importlib import metadata  # slow, and --help does without

    import torch

    changes = git("status", "--porcelain", "--untracked-files=no")
    return {
        "command": shlex.join(sys.argv),
        "git": git("rev-parse", "HEAD"),
        "git_clean": None if changes is None else not changes,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
