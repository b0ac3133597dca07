"""Memorization: store a fixed map from keys to values in the parameters."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators import mad
from tasks.generators.placing import labels_at
from tasks.spec import TaskSpec


class Memorization(Task):
    """Recall the values of keys from a map that is the same in every sequence and split.

    Definition, with V = vocab_size: keys are 0 ... K - 1 with K = (V - 1) // 2, values K ... V - 2, and V - 1 is the
    question. The map gives each key a different value, drawn uniformly without replacement by the generator of
    map_seed. A sequence is key, question, key, question, ...; keys are drawn uniformly with replacement. The label at a
    question is the value of the key before it. The input does not contain the map, so the parameters must store it.

    Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD), arXiv 2403.17844; published
    with 256 training examples.

    Prediction: The answer depends only on the previous token, so the number of parameters in channel mixers and
    embedding decides. A sequence mixer only has to shift by one.

        >>> task = Memorization(vocab_size=8, seq_len=10)
        >>> task.values
        array([5, 3, 4])
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           2    7    1    7    1    7    0    7    0    7
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100    4 -100    3 -100    3 -100    5 -100    5

    Args:
        vocab_size: number of tokens, the question included.
        seq_len: length of a sequence, even.
        map_seed: seed of the map; the same for all splits and data seeds.
    """

    reported: ClassVar[str] = mad.REPORTED

    def __init__(self, vocab_size: int = 256, seq_len: int = 32, map_seed: int = 0) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 5)
        self.seq_len = self._whole("seq_len", seq_len, 2)
        self.map_seed = self._whole("map_seed", map_seed, 0)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(self.seq_len, self.vocab_size, chance=1 / len(self.values), labelled=self.seq_len // 2)

    @cached_property
    def values(self) -> np.ndarray:
        """The value of each key, int64 (n_keys,)."""
        n_keys = (self.vocab_size - 1) // 2
        return np.random.default_rng(self.map_seed).permutation(np.arange(n_keys, self.vocab_size - 1))[:n_keys]

    def input_text(self, token: int) -> str:
        return "?" if token == self.vocab_size - 1 else str(token)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        keys = rng.integers(len(self.values), size=(n, self.seq_len // 2))
        inputs = np.full((n, self.seq_len), self.vocab_size - 1, dtype=np.int64)
        inputs[:, 0::2] = keys
        return {"inputs": inputs, "labels": labels_at(np.arange(1, self.seq_len, 2), self.values[keys], self.seq_len)}
