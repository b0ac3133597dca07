"""Cycle navigation: follow steps on a circle."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.tracking.regular import Regular
from tasks.spec import TaskSpec


class CycleNavigation(Regular):
    """Follow steps of -1, 0 and +1 on a circle of places, and report the final place.

    Definition, with m = cycle_length: tokens x_1 ... x_L, uniform in {0, 1, 2}, mean a step of -1, 0 and +1. The walk
    begins at place 0; the label at the last position is (x_1 - 1) + ... + (x_L - 1) modulo m. This is the word problem
    of the cyclic group of m elements (`group_words` with Z5), with only the neutral element, a generator and its
    inverse as tokens.

    Source: Delétang et al., "Neural Networks and the Chomsky Hierarchy", arXiv 2207.02098, with five places, trained on
    lengths up to 40 and tested up to 500; the only label is at the end. Also in Beck et al., "xLSTM", arXiv 2405.04517.

    Prediction: Each token is a rotation, which an RNN or LSTM learns. A linear recurrence that stores the place needs
    complex eigenvalues that depend on the input, or two reflections per step (delta_product). One reflection, or a
    recurrence without decay, can sum the steps instead; it is right as long as its readout reduces the sum modulo m.
    Decays below one and attention fail on longer sequences.

        >>> task = CycleNavigation(seq_len=8, every_position=True)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>2}" for token in example["inputs"][0]))
        +1  0  0 -1 -1 -1 -1 -1
        >>> print(*(f"{label:2d}" for label in example["labels"][0]))
         1  1  1  0  4  3  2  1

    Args:
        seq_len: length of a sequence.
        cycle_length: number of places on the circle, at least 3.
        every_position: label every position with the place so far, instead of only the last one.
    """

    def __init__(self, seq_len: int = 40, cycle_length: int = 5, every_position: bool = False) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.cycle_length = self._whole("cycle_length", cycle_length, 3)
        self.every_position = bool(every_position)

    @property
    def spec(self) -> TaskSpec:
        # The characteristic function of a step, to the power of the number of steps, gives the distribution of places.
        turns = 2 * np.pi * np.arange(self.cycle_length) / self.cycle_length
        steps = np.arange(1, self.seq_len + 1)[:, None]
        law = np.fft.ifft(((1 + 2 * np.cos(turns)) / 3) ** steps, axis=1).real
        return self._regular_spec(3, law)

    def input_text(self, token: int) -> str:
        return ("-1", "0", "+1")[token]

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        inputs = rng.integers(3, size=(n, self.seq_len))
        return {"inputs": inputs, "labels": self._asked(np.cumsum(inputs - 1, axis=1) % self.cycle_length)}
