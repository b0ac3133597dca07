"""Input sequences for `zoo heads`: from a file, from a plug-in that knows the model's folder, or random."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.backbone import Backbone
from zoo.extras import require_extra
from zoo.lookup import offered
from zoo.report.files import read_npz
from zoo.report.numbers import count
from zoo.theory.budget import others_within
from zoo.theory.layers import random_inputs
from zoo.theory.scores import Score, accuracy, explained
from zoo.validate import require_positive

USUAL_LENGTH = 64
"""Default length of random sequences and of pieces of a text."""

OFFERS = "zoo.inputs"
"""Group of entry points: functions with the arguments of `model_inputs` from `path` to `n_others` and its result, or
None for a path that they do not know. `lab` registers one that returns the data of a run's task."""


class ModelInputs(NamedTuple):
    """Sequences for a model, and the score of its outputs.

    Attributes:
        inputs: (n, seq, ...), sequences at which operators are read.
        others: (m, seq, ...), sequences on which a cut model is scored.
        score: score of the model's outputs at the others; None for agreement with the uncut model.
        where: the sequences, in words.
        scored: the score, in words.
        chance: score of answers that ignore the input.
    """

    inputs: Tensor
    others: Tensor
    score: Score | None
    where: str
    scored: str
    chance: float


def model_inputs(
    path: str,
    model: Backbone,
    seq_len: int | None,
    n_inputs: int,
    n_others: int | None,
    *,
    text: Path | None = None,
    arrays: Path | None = None,
) -> ModelInputs:
    """Return sequences from a file, else from a plug-in that knows the model's folder, else random ones.

    Args:
        path: path of the model.
        model: the model loaded from there.
        seq_len: sequence length; not for arrays or a run's task, which have their own.
        n_inputs: number of sequences at which operators are read.
        n_others: number of sequences on which a cut model is scored; default `others_within`.
        text: a file in UTF-8, for the tokenizer in the model's folder.
        arrays: a .npz file with `inputs`, (n, seq) tokens or (n, seq, d_input) vectors, and optionally `labels` to
            score cut models: (n, seq) classes, -100 for none, or (n, seq, n_outputs) numbers, NaN for none.

    Raises:
        ValueError: sizes that are not positive, both files, a file that is too short or cannot be read, seq_len for
            sequences that have their own.
    """
    require_positive(seq_len=seq_len, n_inputs=n_inputs, n_others=n_others)
    if arrays is not None:
        if text is not None or seq_len is not None:
            raise ValueError("--inputs cannot be combined with --text or --seq_len: the file has its own sequences")
        return _of_arrays(arrays, model, n_inputs, n_others)
    length = USUAL_LENGTH if seq_len is None else seq_len
    if text is not None:
        tokens = _tokens(path, text)
        n_pieces = len(tokens) // length
        pieces = tokens[: n_pieces * length].view(n_pieces, length)
        n_others = _others_of(model, pieces, n_inputs, n_others, f"{text} has {count(len(tokens), 'token')}")
        where = f"{count(n_inputs, 'piece')} of {length} tokens of {text}"
        return _agreeing(pieces, model, n_inputs, n_others, where)
    for offer in offered(OFFERS).values():
        if (found := offer(path, model, seq_len, n_inputs, n_others)) is not None:
            return found
    n_others = n_others or others_within(model, length, n_inputs)
    drawn = random_inputs(model, n_inputs + n_others, length, torch.Generator().manual_seed(0))
    where = f"{count(n_inputs, 'random sequence')} of {length} positions"
    return _agreeing(drawn, model, n_inputs, n_others, where)


def labelled(
    inputs: Tensor, others: Tensor, labels: Tensor, where: str, chance: float | None, regression: bool
) -> ModelInputs:
    """Return sequences with a score by labels: accuracy, or explained variance for regression."""
    name = "explained share of the labels' variance" if regression else "accuracy"
    score = (explained if regression else accuracy)(labels)
    return ModelInputs(inputs, others, score, where, f"{name} on {count(len(others), 'other')}", chance or 0.0)


def _agreeing(drawn: Tensor, model: Backbone, n_inputs: int, n_others: int, where: str) -> ModelInputs:
    """Return sequences on which a cut model is scored by `agreement` with the uncut one."""
    single = model.n_outputs == 1  # argmax is constant
    explained_share, agreeing_share = (
        "the uncut model's output variance that the cut one explains",
        "positions at which the cut model predicts the same class as the uncut one",
    )
    inputs, others = drawn[:n_inputs], drawn[n_inputs : n_inputs + n_others]
    scored = f"share of {explained_share if single else agreeing_share}, on {count(n_others, 'other sequence')}"
    return ModelInputs(inputs, others, None, where, scored, 0.0 if single else 1 / model.n_outputs)


def _others_of(model: Backbone, sequences: Tensor, n_inputs: int, n_others: int | None, size: str) -> int:
    """Return the number of sequences on which cut models are scored; ValueError, with `size`, if there are too few."""
    length, left = sequences.shape[1], len(sequences) - n_inputs
    wanted = n_others or max(1, min(others_within(model, length, n_inputs), left))
    if left < wanted:
        raise ValueError(
            f"{size}; {count(n_inputs + wanted, 'sequence')} of {length} need {(n_inputs + wanted) * length:,}: "
            "give a longer text, or fewer or shorter sequences"
        )
    return wanted


def _of_arrays(file: Path, model: Backbone, n_inputs: int, n_others: int | None) -> ModelInputs:
    try:
        held = read_npz(file)
        found = {name: torch.from_numpy(held[name]) for name in ("inputs", "labels") if name in held}
        found = {name: each if each.is_floating_point() else each.long() for name, each in found.items()}
        inputs, labels = found["inputs"], found.get("labels")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"--inputs {file} must be a .npz file with an array `inputs`: {error}") from None
    if inputs.ndim not in (2, 3):
        raise ValueError(f"--inputs {file}: inputs must be (n, seq) or (n, seq, d_input), got {tuple(inputs.shape)}")
    if "lengths" in held and (shortest := int(held["lengths"].min(initial=inputs.shape[1]))) < inputs.shape[1]:
        raise ValueError(
            f"--inputs {file}: padded sequences are not supported, lengths must be {inputs.shape[1]}, got {shortest}"
        )
    regression = labels is not None and labels.is_floating_point()
    of_classes, of_numbers = tuple(inputs.shape[:2]), (*inputs.shape[:2], model.n_outputs)
    if labels is not None and labels.shape != (of_numbers if regression else of_classes):
        raise ValueError(
            f"--inputs {file}: labels must be {of_classes} classes or {of_numbers} numbers, got {tuple(labels.shape)} "
            f"of {labels.dtype}"
        )
    if labels is not None and bool(labels.isinf().any()):
        raise ValueError(f"--inputs {file}: labels must be finite, or NaN for none, got inf")
    for name, limit in (("inputs", model.vocab_size), ("labels", model.n_outputs)):
        if limit is not None and name in found and not found[name].is_floating_point():
            values = found[name][found[name] != -100] if name == "labels" else found[name]
            if len(wrong := values[(values < 0) | (values >= limit)]):
                raise ValueError(f"--inputs {file}: {name} must lie in 0..{limit - 1}, got {int(wrong[0])}")
    n_others = _others_of(model, inputs, n_inputs, n_others, f"{file} has {inputs.shape[:2].numel():,} positions")
    where = f"{count(n_inputs, 'sequence')} of {file}"
    if labels is None:
        return _agreeing(inputs, model, n_inputs, n_others, where)
    others, wanted = (each[n_inputs : n_inputs + n_others] for each in (inputs, labels))
    if bool((wanted.isnan() if regression else wanted == -100).all()):
        raise ValueError(
            f"--inputs {file}: the {count(n_others, 'sequence')} on which cut models are scored have no labels"
        )
    return labelled(inputs[:n_inputs], others, wanted, where, None if regression else 1 / model.n_outputs, regression)


def _tokens(path: str | os.PathLike[str], text: Path) -> Tensor:
    try:
        words = text.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--text {text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--text {text} is not UTF-8 text") from None
    if not (Path(path) / "config.json").is_file():
        raise ValueError(f"{path} has no tokenizer for --text, which needs the folder of a transformers model")
    tokenizers = require_extra("transformers", "transformers")
    try:
        tokenizer = tokenizers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} has no tokenizer for --text: {' '.join(str(error).split())[:200]}") from None
    return torch.tensor(tokenizer(words)["input_ids"])
