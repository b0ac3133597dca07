"""MAD's in-context recall."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.recall.mad_recall import MadRecall, draw_pairs
from tasks.spec import TaskSpec


class InContextRecall(MadRecall):
    """Keys and values in turn, the keys coming back: name the value that a key had before.

    Definition, with V = vocab_size and L = seq_len: keys are 0 ... V/2 - 1, values V/2 ... V - 1. A sequence is L/2
    pairs of a key, drawn with replacement, and its value; within a sequence each key keeps one value, drawn with
    replacement. The last key is drawn uniformly from the keys shown before. The label at a key that was shown before is
    its value. Training labels every position with its next token, including new keys and values that cannot be known,
    unless train_targets="answers".

    Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD), arXiv 2403.17844, in the
    multi-query form of its benchmark.

    Unlike there, the last value is not cut off: it ends the sequence, unlabelled, so that there are seq_len tokens.

    `distance` counts from a key back to its value's last occurrence.

    Prediction: Attention solves it, two layers with a shift between; so does a state that holds a value for each key,
    and with few keys (8 as published) a small one is enough.

        >>> task = InContextRecall(vocab_size=8, seq_len=12, train_targets="answers")
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           3    7    2    4    2    4    1    4    1    4    2    4
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100    4 -100 -100 -100    4 -100    4 -100

    Args:
        vocab_size: tokens; the lower half are keys, the upper half values.
        seq_len: length of a sequence, even.
        train_targets: labels of training, "every_token" (as published) or "answers".
    """

    def __init__(self, vocab_size: int = 16, seq_len: int = 128, train_targets: str = "every_token") -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 4)
        self.seq_len = self._whole("seq_len", seq_len, 4)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")
        self._keep_train_targets(train_targets)

    @property
    def spec(self) -> TaskSpec:
        return self._spec(self.vocab_size - self.vocab_size // 2)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        n_keys = self.vocab_size // 2
        return self._labelled(*draw_pairs(rng, n, self.seq_len // 2, n_keys, self.vocab_size - n_keys))
