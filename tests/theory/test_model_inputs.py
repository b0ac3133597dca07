"""`model_inputs`: sequences for a model from a text, from arrays, from a plugin, or random.

The tests of `zoo heads` cover the task of a run.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from zoo import Backbone
from zoo.theory import model_inputs as module
from zoo.theory.model_inputs import USUAL_LENGTH, model_inputs
from zoo.theory.scores import accuracy

MODEL = Backbone({"name": "identity"}, 4, 1, vocab_size=128, n_outputs=3)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text in a model's folder, with a tokenizer that makes one token per letter."""

    def from_pretrained(path: str) -> Any:
        if not (Path(path) / "vocabulary").is_file():
            raise OSError("no vocabulary\nin that folder")
        return lambda words: {"input_ids": [ord(letter) for letter in words]}

    transformers = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setattr(module, "require_extra", lambda package, extra: transformers)
    (tmp_path / "config.json").touch()
    (tmp_path / "vocabulary").touch()
    file = tmp_path / "text"
    file.write_text("abcdefghijklmn")
    return file


def test_a_text_is_cut_into_pieces(text: Path) -> None:
    found = model_inputs(str(text.parent), MODEL, 4, 2, 1, text=text)
    pieces = ["".join(map(chr, row)) for row in (*found.inputs.tolist(), *found.others.tolist())]
    assert pieces == ["abcd", "efgh", "ijkl"]
    assert found.score is None
    assert "2 pieces of 4 tokens" in found.where
    short = model_inputs(str(text.parent), MODEL, 2, 2, None, text=text)  # uses the whole text
    assert (len(short.inputs), len(short.others)) == (2, 5)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.write_text("abc"), "{text} has 3 tokens; 3 sequences of 4 need 12: give a longer text"),
        (lambda text: text.unlink(), "--text {text} cannot be read: No such file or directory"),
        (lambda text: text.write_bytes(b"\xff\xfe"), "--text {text} is not UTF-8 text"),
        (
            lambda text: (text.parent / "config.json").unlink(),
            "{text.parent} has no tokenizer for --text, which needs ",
        ),
        (
            lambda text: (text.parent / "vocabulary").unlink(),
            "{text.parent} has no tokenizer for --text: no vocabulary",
        ),
    ],
)
def test_an_unusable_text_is_a_one_line_error(spoil: Any, message: str, text: Path) -> None:
    spoil(text)
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(text=text))}.*$"):
        model_inputs(str(text.parent), MODEL, 4, 2, 1, text=text)


def test_arrays_give_inputs_and_a_score_and_wrong_ones_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    file = tmp_path / "arrays.npz"
    inputs, labels = rng.integers(128, size=(2, 5, 6))
    np.savez(file, inputs=inputs.astype(np.uint8), labels=labels % 3)
    found = model_inputs("nowhere", MODEL, None, 2, 3, arrays=file)
    assert found.inputs.dtype == torch.int64
    assert found.inputs.tolist() == inputs[:2].tolist()
    assert found.others.tolist() == inputs[2:].tolist()
    outputs = torch.nn.functional.one_hot(torch.from_numpy(labels[2:] % 3), 3).double()
    assert found.score is not None
    assert found.score(outputs) == accuracy(torch.from_numpy(labels[2:] % 3))(outputs) == 1.0
    np.savez(file, inputs=inputs)
    assert model_inputs("nowhere", MODEL, None, 2, None, arrays=file).score is None
    for seq_len, n_others, says in ((4, 1, "combined with --text or --seq_len"), (None, 4, "6 sequences of 6 need 36")):
        with pytest.raises(ValueError, match=says):
            model_inputs("nowhere", MODEL, seq_len, 2, n_others, arrays=file)
    for name, value, most in (("inputs", 128, 127), ("labels", -1, 2)):
        spoilt = {"inputs": inputs, "labels": labels % 3} | {name: np.full_like(inputs, value)}
        np.savez(file, **spoilt)
        with pytest.raises(ValueError, match=rf"arrays\.npz: {name} must lie in 0\.\.{most}, got {value}$"):
            model_inputs("nowhere", MODEL, None, 2, 1, arrays=file)
    for spoilt in (labels / 3, labels[..., None] % 3):  # not (5, 6) classes, not (5, 6, 3) numbers
        np.savez(file, inputs=inputs, labels=spoilt)
        with pytest.raises(ValueError, match=r"labels must be \(5, 6\) classes or \(5, 6, 3\) numbers, got \(5, 6"):
            model_inputs("nowhere", MODEL, None, 2, 1, arrays=file)
    for none in (np.where(np.arange(5)[:, None] < 2, labels % 3, -100), np.full((5, 6, 3), np.nan)):
        np.savez(file, inputs=inputs, labels=none)
        with pytest.raises(ValueError, match="3 sequences on which cut models are scored have no labels"):
            model_inputs("nowhere", MODEL, None, 2, 3, arrays=file)
    np.savez(file, inputs=inputs, labels=np.full((5, 6, 3), np.inf))
    with pytest.raises(ValueError, match="labels must be finite"):
        model_inputs("nowhere", MODEL, None, 2, 3, arrays=file)
    np.savez(file, inputs=inputs, lengths=np.full(5, 6))
    assert model_inputs("nowhere", MODEL, None, 2, 3, arrays=file).inputs.tolist() == inputs[:2].tolist()
    np.savez(file, inputs=inputs, lengths=np.arange(2, 7))  # padding would be taken for input
    with pytest.raises(ValueError, match="lengths must be 6, got 2"):
        model_inputs("nowhere", MODEL, None, 2, 3, arrays=file)
    for content in (b"", b"no arrays"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"must be a \.npz file"):
            model_inputs("nowhere", MODEL, None, 2, 1, arrays=file)


def test_inputs_from_a_plugin_take_precedence_over_random_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    known = model_inputs("nowhere", MODEL, 3, 1, 1)
    offer = {"a task": lambda path, *_: known if path == "known" else None}
    monkeypatch.setattr(module, "offered", {module.OFFERS: offer}.__getitem__)
    assert model_inputs("known", MODEL, None, 2, 3) is known
    assert len(model_inputs("other", MODEL, None, 2, 3).others) == 3


def test_random_sequences_are_reproducible(tmp_path: Path) -> None:
    first, again = (model_inputs(str(tmp_path), MODEL, None, 2, 3) for _ in range(2))
    assert (first.inputs.shape, first.others.shape) == ((2, USUAL_LENGTH), (3, USUAL_LENGTH))
    assert first.inputs.equal(again.inputs)
    assert first.others.equal(again.others)
    assert not first.inputs.equal(first.others[:2])
    assert len(model_inputs("nowhere", MODEL, 2, 2, None).others) == 24
