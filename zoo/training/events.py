"""What a run tells TensorBoard besides its curves: the HParams tab's options and numbers; no curve of the epoch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger

_SPLIT_SCORE = re.compile(r"(val|test)/([^/]+/.+)")


class CurveLogger(TensorBoardLogger):
    """Lightning's logger without its curve of the epoch, which would be the first chart.

    A score that is split, as `test/accuracy_by_distance/<=8`, is in a group of charts of its own,
    `test_accuracy_by_distance`, and not among the scores.
    """

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        shown = {_SPLIT_SCORE.sub(r"\1_\2", tag): value for tag, value in metrics.items() if tag != "epoch"}
        super().log_metrics(shown, step)


class HParams(Callback):
    """Tell TensorBoard's HParams tab the run's options, at the start of fit, and that it is over, at the end of it.

    The tab has as metrics the scalars of the runs, in the order of the alphabet, and shows five: `log_result` writes
    those that a comparison is about. (A list of options and metrics, as torch's `add_hparams` writes it, is read of one
    run alone, and hides what the others have. Without any the tab shows first what differs.)

    Args:
        options: what the run is compared by; None, a list and the like as text.
        trial: name of the run in the tab, which has room for its first fourteen characters.
    """

    def __init__(self, options: Mapping[str, Any], trial: str) -> None:
        plain = (bool, int, float, str)
        self.options = {name: value if isinstance(value, plain) else str(value) for name, value in options.items()}
        self.trial = trial

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._write(trainer, hparams_pb(self.options, trial_id=self.trial))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        from torch.utils.tensorboard.summary import hparams

        self._write(trainer, hparams({}, {})[2])

    def _write(self, trainer: L.Trainer, summary: Any) -> None:
        for logger in _boards(trainer):
            logger.experiment.file_writer.add_summary(summary)


def log_result(trainer: L.Trainer, result: Mapping[str, int | float | None]) -> None:
    """Write the numbers that runs are compared by as `result/<name>`, at the step that training ended at."""
    for logger in _boards(trainer):
        for name, value in result.items():
            if value is not None:
                logger.experiment.add_scalar(f"result/{name}", value, trainer.global_step)
        logger.save()


def _boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """The loggers that write TensorBoard's events; in the first process alone."""
    return [each for each in trainer.loggers if isinstance(each, TensorBoardLogger)] if trainer.is_global_zero else []
