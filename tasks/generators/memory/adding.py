"""Adding: sum the two marked numbers of a sequence."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.spec import TaskSpec


class Adding(Task):
    """Add the two marked numbers of a sequence, one in each half.

    Definition, with L = seq_len: channel 0 holds L numbers drawn uniformly from [0, 1), channel 1 is 1 at two positions
    and 0 elsewhere. The first of them is drawn uniformly from the first floor(L/2) positions, the second from the rest.
    The only label, at the last position, is the sum of the two marked numbers of channel 0. The best guess that ignores
    the input is 1, with mean squared error 1/6 and R² = 0.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997, in the form of
    Arjovsky, Shah and Bengio, arXiv 1511.06464; the default length is that of state-spaces/s4.

    Prediction: The numbers to store depend on the input. Gates (LSTM, selective SSMs) and attention can select them; a
    linear time-invariant mixer cannot, except through the nonlinearity between its layers. A plain RNN's gradient
    vanishes over a few hundred positions.

        >>> task = Adding(seq_len=6)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(np.round(example["inputs"][0].T, 2))
        [[0.85 0.64 0.51 0.27 0.31 0.04]
         [1.   0.   0.   1.   0.   0.  ]]
        >>> print(np.round(example["labels"][0, :, 0], 2))
        [ nan  nan  nan  nan  nan 1.12]

    Args:
        seq_len: length of a sequence.
    """

    def __init__(self, seq_len: int = 1000) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 2)

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.regression(self.seq_len, d_input=2, labelled=1)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        half, rows = self.seq_len // 2, np.arange(n)
        inputs = np.zeros((n, self.seq_len, 2), dtype=np.float32)
        inputs[:, :, 0] = rng.random((n, self.seq_len), dtype=np.float32)
        first, second = rng.integers(half, size=n), rng.integers(half, self.seq_len, size=n)
        labels = np.full((n, self.seq_len, 1), np.nan, dtype=np.float32)
        labels[:, -1, 0] = inputs[rows, first, 0] + inputs[rows, second, 0]
        inputs[rows, first, 1] = inputs[rows, second, 1] = 1
        return {"inputs": inputs, "labels": labels}
