"""Importing zoo.training without lightning is an error that tells how to install it."""

from __future__ import annotations

from tests import python
from zoo.extras import how_to_install

ABSENT = """
import sys

sys.modules["lightning"] = None
import zoo.training
try:
    from zoo.training import SequenceModule
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_lightning_the_error_tells_what_to_install() -> None:
    message = f"zoo.training needs lightning: {how_to_install('lightning', 'train')}"
    assert python("-c", ABSENT).stdout == f"{message}\n"
