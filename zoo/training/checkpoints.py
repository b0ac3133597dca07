"""Checkpoints from which a run resumes exactly, and callbacks that pause or interrupt a run.

Lightning can save at many moments, but resumes exactly from few of them. At the others it skips a validation that is
due, logs a step twice or loses a partly accumulated gradient. So we write `last` only at the end of a validation,
between two batches after a completed step that needs no validation, and at the end of training. At these moments
Lightning's record of its progress is exact, and checkpoints keep it unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from zoo.errors import UsageError
from zoo.loading.names import BEST, LAST, PREVIOUS
from zoo.ops.transforms import readable
from zoo.signals import CTRL_C, SCHEDULER, handled
from zoo.training.callbacks import NonFiniteLossError, is_logged
from zoo.training.module import BetweenSteps
from zoo.validate import require_choice, require_positive

Mode = Literal["min", "max"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to a temporary file and rename it, so that a reader never finds a partial file.

    When a new `last.ckpt` replaces an old one, the old one is kept as `previous.ckpt`, in case the new one is damaged.

    (Lightning's writer uses the system's temporary folder; moving from there to another file system is not atomic.)
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save `checkpoint` as `path`.

        Raises:
            OSError: the file cannot be written; the old file is unchanged.
        """
        path = Path(path)
        # A fixed name, so that the next save overwrites the leftover of a killed process.
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            if path.name == LAST and path.exists():
                # If the process is killed before the next line, the run resumes from `previous`.
                path.replace(path.with_name(PREVIOUS))
            temporary.replace(path)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise OSError(f"cannot write checkpoint {path}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return the message of the underlying OSError: torch's writer hides it behind an error about its own state."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    return str(error)


class Checkpoints(BetweenSteps, Checkpoint):
    """Write `best.ckpt` (by a validation metric), `last.ckpt` (to resume from) and `previous.ckpt` (its predecessor).

    `last` is written every `every_n_steps` optimizer steps, after each validation, and at the end of training; `best`
    after each validation that improves the metric. Weights that are not finite are never saved. The loggers are flushed
    before each save, so that the curves on disk reach at least to the checkpoint.

    Args:
        folder: folder of the checkpoints.
        monitor: logged name of the validation metric.
        mode: min if lower values of the metric are better, else max.
        every_n_steps: optimizer steps between two saves of `last`.

    Raises:
        ValueError: every_n_steps below 1, an unknown mode.
    """

    def __init__(
        self, folder: str | os.PathLike[str], monitor: str = "val/loss", mode: Mode = "min", every_n_steps: int = 100
    ) -> None:
        require_positive(every_n_steps=every_n_steps)
        require_choice("mode", mode, Mode)
        self.best, self.last = Path(folder) / BEST, Path(folder) / LAST
        self.monitor, self.mode, self.every_n_steps = monitor, mode, every_n_steps
        self.best_score: float | None = None
        self.best_step: int | None = None
        self._saved_step = 0
        self._due = self._stopped = False

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_step": self.best_step, "stopped": self._stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score, self.best_step = state_dict["best_score"], state_dict["best_step"]
        self._stopped = state_dict["stopped"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._saved_step = trainer.global_step
        # Lightning does not restore that training was stopped early, and would continue.
        trainer.should_stop = self._stopped and bool(trainer.early_stopping_callbacks)

    def between_steps(self, trainer: L.Trainer) -> None:
        if (self._due or trainer.global_step % self.every_n_steps == 0) and self.at_rest(trainer):
            self.save_last(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        score = self._score(trainer)
        if self._improves(score):
            self.best_score, self.best_step = score, trainer.global_step
            self._save(trainer, self.best)
        if not self.at_rest(trainer):
            self._due = True
        elif not (trainer.should_stop or trainer.global_step == trainer.max_steps):
            # `on_train_end` saves the last step, after Lightning has counted it as logged.
            self.save_last(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.save_last(trainer)

    @staticmethod
    def at_rest(trainer: L.Trainer) -> bool:
        """Return whether the last batch completed a step, so that no accumulated gradient is pending."""
        return (trainer.fit_loop.batch_idx + 1) % trainer.accumulate_grad_batches == 0

    def save_last(self, trainer: L.Trainer) -> None:
        """Write `last`, unless it was already written at this step.

        Raises:
            NonFiniteLossError: the weights are not finite; the earlier file is kept.
        """
        if trainer.global_step != self._saved_step:
            self._save(trainer, self.last)
            self._saved_step, self._due = trainer.global_step, False

    def _score(self, trainer: L.Trainer) -> float:
        if self.monitor not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics))
            raise ValueError(f"checkpoints monitor {self.monitor!r}, which is not logged; choose from: {logged}")
        return float(trainer.callback_metrics[self.monitor])

    def _improves(self, score: float) -> bool:
        if math.isnan(score):
            return False
        if self.best_score is None:
            return True
        return score < self.best_score if self.mode == "min" else score > self.best_score

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        self._stopped = trainer.should_stop
        for name, parameter in trainer.lightning_module.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise NonFiniteLossError(f"{name} is not finite", trainer.global_step)
        for logger in trainer.loggers:
            logger.save()
        trainer.save_checkpoint(path, weights_only=False)


class Interrupted(BaseException):
    """The run was stopped by `signal`; resume from `checkpoint`, if there is one.

    Like KeyboardInterrupt it is not an Exception, because a second signal may arrive in code that catches Exception.
    """

    def __init__(self, number: int, step: int, checkpoint: Path | None) -> None:
        where = f"resume from {checkpoint}" if checkpoint else "there is no checkpoint yet"
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step}: {where}")
        self.signal, self.step, self.checkpoint = number, step, checkpoint


class Paused(Exception):
    """The run stopped at the step of `Pause`, after saving `last`."""


class Pause(BetweenSteps):
    """Save `last` and stop after a given step; the run can be resumed exactly.

    The learning rate schedule is that of the whole run. If the run ends at this step or earlier, nothing happens.

    Args:
        checkpoints: writes `last`.
        stop_at: the optimizer step (int), or its fraction of all steps (float).

    Raises:
        Paused: from `Trainer.fit`.
        UsageError: from `Trainer.fit`, if training is already beyond that step.
    """

    def __init__(self, checkpoints: Checkpoints, stop_at: int | float) -> None:
        self.checkpoints, self.stop_at = checkpoints, stop_at
        self._step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        share = isinstance(self.stop_at, float)
        self._step = max(1, round(self.stop_at * trainer.estimated_stepping_batches)) if share else self.stop_at
        if trainer.global_step > self._step:
            raise UsageError(f"the run is already at step {trainer.global_step} and cannot stop at {self._step}")

    def between_steps(self, trainer: L.Trainer) -> None:
        if trainer.global_step >= self._step and self.checkpoints.at_rest(trainer):
            self.checkpoints.save_last(trainer)
            raise Paused(f"stopped at step {trainer.global_step}")


class Interrupt(BetweenSteps):
    """On Ctrl-C (SIGINT), SIGTERM or SIGUSR1, finish the step and the validation due after it, save `last`, and stop.

    A second signal stops immediately and keeps the existing `last`. With several processes, any of them may receive the
    signal. They synchronise before each step (on GPUs, where this makes the host wait, every `log_every_n_steps`
    steps), and all stop after the same step.

    Args:
        checkpoints: writes `last`.

    Raises:
        Interrupted: from `Trainer.fit`.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._asked: int | None = None
        self._handlers = contextlib.ExitStack()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Not in on_fit_start: Lightning records the handlers after that hook, and would restore ours at the end.
        self._asked = None
        self._handlers.enter_context(handled((CTRL_C, *SCHEDULER), functools.partial(self._ask, trainer)))

    def between_steps(self, trainer: L.Trainer) -> None:
        if self.checkpoints.at_rest(trainer):
            self._stop_if_asked(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop_if_asked(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._handlers.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._handlers.close()

    def _stop_if_asked(self, trainer: L.Trainer) -> None:
        asked = self._asked or 0
        if trainer.world_size > 1:
            asked = torch.full((), asked, device=trainer.strategy.root_device)
            if not readable(asked) and trainer.training and not is_logged(trainer):
                return
            asked = int(trainer.strategy.reduce(asked, reduce_op="max"))
        if asked:
            self.checkpoints.save_last(trainer)
            self._stop(asked, trainer)

    def _ask(self, trainer: L.Trainer, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            self._stop(number, trainer)
        self._asked = number

    def _stop(self, number: int, trainer: L.Trainer) -> NoReturn:
        last = self.checkpoints.last
        raise Interrupted(number, trainer.global_step, last if last.exists() else None)
