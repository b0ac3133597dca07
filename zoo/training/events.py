"""TensorBoard output of a run: its logger, test scores by fact, and options and results for the HParams tab."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from zoo.report.events import write_events


class CurveLogger(TensorBoardLogger):
    """Lightning's TensorBoard logger, without the curve of the epoch, and with a choice of the charts shown first.

    Args:
        args: see `TensorBoardLogger`.
        first: {name of a metric: its tag} for charts to show first. TensorBoard sorts charts by tag, capitals first,
            and opens the first two groups.
        options: see `TensorBoardLogger`.
    """

    def __init__(self, *args: Any, first: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first = dict(first or {})

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().log_metrics({self._first.get(tag, tag): y for tag, y in metrics.items() if tag != "epoch"}, step)


def log_split_scores(trainer: L.Trainer, scores: Mapping[str, Any]) -> None:
    """Log the test scores that are split by a fact or a kind (such as segment), each in a separate group of charts.

    The tags are `test_<score>_by_<fact>/<=<bound>` and `test_<score>_by_<kind>/<name>`.

    Args:
        trainer: its loggers are used.
        scores: nested: {"by_<fact>": [{"at_most": bound, score: value}, ...], "by_<kind>": {name: {score: value}}}.
            Other entries are ignored.
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
    """Write an event file with a run's options for TensorBoard's HParams tab, atomically and only if it changes.

    Put the file next to the run's other event files. TensorBoard uses the first options that it reads for a run, so the
    file's name must sort first.

    As metrics the tab shows the first five scalars in alphabetical order; `log_result` writes the ones to compare.
    (torch's `add_hparams` also writes a list of options and metrics. TensorBoard reads this list from one run only, and
    it hides other columns. Without a list the tab shows all columns, the options that vary first.)

    Args:
        file: path of the file; its name must contain "tfevents".
        options: options to compare runs by; values that are not numbers, booleans or strings are written as text.
            Options that are None are omitted: otherwise they would seem to vary between runs with and without them.
        trial: name of the run in the tab, which shows the first fourteen characters.
        started: start of the run, in seconds since 1970.

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
    # Deterministic order, so that the file does not change with the hash seed of the process.
    data.content = HParamsPluginData.FromString(data.content).SerializeToString(deterministic=True)
    write_events(file, [(0, summary)], started)


def log_result(trainer: L.Trainer, result: Mapping[str, int | float | None]) -> None:
    """Log the numbers to compare runs by as `result/<name>` at the last step; HParams shows the run as finished."""
    from torch.utils.tensorboard.summary import hparams

    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            for name, value in result.items():
                if value is not None:
                    logger.experiment.add_scalar(f"result/{name}", value, trainer.global_step)
            logger.experiment.file_writer.add_summary(hparams({}, {})[2])
            logger.save()
