"""The test suite: one folder per package under test, and helpers that all of them share.

The other shared parts are `tests.reference` (NumPy references), `tests.cases` (mixers and options) and
`tests.tolerances`.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder."""


def slow(*values: Any, unless: bool = False, id: str | None = None) -> Any:  # noqa: A002 - as pytest calls it
    """A case of a parametrised test that only `make test-slow` runs, unless `unless` is true."""
    return pytest.param(*values, marks=() if unless else pytest.mark.slow, id=id)


@contextmanager
def refused(match: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """Assert that the block raises an error with a one-line message that matches the pattern."""
    with pytest.raises(kind, match=match) as caught:
        yield
    assert "\n" not in str(caught.value)


def error_line(capsys: pytest.CaptureFixture[str], program: str = "train.py", output: str | None = None) -> str:
    """The single line on stderr, which must be an error of `program`; assert stdout too if `output` is given."""
    out, err = capsys.readouterr()
    assert output is None or out == output
    assert re.fullmatch(rf"{re.escape(program)}: error: [^\n]+\n", err), err
    return err


def holding(*words: str) -> str:
    """A pattern that matches a text with all these words, in any order."""
    return "".join(f"(?=.*{re.escape(word)})" for word in words)


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises this error for any arguments."""

    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def python(*argv: str, status: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a subprocess at the project's root, and assert its exit status."""
    options = {"cwd": ROOT, "capture_output": True, "text": True} | options
    done = subprocess.run([sys.executable, *argv], check=False, **options)
    assert done.returncode == status, f"{done.stdout}{done.stderr}"
    return done


def install(folder: Path, package: str, **groups: dict[str, str]) -> None:
    """Write the metadata of an installed package with these entry points to `folder`, which must be on sys.path."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines: list[str] = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
