"""Even pairs: parity of the number of changes between neighbouring bits."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.tracking.regular import Regular
from tasks.spec import TaskSpec


class EvenPairs(Regular):
    """Decide whether the number of pairs 01 and 10 among neighbouring bits is odd.

    Definition: bits x_1 ... x_L, independent and fair; the label at the last position is the number of i < L with
    x_i != x_(i+1), modulo 2. This equals x_1 + x_L modulo 2. A model that uses this fact stores one bit and never flips
    it, so the task is easier than parity, and separates models that compare from models that count.

    Source: Delétang et al., "Neural Networks and the Chomsky Hierarchy", arXiv 2207.02098, trained on lengths up to 40
    and tested up to 500; the only label is at the end. Also in Beck et al., "xLSTM", arXiv 2405.04517.

    Prediction: The first and the last bit decide. Attention solves it once it can find the first position; an RNN, LSTM
    or gated recurrence stores one bit. Unlike parity, the task needs no negative eigenvalue.

        >>> task = EvenPairs(seq_len=8, every_position=True)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*example["inputs"][0])
        1 1 1 0 0 0 0 0
        >>> print(*example["labels"][0])
        0 0 0 1 1 1 1 1

    Args:
        seq_len: length of a sequence, at least 2.
        every_position: label every position with the parity so far, instead of only the last one.
    """

    def __init__(self, seq_len: int = 40, every_position: bool = False) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 2)
        self.every_position = bool(every_position)

    @property
    def spec(self) -> TaskSpec:
        by_answer = np.full((self.seq_len, 2), 1 / 2)
        by_answer[0] = 1, 0
        return self._regular_spec(2, by_answer)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        inputs = rng.integers(2, size=(n, self.seq_len))
        return {"inputs": inputs, "labels": self._asked(inputs ^ inputs[:, :1])}
