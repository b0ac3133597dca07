"""zoo.training where its packages are not installed."""

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


def test_what_to_install_is_said_in_one_line() -> None:
    said = f"zoo.training needs lightning: {how_to_install('lightning', 'train')}"
    assert python("-c", ABSENT).stdout == f"{said}\n"
