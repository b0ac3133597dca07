"""TensorBoard: the logger of a run, tags of split scores, options and results for the HParams tab."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from zoo.report.events import write_events


class CurveLogger(TensorBoardLogger):
    """Lightning's TensorBoard logger with a choice of the first charts, and without the curve of the epoch.

    Args:
        args: as for Lightning's.
        first: {name of a metric: its tag}. TensorBoard sorts charts by tag, capitals first, and opens two groups.
        options: as for Lightning's.
    """

    def __init__(self, *args: Any, first: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first = dict(first or {})

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().log_metrics({self._first.get(tag, tag): y for tag, y in metrics.items() if tag != "epoch"}, step)


def log_split_scores(trainer: L.Trainer, scores: Mapping[str, Any]) -> None:
    """Write the test scores that are split, each in a group of charts of its own, and not among the scores.

    The tags are `test_<score>_by_<fact>/<=<bound>` and `test_<score>_by_<kind>/<name>`, such as by segment.

    Args:
        trainer: with the loggers.
        scores: nested: {"by_<fact>": [{"at_most": bound, score: value}, ...], "by_<kind>": {name: {score: value}}}.
    """
    tags = {}
    for group, parts in scores.items():
        if isinstance(parts, list):
            parts = {f"<={part['at_most']}": {k: v for k, v in part.items() if k != "at_most"} for part in parts}
        if isinstance(parts, Mapping):
            tags |= {f"test_{score}_{group}/{part}": v for part, each in parts.items() for score, v in each.items()}
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.log_metrics({tag: value for tag, value in tags.items() if value is not None}, trainer.global_step)


def write_hparams(file: Path, options: Mapping[str, Any], trial: str, started: float) -> None:
    """Write a file of events with a run's options for TensorBoard's HParams tab; atomically, and only if it changes.

    Put the file next to the run's other events. TensorBoard keeps the first options that it reads of a run, so the name
    must sort first.

    The tab takes the scalars of the runs as metrics, in alphabetical order, and shows five: `log_result` writes the
    metrics by which runs are compared. (A list of options and metrics, as torch's `add_hparams` writes it, is read from
    only one run and hides other columns. Without a list the tab shows all columns, the options that vary first.)

    Args:
        file: path of the file; its name must contain "tfevents".
        options: the options by which the run is compared; lists and the like are written as text. Those that are None
            are left out: a column of None would look as if it varied between runs with the option and runs without.
        trial: name of the run in the tab, which shows its first fourteen characters.
        started: when the run began, in seconds since 1970.

    Raises:
        OSError: the file cannot be written.
    """
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    plain = (bool, int, float, str)
    known = {
        name: value if isinstance(value, plain) else str(value) for name, value in options.items() if value is not None
    }
    summary = hparams_pb(known, trial_id=trial, start_time_secs=started)
    data = summary.value[0].metadata.plugin_data
    # In one order: whether the file changes must not hang on how a process hashes names.
    data.content = HParamsPluginData.FromString(data.content).SerializeToString(deterministic=True)
    write_events(file, [(0, summary)], started)


def log_result(trainer: L.Trainer, result: Mapping[str, int | float | None]) -> None:
    """Write the numbers that runs are compared by as `result/<name>`, at the step that training ended at.

    The HParams tab then shows the run as finished.
    """
    from torch.utils.tensorboard.summary import hparams

    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            for name, value in result.items():
                if value is not None:
                    logger.experiment.add_scalar(f"result/{name}", value, trainer.global_step)
            logger.experiment.file_writer.add_summary(hparams({}, {})[2])
            logger.save()
