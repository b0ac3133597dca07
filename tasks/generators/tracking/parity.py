"""Parity: whether the number of ones so far is odd."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.tracking.regular import Regular
from tasks.spec import TaskSpec


class Parity(Regular):
    """Report at every position whether the number of ones up to and including it is odd.

    Definition: bits x_1 ... x_L, independent and fair; the label at position i is x_1 + ... + x_i modulo 2. This is the
    word problem of the group of two elements, the smallest in which a state must be flipped and not only kept.

    Source: Hahn, "Theoretical Limitations of Self-Attention", arXiv 1906.06755; Grazzi et al., "Unlocking
    State-Tracking in Linear RNNs Through Negative Eigenvalues", arXiv 2411.12537, for linear recurrences, trained up to
    length 40 and tested up to 256. Both ask for the parity of the whole sequence, as with every_position=False; our
    default asks at every position.

    Prediction: The state is one bit, which the input flips. An RNN or LSTM learns it at any length. A linear recurrence
    needs an input-dependent transition with a negative eigenvalue (delta rule with beta up to 2). With decays in (0, 1)
    it fails on longer sequences, as does attention.

        >>> task = Parity(seq_len=8)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*example["inputs"][0])
        1 1 1 0 0 0 0 0
        >>> print(*example["labels"][0])
        1 0 1 1 1 1 1 1

    Args:
        seq_len: length of a sequence.
        every_position: label every position, instead of only the last one.
    """

    def __init__(self, seq_len: int = 40, every_position: bool = True) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.every_position = bool(every_position)

    @property
    def spec(self) -> TaskSpec:
        return self._regular_spec(2, np.full((self.seq_len, 2), 1 / 2))

    def guess_without_order(self) -> float:
        return 1.0

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        inputs = rng.integers(2, size=(n, self.seq_len))
        return {"inputs": inputs, "labels": self._asked(np.bitwise_xor.accumulate(inputs, axis=1))}
