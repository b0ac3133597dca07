"""Test a trained model on several sets of batches, such as other sequence lengths, and log the scores as a curve."""

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
"""{length: score}; None for a length that the model does not accept or that was not tested."""


def scores_apart(
    trainer: L.Trainer, module: SequenceModule, batches: Iterable[tuple[Key, Iterable[Batch]]]
) -> dict[Key, dict[str, float | None]]:
    """Test the module on each set of batches and return the scores, without logging them.

    Args:
        trainer: runs the tests.
        module: tested with its current weights; no checkpoint is read.
        batches: pairs of a set's name and its test batches.

    Returns:
        {score: value} for each set, without the scores that are split by facts.
    """
    loggers, trainer.loggers = trainer.loggers, []
    results = module.results
    scores: dict[Key, dict[str, float | None]] = {}
    try:
        for key, loader in batches:
            module.results = {}
            trainer.test(module, loader, verbose=False)  # pyright: ignore[reportArgumentType]
            # With --trainer.limit_test_batches 0 there are no results.
            found = module.results.get("test", {})
            scores[key] = {name: score for name, score in found.items() if not isinstance(score, list)}
    finally:
        trainer.loggers, module.results = loggers, results
    return scores


def scores_at_lengths(
    trainer: L.Trainer, module: SequenceModule, batches: Iterable[tuple[int, Iterable[Batch]]]
) -> Scores:
    """Return the module's test score at each length, without logging the scores.

    A length that the mixers do not accept (beyond their `max_seq_len`) gets a warning in the log and the score None.

    Args:
        trainer: runs the tests.
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
    """Log the curve `test_by_length/<name>` to TensorBoard, with lengths as steps."""
    for each in trainer.loggers:
        if isinstance(each, TensorBoardLogger) and trainer.is_global_zero:
            for length, score in scores.items():
                if score is not None:
                    each.experiment.add_scalar(f"test_by_length/{name}", score, length)
