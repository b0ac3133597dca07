"""Training with Lightning, which only this part of zoo imports: the module, metrics, checkpoints and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo.naming import lazy_names

if TYPE_CHECKING:
    from zoo.training.apart import log_apart, scores_apart
    from zoo.training.callbacks import NonFiniteLoss, NonFiniteLossError, Reached, ReseedEachStep, Throughput
    from zoo.training.checkpoints import AtomicCheckpointIO, Checkpoints, Interrupt, Interrupted, Pause, Paused
    from zoo.training.events import CurveLogger, log_result, write_hparams
    from zoo.training.figures import TheoryFigures
    from zoo.training.lengths import length_figure, log_lengths, scores_at_lengths
    from zoo.training.module import SequenceModule

_HOMES = {
    "AtomicCheckpointIO": "zoo.training.checkpoints",
    "Checkpoints": "zoo.training.checkpoints",
    "CurveLogger": "zoo.training.events",
    "Interrupt": "zoo.training.checkpoints",
    "Interrupted": "zoo.training.checkpoints",
    "NonFiniteLoss": "zoo.training.callbacks",
    "NonFiniteLossError": "zoo.training.callbacks",
    "Pause": "zoo.training.checkpoints",
    "Paused": "zoo.training.checkpoints",
    "Reached": "zoo.training.callbacks",
    "ReseedEachStep": "zoo.training.callbacks",
    "SequenceModule": "zoo.training.module",
    "TheoryFigures": "zoo.training.figures",
    "Throughput": "zoo.training.callbacks",
    "length_figure": "zoo.training.lengths",
    "log_apart": "zoo.training.apart",
    "log_lengths": "zoo.training.lengths",
    "log_result": "zoo.training.events",
    "scores_apart": "zoo.training.apart",
    "scores_at_lengths": "zoo.training.lengths",
    "write_hparams": "zoo.training.events",
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
    "log_apart",
    "log_lengths",
    "log_result",
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
