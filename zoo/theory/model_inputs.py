"""Sequences for a model: those of the task that its run was trained on, a text, or drawn at random."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.backbone import Backbone
from zoo.extras import find_module, require_extra
from zoo.loading.names import CHECKPOINTS
from zoo.report.numbers import count
from zoo.theory.measure import random_inputs
from zoo.theory.model_heads import Score, accuracy, explained, others_within
from zoo.validate import require_positive

USUAL_LENGTH = 64
"""Positions of a sequence that is drawn at random or cut out of a text."""

_EXAMPLES = "lab.examples"  # of a clone: what a run was trained on


class ModelInputs(NamedTuple):
    """Sequences that a model takes.

    Attributes:
        inputs: (n, seq, ...), where operators are read.
        others: (m, seq, ...), on which a cut model is scored.
        score: of the model's outputs at the others; None for agreement with the whole model.
        where: what the sequences are, in words.
        scored: what the score is, in words.
        chance: the score of answers without the input.
    """

    inputs: Tensor
    others: Tensor
    score: Score | None
    where: str
    scored: str
    chance: float


def model_inputs(
    path: str, model: Backbone, text: Path | None, seq_len: int | None, n_inputs: int, n_others: int | None
) -> ModelInputs:
    """Return the sequences of a run's task, of a text, or random ones, in this order of preference.

    Args:
        path: of the model.
        model: that lies there.
        text: a file in UTF-8, for the tokenizer in the model's folder.
        seq_len: positions; a run's task has its own.
        n_inputs: sequences at which operators are read.
        n_others: sequences on which a cut model is scored; default `others_within`.

    Raises:
        ValueError: sizes that are not positive, a text that is too short, cannot be read or has no tokenizer, seq_len
            for a run.
    """
    require_positive(seq_len=seq_len, n_inputs=n_inputs, n_others=n_others)
    length = USUAL_LENGTH if seq_len is None else seq_len
    lab = find_module(_EXAMPLES) if text is None and (Path(path) / CHECKPOINTS).is_dir() else None
    if lab is not None:
        return _of_task(lab, path, model, seq_len, n_inputs, n_others)
    if text is not None:
        tokens = _tokens(path, text)
        if n_others is None:
            n_others = max(1, min(others_within(model, length, n_inputs), len(tokens) // length - n_inputs))
        if len(tokens) < (n_inputs + n_others) * length:
            raise ValueError(
                f"{text} has {count(len(tokens), 'token')}; {count(n_inputs + n_others, 'sequence')} of {length} need "
                f"{(n_inputs + n_others) * length:,}: give a longer text, or fewer or shorter sequences"
            )
        drawn = tokens[: (n_inputs + n_others) * length].view(-1, length)
        where = f"{count(n_inputs, 'piece')} of {length} tokens of {text}"
    else:
        n_others = n_others or others_within(model, length, n_inputs)
        drawn = random_inputs(model, n_inputs + n_others, length, torch.Generator().manual_seed(0))
        where = f"{count(n_inputs, 'random sequence')} of {length} positions"
    inputs, others = drawn.split([n_inputs, n_others])
    scored = "share of positions at which the cut model answers as the whole one does, on "
    scored += count(n_others, "other sequence")
    return ModelInputs(inputs, others, None, where, scored, 1 / model.n_outputs)


def _of_task(
    lab: Any, path: str, model: Backbone, seq_len: int | None, n_inputs: int, n_others: int | None
) -> ModelInputs:
    """Return sequences of the task that a run was trained on."""
    if seq_len is not None:
        raise ValueError(f"the task of a run has its own length: leave out seq_len={seq_len}")
    first = lab.examples(Path(path), "validation", n_inputs)
    n_others = n_others or others_within(model, first.inputs.shape[1], n_inputs)
    second = lab.examples(Path(path), "test", n_others)
    regression = second.loss == "mse"
    score = (explained if regression else accuracy)(second.labels)
    what = "share of the labels' variance that is explained" if regression else "accuracy"
    where = f"{count(len(first.inputs), 'sequence')} of {first.task}"
    scored = f"{what} on {count(len(second.inputs), 'other')}"
    return ModelInputs(first.inputs, second.inputs, score, where, scored, second.chance or 0.0)


def _tokens(path: str | os.PathLike[str], text: Path) -> Tensor:
    try:
        words = text.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--text {text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--text {text} is not text in UTF-8") from None
    if not (Path(path) / "config.json").is_file():
        raise ValueError(f"{path} has no tokenizer for --text, which takes the folder of a transformers model")
    tokenizers = require_extra("transformers")
    try:
        tokenizer = tokenizers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} has no tokenizer for --text: {' '.join(str(error).split())[:200]}") from None
    return torch.tensor(tokenizer(words)["input_ids"])
