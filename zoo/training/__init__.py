"""Training with Lightning, which only this part of zoo imports: the module, metrics, checkpoints and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.training.callbacks import NonFiniteLoss, NonFiniteLossError, Reached, ReseedEachStep, Throughput
    from zoo.training.checkpoints import AtomicCheckpointIO, Checkpoints, Interrupt, Interrupted, Pause, Paused
    from zoo.training.events import CurveLogger, log_result, log_split_scores, write_hparams
    from zoo.training.figures import TheoryFigures
    from zoo.training.lengths import length_figure, log_lengths, scores_apart, scores_at_lengths
    from zoo.training.module import SequenceModule

_HOMES = {
    "zoo.training.callbacks": "NonFiniteLoss NonFiniteLossError Reached ReseedEachStep Throughput",
    "zoo.training.checkpoints": "AtomicCheckpointIO Checkpoints Interrupt Interrupted Pause Paused",
    "zoo.training.events": "CurveLogger log_result log_split_scores write_hparams",
    "zoo.training.figures": "TheoryFigures",
    "zoo.training.lengths": "length_figure log_lengths scores_apart scores_at_lengths",
    "zoo.training.module": "SequenceModule",
}

__all__ = [
    "AtomicCheckpointIO",
    "Checkpoints",
    "CurveLogger",
    "Interrupt",
    "Interrupted",
    "NonFiniteLoss",
    "NonFiniteLossError",
    "Pause",
    "Paused",
    "Reached",
    "ReseedEachStep",
    "SequenceModule",
    "TheoryFigures",
    "Throughput",
    "length_figure",
    "log_lengths",
    "log_result",
    "log_split_scores",
    "scores_apart",
    "scores_at_lengths",
    "write_hparams",
]

_import, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("lightning", "tensorboard", "torchmetrics"):
            raise
        raise ModuleNotFoundError(
            f"zoo.training needs {package}: pip install 'mixer-zoo[train]'", name=package
        ) from None
