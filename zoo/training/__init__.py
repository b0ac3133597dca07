"""Training with Lightning: the module, its metrics, checkpoints and callbacks. The only room of zoo with lightning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.training.callbacks import HParams, NonFiniteLoss, NonFiniteLossError, ReseedEachStep, Throughput
    from zoo.training.checkpoints import AtomicCheckpointIO, Checkpoints, Interrupt, Interrupted
    from zoo.training.module import SequenceModule

_HOMES = {
    "AtomicCheckpointIO": "zoo.training.checkpoints",
    "Checkpoints": "zoo.training.checkpoints",
    "HParams": "zoo.training.callbacks",
    "Interrupt": "zoo.training.checkpoints",
    "Interrupted": "zoo.training.checkpoints",
    "NonFiniteLoss": "zoo.training.callbacks",
    "NonFiniteLossError": "zoo.training.callbacks",
    "ReseedEachStep": "zoo.training.callbacks",
    "SequenceModule": "zoo.training.module",
    "Throughput": "zoo.training.callbacks",
}

__all__ = [
    "AtomicCheckpointIO",
    "Checkpoints",
    "HParams",
    "Interrupt",
    "Interrupted",
    "NonFiniteLoss",
    "NonFiniteLossError",
    "ReseedEachStep",
    "SequenceModule",
    "Throughput",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
