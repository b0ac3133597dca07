"""Steps on a circle: where do they end?"""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.tracking.regular import Regular
from tasks.spec import TaskSpec


class CycleNavigation(Regular):
    """Walk on a circle of places, back, on or not at all, and say where the walk ends.

    Definition, with m = cycle_length: tokens x_1 ... x_L, uniform in {0, 1, 2}, mean a step of -1, 0 and +1. The walk
    begins at place 0; the label at the last position is (x_1 - 1) + ... + (x_L - 1) modulo m. It is the word problem of
    the cyclic group of m elements (`group_words` with Z5) in which the tokens are only the neutral element, a generator
    and its inverse.

    Source: Delétang et al., "Neural Networks and the Chomsky Hierarchy", arXiv 2207.02098, with five places, trained on
    lengths up to 40 and tested up to 500; the only label is at the end. Also in Beck et al., "xLSTM", arXiv 2405.04517.

    Prediction: A rotation for each token: an RNN or LSTM learns it; a linear recurrence that carries the place itself
    needs complex eigenvalues that depend on the input, or two reflections per step (delta_product). One reflection, or
    a recurrence without decay, can add the steps up instead, and is right as far as its readout reduces the sum modulo
    the circle; decays below one and attention fail on longer sequences.

        >>> task = CycleNavigation(seq_len=8, every_position=True)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>2}" for token in example["inputs"][0]))
        +1  0  0 -1 -1 -1 -1 -1
        >>> print(*(f"{label:2d}" for label in example["labels"][0]))
         1  1  1  0  4  3  2  1

    Args:
        seq_len: length of a sequence.
        cycle_length: places on the circle, at least 3.
        every_position: ask at every position for the place so far, instead of at the last one.
    """

    def __init__(self, seq_len: int = 40, cycle_length: int = 5, every_position: bool = False) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.cycle_length = self._whole("cycle_length", cycle_length, 3)
        self.every_position = bool(every_position)

    @property
    def spec(self) -> TaskSpec:
        # A step's characteristic function, raised to the number of steps, gives the law of the place.
        turns = 2 * np.pi * np.arange(self.cycle_length) / self.cycle_length
        steps = np.arange(1, self.seq_len + 1)[:, None]
        law = np.fft.ifft(((1 + 2 * np.cos(turns)) / 3) ** steps, axis=1).real
        return self._regular_spec(3, law)

    def input_text(self, token: int) -> str:
        return ("-1", "0", "+1")[token]

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        inputs = rng.integers(3, size=(n, self.seq_len))
        return {"inputs": inputs, "labels": self._asked(np.cumsum(inputs - 1, axis=1) % self.cycle_length)}
