"""Sequences for a model: pieces of a text, or drawn at random. Those of a run's task are tested with `zoo heads`."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zoo import Backbone
from zoo.theory import model_inputs as module
from zoo.theory.model_inputs import USUAL_LENGTH, model_inputs

MODEL = Backbone({"name": "identity"}, 4, 1, vocab_size=128, n_outputs=3)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text in a model's folder, whose tokens are its letters."""

    def from_pretrained(path: str) -> Any:
        if not (Path(path) / "vocabulary").is_file():
            raise OSError("no vocabulary\nin that folder")
        return lambda words: {"input_ids": [ord(letter) for letter in words]}

    transformers = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setattr(module, "require_extra", {"transformers": transformers}.__getitem__)
    (tmp_path / "config.json").touch()
    (tmp_path / "vocabulary").touch()
    file = tmp_path / "text"
    file.write_text("abcdefghijklmn")
    return file


def test_a_text_is_cut_into_pieces(text: Path) -> None:
    found = model_inputs(str(text.parent), MODEL, text, 4, 2, 1)
    pieces = ["".join(map(chr, row)) for row in (*found.inputs.tolist(), *found.others.tolist())]
    assert pieces == ["abcd", "efgh", "ijkl"]
    assert found.score is None
    assert found.where == f"2 pieces of 4 tokens of {text}"


def test_unless_told_otherwise_a_short_text_is_used_up(text: Path) -> None:
    found = model_inputs(str(text.parent), MODEL, text, 2, 2, None)
    assert (len(found.inputs), len(found.others)) == (2, 5)
    assert found.scored.endswith("on 5 other sequences")
    assert len(model_inputs("nowhere", MODEL, None, 2, 2, None).others) == 24


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.write_text("abc"), "{text} has 3 tokens; 3 sequences of 4 need 12: give a longer text"),
        (lambda text: text.unlink(), "--text {text} cannot be read: No such file or directory"),
        (lambda text: text.write_bytes(b"\xff\xfe"), "--text {text} is not text in UTF-8"),
        (
            lambda text: (text.parent / "config.json").unlink(),
            "{text.parent} has no tokenizer for --text, which takes ",
        ),
        (
            lambda text: (text.parent / "vocabulary").unlink(),
            "{text.parent} has no tokenizer for --text: no vocabulary",
        ),
    ],
)
def test_a_text_that_cannot_serve_is_refused_in_one_line(spoil: Any, message: str, text: Path) -> None:
    spoil(text)
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(text=text))}.*$"):
        model_inputs(str(text.parent), MODEL, text, 4, 2, 1)


def test_without_a_text_sequences_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    first, again = (model_inputs(str(tmp_path), MODEL, None, None, 2, 3) for _ in range(2))
    assert (first.inputs.shape, first.others.shape) == ((2, USUAL_LENGTH), (3, USUAL_LENGTH))
    assert first.inputs.equal(again.inputs)
    assert first.others.equal(again.others)
    assert not first.inputs.equal(first.others[:2])
    assert first.where == f"2 random sequences of {USUAL_LENGTH} positions"
