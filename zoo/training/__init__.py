"""Training with Lightning: module, metrics, checkpoints and callbacks. The rest of zoo does not import Lightning."""

from __future__ import annotations

from typing import Any

from zoo.extras import how_to_install
from zoo.lazy import lazy_names

_import, __dir__, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("lightning", "tensorboard", "torchmetrics"):
            raise
        raise ModuleNotFoundError(
            f"zoo.training needs {package}: {how_to_install(package, 'train')}", name=package
        ) from None
