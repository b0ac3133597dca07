"""Test a trained model on sets of batches, each by itself, such as other lengths: scores, and a curve of them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from zoo.training.module import Batch, SequenceModule

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
    for length, loader in batches:
        try:
            module.backbone.state_bytes(length)
        except ValueError as refusal:
            logger.warning("length %d is not tested: %s", length, refusal)
            scores[length] = None
        else:
            scores[length] = scores_apart(trainer, module, [(length, loader)])[length].get(module.score_name)
    return scores


def log_lengths(trainer: L.Trainer, name: str, scores: Mapping[int, float | None]) -> None:
    """Draw the curve `test_by_length/<name>` in TensorBoard, whose steps are lengths."""
    for each in trainer.loggers:
        if isinstance(each, TensorBoardLogger) and trainer.is_global_zero:
            for length, score in scores.items():
                if score is not None:
                    each.experiment.add_scalar(f"test_by_length/{name}", score, length)
