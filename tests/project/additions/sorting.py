"""Sort a list of numbers."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.spec import IGNORED, TaskSpec


class Sorting(Task):
    """Repeat a list of numbers in ascending order.

    Definition, with V = vocab_size, L = seq_len: L/2 numbers, independent and uniform on 1 ... V - 1, then L/2 zeros.
    The label at the i-th zero is the i-th smallest of the numbers.

    Source: written for this test.

    Prediction: Counting is enough: a state of vocab_size - 1 counts determines the answers.

        >>> task = Sorting(vocab_size=9, seq_len=8)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*example["inputs"][0])
        7 6 5 3 0 0 0 0
        >>> print(*example["labels"][0])
        -100 -100 -100 -100 3 5 6 7

    Args:
        vocab_size: number of tokens, the zero included.
        seq_len: length of the sequence, even.
    """

    def __init__(self, vocab_size: int = 16, seq_len: int = 32) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 3)
        self.seq_len = self._whole("seq_len", seq_len, 2)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len, self.vocab_size, chance=1 / (self.vocab_size - 1), labelled=self.seq_len // 2
        )

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        numbers = rng.integers(1, self.vocab_size, size=(n, self.seq_len // 2))
        inputs = np.concatenate((numbers, np.zeros_like(numbers)), axis=1)
        labels = np.concatenate((np.full_like(numbers, IGNORED), np.sort(numbers, axis=1)), axis=1)
        return {"inputs": inputs, "labels": labels}
