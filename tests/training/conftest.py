"""Warnings that Lightning itself raises on this torch; every other warning is an error here as elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

THIRD_PARTY = (
    # lightning 2.6.6, _pytree.py, on torch 2.13
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
    # the data is in memory: there is nothing for workers to do
    "ignore:The '.*_dataloader' does not have many workers:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in THIRD_PARTY:
                item.add_marker(pytest.mark.filterwarnings(warning))
