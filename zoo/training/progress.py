"""The progress bar of a training run."""

from __future__ import annotations

import logging
import math
import shutil
import sys
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from tqdm.auto import tqdm

TITLE = "training"
SHOWN = ("train/loss", "train/accuracy", "val/accuracy", "val/relative_squared_error")
NARROW, NARROW_BAR = 110, "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"
"""Terminals with fewer columns get a shorter format, without speed and training accuracy."""
OPS = logging.getLogger("zoo.ops")


class Progress(Callback):
    """A bar over the optimizer steps of the whole run, with loss and accuracy every `every` steps.

    During a step the title shows the latest log message of `zoo.ops`, for example while a kernel compiles.

    Args:
        every: optimizer steps between two updates of loss and accuracy.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._bar: Any = None
        self._title = TITLE
        self._level = logging.NOTSET
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self._set_title(record.getMessage())

    def _set_title(self, title: str) -> None:
        if title != self._title:
            self._title = title
            self._bar.set_description(title)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        columns = None if "ipykernel" in sys.modules else min(120, shutil.get_terminal_size().columns)
        self._is_narrow = columns is not None and columns < NARROW
        self._bar = tqdm(
            total=int(total) if math.isfinite(total) else None,
            initial=trainer.global_step,
            desc=self._title,
            unit=" steps",
            ncols=columns,
            bar_format=NARROW_BAR if self._is_narrow else None,
            # A log file gets fewer updates than a terminal.
            mininterval=0.1 if sys.stderr.isatty() else 3,
            disable=not trainer.is_global_zero,
        )
        OPS.addHandler(self._handler)
        self._level = OPS.level
        OPS.setLevel(logging.INFO)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._set_title(TITLE)
        done = trainer.global_step - self._bar.n
        if done and trainer.global_step % self.every == 0:
            metrics = trainer.callback_metrics
            names = [name for name in SHOWN if name in metrics and not (self._is_narrow and name == "train/accuracy")]
            shown = {name.replace("train/", ""): f"{float(metrics[name]):.4f}" for name in names}
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update(done)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            OPS.removeHandler(self._handler)
            OPS.setLevel(self._level)
            self._bar.close()
