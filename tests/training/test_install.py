"""zoo.training where its packages are not installed."""

from __future__ import annotations

from tests import python
from zoo.extras import how_to_install

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import zoo.training
try:
    from zoo.training import SequenceModule
except ModuleNotFoundError as error:
    print(error)
"""


def test_what_to_install_is_said_in_one_line() -> None:
    said = f"zoo.training needs lightning: {how_to_install('lightning', 'train')}"
    assert python("-c", ABSENT.format(package="lightning")).stdout == f"{said}\n"
