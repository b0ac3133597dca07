"""What a run leaves behind: its folder, its name, and what its result depends on."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from lab.compare.runs import deciding_options
from lab.config import Command, UsageError, read_layer
from zoo.files import write_atomically

LONGEST_NAME = 40
"""Characters of a task's or a mixer's part: TensorBoard has room for two such names beside its charts."""
LAST_NAMED = {f"task.{name}" for name in ("n_train", "n_val", "n_test", "test_lengths")}
"""Options that say how much is trained and tested on: of a name that is cut, their end is."""
LIBRARIES = ("torch", "lightning", "numpy", "datasets", "jsonargparse", "tensorboard")


@dataclass(frozen=True)
class RunFolder:
    """What a run leaves: configuration, environment, checkpoints, TensorBoard events, and at its end metrics.json."""

    run_dir: Path
    name: str
    seed: int

    @classmethod
    def of(cls, command: Command) -> RunFolder:
        """The folder of a command: task and mixer, each with what differs from its layered defaults, and the seed."""
        config = command.config
        return cls(Path(config["run_dir"]).expanduser(), run_name(config, command.defaults), config["seed"])

    @property
    def path(self) -> Path:
        return self.run_dir / self.name / f"seed{self.seed}"

    @property
    def trial(self) -> str:
        """Its name where there is room for a few characters alone, in which configuration and seed are told apart."""
        return f"{hashlib.sha256(self.name.encode()).hexdigest()[:4]}-{self.seed} {self.name}/seed{self.seed}"

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def last(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def previous(self) -> Path:
        return self.path / "checkpoints" / "previous.ckpt"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder, and keep other processes out of it; the kernel lets them in when this one is killed.

        Folders that only the lock needed go with it: a run that is refused leaves nothing.

        Raises:
            UsageError: another process trains there, or the folder cannot be written.
        """
        from filelock import FileLock, Timeout

        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        file = self.path / "lock"
        lock = FileLock(file, blocking=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise UsageError(
                f"{self.path} is in use by {_holder(file)}; wait for it to end, or give another --run_dir"
            ) from None
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
        """Make sure that the folder is new, or holds this very configuration.

        Raises:
            UsageError: another configuration; names the first key that differs.
        """
        file = self.path / "config.yaml"
        if not file.exists():
            return
        there, here = (deciding_options(values) for values in (read_layer(file).values, config))
        for key in sorted(there.keys() | here.keys()):
            if key not in there or key not in here or there[key] != here[key]:
                values = f"{key} is {there.get(key)!r} there, {here.get(key)!r} here"
                raise UsageError(f"{self.path} holds another run: {values}; give another --run_dir, or --overwrite")

    def metrics(self) -> dict[str, Any] | None:
        """What a finished run measured; None if there is none.

        Raises:
            UsageError: a file that is not ours.
        """
        file = self.path / "metrics.json"
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise UsageError(f"{file} cannot be read: {error}; --overwrite starts the run anew") from None

    def checkpoint_for(self, command: Command) -> Path | None:
        """Where the command's training goes on, or what it tests; None for a new run.

        A run goes on from `last`; where that is damaged, from `previous`; where both are, from `best`, whose step may
        be far back. Whichever it is, the run ends as if it had never stopped.

        Raises:
            ValueError: nothing to test; nothing left to go on from; a damaged `best`, which no later step brings back.
        """
        from zoo.saved import find_checkpoint, is_whole

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
        """Rename what `checkpoint_for` passed over, and return where it is now.

        Where it was, the next save would put it in the place of the good checkpoint before it.

        Raises:
            UsageError: the folder cannot be written.
        """
        from zoo.saved import is_whole

        damaged = [file for file in (self.last, self.previous) if file.is_file() and not is_whole(file)]
        try:
            return [file.replace(file.with_name(f"{file.name}.damaged")) for file in damaged]
        except OSError as error:
            raise self._unwritable(error) from None

    def prepare(self, config: Mapping[str, Any], checkpoint: Path | None) -> None:
        """Make the folder and write what is known before training.

        Without a checkpoint to go on from, what an earlier run left is cleared. With one of another folder, the best
        checkpoint beside it comes along: the score to beat is that one's.

        Raises:
            UsageError: the folder cannot be written.
        """
        import yaml

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "metrics.json").unlink(missing_ok=True)
            if checkpoint is None:
                shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
                for old in (*self.path.glob("events.out.tfevents.*"), *self.path.glob("*_by_length.png")):
                    old.unlink()
            elif (best := checkpoint.parent / self.best.name).is_file() and not self.best.exists():
                self.best.parent.mkdir(exist_ok=True)
                write_atomically(self.best, best.read_bytes())
            result = {key: value for key, value in config.items() if key != "run_dir"}
            write_atomically(self.path / "config.yaml", yaml.safe_dump(result, sort_keys=False))
            write_atomically(self.path / "environment.json", json.dumps(environment(), indent=2) + "\n")
        except OSError as error:
            raise self._unwritable(error) from None

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Finish the run: write metrics.json, in which a number that is not finite is null."""
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        write_atomically(self.path / "metrics.json", json.dumps(plain, indent=2) + "\n")

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"cannot write the run folder {self.path}: {error.strerror}")


def _holder(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):
        return "another process"


def is_tested(metrics: Mapping[str, Any]) -> bool:
    """Whether a finished run has seen its test split: with --no_test the names of its metrics are not there."""
    return "test/loss" in metrics


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
    """The options by dotted name in which a run differs from its defaults, sorted; without names and seed."""
    values, usual = deciding_options(config), deciding_options(defaults)
    named = {"seed", "mixer.name", "task.name"}
    absent = object()
    return {key: values[key] for key in sorted(values.keys() - named) if values[key] != usual.get(key, absent)}


def _folder_name(name: str, differing: Mapping[str, Any]) -> str:
    parts = [f"{key}{_value_text(value)}" for key, value in differing.items()]
    whole = "-".join([name, *parts])
    if _safe(whole) == whole and len(whole) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:8]
    room = LONGEST_NAME - len(digest) - 1
    kept = f"{name}-{_safe(parts[0])}"[:room]
    for part in map(_safe, parts[1:]):  # a number is whole or not there
        if len(kept) + 1 + len(part) > room:
            break
        kept = f"{kept}-{part}"
    return f"{kept}-{digest}"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name)


def _value_text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, list):
        items = [(text, len(list(same))) for text, same in itertools.groupby(map(_value_text, value))]
        return "_" + "+".join(f"{n}x" * (n > 1) + text.removeprefix("_") for text, n in items)
    if isinstance(value, Mapping) and "class_path" in value:
        return f"_{value['class_path'].rpartition('.')[2]}({value.get('init_args')})"
    if value is None or isinstance(value, bool):
        return f"_{value}".lower()
    return f"_{value}"


def environment() -> dict[str, Any]:
    """What a result depends on beyond its configuration: code, versions, machine."""
    import torch

    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            return subprocess.run(
                ["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

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
