"""Test a trained model on several sets of batches, each by itself, and write the scores to TensorBoard."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from zoo.training.module import Batch, SequenceModule

Key = TypeVar("Key", bound=Hashable)


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
    by_fact = module.test_score_by
    scores: dict[Key, dict[str, float | None]] = {}
    try:
        for key, loader in batches:
            found = trainer.test(module, loader, verbose=False)  # pyright: ignore[reportArgumentType]
            # Nothing is found where --trainer.limit_test_batches is zero.
            named = {name.removeprefix("test/"): score for each in found for name, score in each.items()}
            scores[key] = {name: score for name, score in named.items() if "/" not in name}
    finally:
        trainer.loggers, module.test_score_by = loggers, by_fact
    return scores


def log_apart(trainer: L.Trainer, kind: str, scores: Mapping[str, Mapping[str, float | None]]) -> None:
    """Write what `scores_apart` found to TensorBoard as `test_<score>_by_<kind>/<key>`."""
    for each in trainer.loggers:
        if isinstance(each, TensorBoardLogger) and trainer.is_global_zero:
            for key, found in scores.items():
                for name, score in found.items():
                    if score is not None:
                        each.experiment.add_scalar(f"test_{name}_by_{kind}/{key}", score, trainer.global_step)
