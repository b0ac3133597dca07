"""Test a trained model on sets of batches, each by itself, such as other lengths; numbers, curves and a figure."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from zoo.report.plots import new_figure, styled
from zoo.training.module import Batch, SequenceModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

Scores = dict[int, float | None]
"""{length: score}, None for a length that the model cannot take or that was not tested."""


def scores_apart(
    trainer: L.Trainer, module: SequenceModule, batches: Iterable[tuple[Key, Iterable[Batch]]]
) -> dict[Key, dict[str, float | None]]:
    """Test the module on each set of batches and return its scores; no points are added to its curves.

    Args:
        trainer: runs the tests.
        module: tested with its current weights; no checkpoint is read.
        batches: pairs of the name of a set and its test batches.

    Returns:
        Per set {score: value}, without the scores that are split by facts.
    """
    loggers, trainer.loggers = trainer.loggers, []
    results = module.results
    scores: dict[Key, dict[str, float | None]] = {}
    try:
        for key, loader in batches:
            module.results = {}
            trainer.test(module, loader, verbose=False)  # pyright: ignore[reportArgumentType]
            # There are no results if --trainer.limit_test_batches is zero.
            found = module.results.get("test", {})
            scores[key] = {name: score for name, score in found.items() if not isinstance(score, list)}
    finally:
        trainer.loggers, module.results = loggers, results
    return scores


def scores_at_lengths(
    trainer: L.Trainer, module: SequenceModule, batches: Iterable[tuple[int, Iterable[Batch]]]
) -> Scores:
    """Return the module's test score at each length; add no points to its curves.

    A length that the mixers refuse (beyond their `max_seq_len`) is reported in one line of the log and left as a gap.

    Args:
        trainer: tests.
        module: tested with its current weights; no checkpoint is read.
        batches: pairs of a length and the test batches at this length.
    """
    scores: Scores = {}

    def taken() -> Iterator[tuple[int, Iterable[Batch]]]:
        for length, loader in batches:
            scores[length] = None
            try:
                module.backbone.state_bytes(length)
            except ValueError as refusal:
                logger.warning("length %d is not tested: %s", length, refusal)
                continue
            yield length, loader

    for length, found in scores_apart(trainer, module, taken()).items():
        scores[length] = found.get(module.score_name)
    return scores


def log_lengths(trainer: L.Trainer, name: str, scores: Mapping[int, float | None], figure: Figure) -> None:
    """Draw the curve `test_by_length/<name>` in TensorBoard, whose steps are lengths, and the figure.

    The figure has a tag of its own: under the curve's tag the HParams tab would take it for a metric and show nothing.
    """
    for each in trainer.loggers:
        if isinstance(each, TensorBoardLogger) and trainer.is_global_zero:
            for length, score in scores.items():
                if score is not None:
                    each.experiment.add_scalar(f"test_by_length/{name}", score, length)
            each.experiment.add_figure(f"test/{name}_by_length", figure, close=False)


@styled
def length_figure(scores: Mapping[int, float | None], name: str, trained: int, chance: Scores, title: str) -> Figure:
    """Return the score against the length, on a logarithmic axis.

    Args:
        scores: by length; None leaves a gap.
        name: name of the score.
        trained: the length of training.
        chance: score of a guesser that ignores the input, at each length; None leaves a gap.
        title: title of the figure.
    """
    figure, (axes,) = new_figure()
    lengths = sorted(scores)
    values = [math.nan if (score := scores[length]) is None else score for length in lengths]
    axes.plot(lengths, values, marker="o", color="C0")
    axes.axvline(trained, color="C3", linestyle="--", linewidth=1.2, label=f"trained at {trained:,}")
    known = {length: level for length, level in sorted(chance.items()) if level is not None}
    if known:
        axes.plot(list(known), list(known.values()), color="0.5", linestyle=":", linewidth=1.2, label="chance")
    axes.set_xscale("log", base=2)
    if name == "accuracy":
        axes.set_ylim(-0.03, 1.03)
    elif any(0 < value < math.inf for value in values):
        axes.set_yscale("log")
    axes.set(title=title, xlabel="length of the test sequences (positions)", ylabel=f"test {name.replace('_', ' ')}")
    axes.legend()
    return figure
