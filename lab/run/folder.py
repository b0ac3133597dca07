"""Write the folder of a run, after checking that it is new or holds the same run."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.config import Command
from lab.plain import read_mapping, write_yaml
from lab.run.environment import environment
from lab.run.files import CONFIG, ENVIRONMENT, EVENTS, HEADS, METRICS, RUNGS
from lab.run.identity import deciding_options, run_name
from lab.run.lock import locked
from lab.run.metrics import Metrics
from lab.run.record import (
    CHECKSUM,
    CHECKSUMS,
    LEAK,
    checksum,
    checksum_of,
    read_fields,
    read_metrics,
    read_rungs,
    same_stop,
)
from zoo.errors import UsageError
from zoo.loading.names import BEST, CHECKPOINTS, LAST, PREVIOUS
from zoo.report.files import as_json, write_atomically
from zoo.targets import expanded

TRIAL_SHOWN = 14
"""Number of characters of a trial's name that TensorBoard's HParams tab shows."""


@dataclass(frozen=True)
class RunFolder:
    """The files of a run: configuration, environment, checkpoints, TensorBoard events, metrics.json once finished."""

    run_dir: Path
    name: str
    seed: int

    @classmethod
    def of(cls, command: Command) -> RunFolder:
        """Return the folder of a command, named by task and mixer with their non-default options, and the seed."""
        config = command.config
        return cls(expanded(config["run_dir"]), run_name(config, command.defaults), config["seed"])

    @property
    def path(self) -> Path:
        return self.run_dir / self.name / f"seed{self.seed}"

    @property
    def trial(self) -> str:
        """The run's name in TensorBoard, whose first characters distinguish mixer, seed and configuration."""
        mixer = self.name.rpartition("/")[2].partition("-")[0]
        suffix = f"-{self.seed} {hashlib.sha256(self.name.encode()).hexdigest()[:4]}"
        shown = max(1, TRIAL_SHOWN - len(suffix))
        return f"{mixer[:shown]}{suffix} {self.name}/seed{self.seed}"

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

    def holds(self, checkpoint: str | Path) -> bool:
        """Return whether a checkpoint lies in this folder."""
        return Path(checkpoint).resolve().parent == self.checkpoints.resolve()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes, and create it if needed; see `lab.run.lock.locked`.

        Raises:
            UsageError: another process trains there, or the folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path))
            except OSError as error:
                raise self._unwritable(error) from None
            yield

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Check that the folder is new, or holds the same configuration.

        Raises:
            UsageError: another configuration; the message has the first key that differs.
        """
        file = self.path / CONFIG
        if not file.exists():
            return
        there, here = (deciding_options(values) for values in (read_mapping(file), config))
        for key in sorted(there.keys() | here.keys()):
            if there.get(key) != here.get(key):
                values = f"{key} is {there.get(key)!r} there, {here.get(key)!r} here"
                raise UsageError(f"{self.path} holds another run: {values}; give another --run_dir, or --overwrite")

    def check_data(self, fingerprint: Mapping[str, Any]) -> None:
        """Check that a run that has already started still reads the same data.

        Raises:
            UsageError: other data.
        """
        file = self.path / ENVIRONMENT
        recorded = read_fields(file)
        if file.exists() and "data" not in recorded:
            raise UsageError(f"{file} is damaged, so the run's data cannot be verified; use --overwrite to rerun")
        if recorded and recorded.get("data") != json.loads(as_json(fingerprint)):
            instead = "restore the original data, or give another --run_dir, or --overwrite"
            raise UsageError(f"{self.path} was started with other data: {instead}")

    def metrics(self) -> Metrics | None:
        """Return the metrics of a finished run; None if there are none.

        Raises:
            UsageError: the file was not written by train.py.
        """
        try:
            return read_metrics(self.path)
        except ValueError as error:
            raise UsageError(f"{self.path / error.args[0]}; use --overwrite to rerun") from None

    def checkpoint_for(self, command: Command) -> Path | None:
        """Return the checkpoint that the command resumes from or tests; None for a new run.

        A run resumes from `last`; if that is damaged, from `previous`; if both are, from `best`, which may be many
        steps older. In each case the run ends as if it had never stopped.

        Raises:
            ValueError: no checkpoint to test; all are damaged, or `best` is, which resuming cannot restore.
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
            raise ValueError(f"damaged: {damaged}; use --overwrite to rerun")
        return whole[0]

    def set_aside_damaged(self) -> list[Path]:
        """Rename the damaged checkpoints that `checkpoint_for` skipped, and return their new paths.

        Otherwise the next save would replace the last good checkpoint by a damaged one.

        Raises:
            UsageError: the folder cannot be written.
        """
        from zoo.loading.saved import is_whole

        damaged = [file for file in (self.last, self.previous) if file.is_file() and not is_whole(file)]
        try:
            return [file.replace(file.with_name(f"{file.name}.damaged")) for file in damaged]
        except OSError as error:
            raise self._unwritable(error) from None

    def prepare(
        self,
        config: Mapping[str, Any],
        checkpoint: Path | None,
        fingerprint: Mapping[str, Any],
        leak: str = "",
        *,
        overwrite: bool = False,
    ) -> None:
        """Create the folder and write the files whose content is known before training.

        Without a checkpoint to resume from, the files of an earlier run are deleted. With a checkpoint of another
        folder, the best checkpoint of that folder is copied too: its score is the one to beat.

        Args:
            config: configuration of the run.
            checkpoint: checkpoint to resume from; None for a new run.
            fingerprint: fingerprint of the task's data.
            leak: how the model reads later positions; empty if it does not.
            overwrite: whether to delete the files of an earlier run also if the checkpoint is of another folder.

        Raises:
            UsageError: the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / METRICS).unlink(missing_ok=True)
            if checkpoint is None or (overwrite and not self.holds(checkpoint)):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                kept = (RUNGS, HEADS, f"{EVENTS}*")
                for old in itertools.chain.from_iterable(map(self.path.glob, kept)):
                    old.unlink()
            best = None if checkpoint is None else checkpoint.parent / self.best.name
            if best is not None and best.is_file() and not self.best.exists():
                self.best.parent.mkdir(exist_ok=True)
                write_atomically(self.best, best.read_bytes())
            result = {key: value for key, value in config.items() if key != "run_dir"}
            write_atomically(self.path / CONFIG, write_yaml(result))
            write_atomically(self.path / ENVIRONMENT, as_json(environment() | {"data": fingerprint, LEAK: leak}))
        except OSError as error:
            raise self._unwritable(error) from None

    def write_metrics(self, metrics: Metrics) -> None:
        """Finish the run: write metrics.json with checksums; a number that is not finite is null."""
        content = metrics | {CHECKSUMS: {name: checksum_of(self.path / name) for name in (CONFIG, ENVIRONMENT)}}
        write_atomically(self.path / METRICS, as_json(content | {CHECKSUM: checksum(as_json(content).encode())}))

    def write_rung(self, stop_at: float, metrics: Metrics) -> None:
        """Add the metrics of a run that stopped at a step or a share of its steps."""
        others = [each for each in read_rungs(self.path) if not same_stop(each["stop_at"], stop_at)]
        write_atomically(self.path / RUNGS, as_json([*others, {"stop_at": stop_at} | metrics]))

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"cannot write the run folder {self.path}: {error.strerror}")
