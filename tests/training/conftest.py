"""Ignore two known warnings of Lightning in the tests of training; all other warnings stay errors."""

from __future__ import annotations

from pathlib import Path

import pytest

THIRD_PARTY = (
    # lightning 2.6.6, _pytree.py, on torch 2.13
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
    # the data is in memory, so workers would not help
    "ignore:The '.*_dataloader' does not have many workers:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in THIRD_PARTY:
                item.add_marker(pytest.mark.filterwarnings(warning))
