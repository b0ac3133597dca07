"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zoo.files import write_atomically


@pytest.mark.parametrize("content", ["τ\n", b"\x89PNG\r\n"])
def test_text_and_bytes_arrive_as_they_are(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before, and longer")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
