"""Delay: reproduce a signal after a fixed delay."""

from __future__ import annotations

import math

import numpy as np

from tasks.base import Arrays, Task
from tasks.spec import TaskSpec

RMS = 0.5
"""Root mean square of the noise before it is shifted to begin at 0, as published."""


class Delay(Task):
    """Reproduce band-limited noise, `lag` positions later.

    Definition, with N = seq_len (plus one if odd) and K the largest k with k <= cutoff * N and k < N/2: the noise is
    w_t = sum over k = 1 ... K of a_k cos(2 pi k t / N) + b_k sin(2 pi k t / N). Its 2K coefficients are normal, with
    the variance that gives w a root mean square of 1/2. The input is x_t = w_t - w_0, which begins at 0. The label at
    position i is x_{i - lag}, and 0 at the first `lag` positions, before the repetition begins.

    At another length the lag and the band stay the same: the same delay in a longer signal.

    Source: Gu, Johnson, Timalsina, Rudra and Ré, "How to Train Your HiPPO", arXiv 2206.12037, and state-spaces/s4:
    4,000 steps of 1/4000 s, limited to 1,000 Hz, delayed by 1,000 steps. With a cutoff of 1/2, theirs also
    keeps the frequency 1/2.

    Prediction: A delay is linear and time-invariant. An SSM needs a state of 2 * cutoff * lag numbers to store the last
    `lag` positions of the signal; with a smaller state, its error falls as the state grows. A window or convolution
    shorter than the lag fails. Attention with positions solves the task.

        >>> task = Delay(seq_len=8, lag=3)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(np.round(example["inputs"][0, :, 0], 2))
        [ 0.   -0.24 -0.54 -0.37 -0.09 -0.23 -0.45 -0.24]
        >>> print(np.round(example["labels"][0, :, 0], 2))
        [ 0.    0.    0.    0.   -0.24 -0.54 -0.37 -0.09]

    Args:
        seq_len: length of a sequence.
        lag: positions between a value and its repetition, less than seq_len.
        cutoff: highest frequency in turns per position, at most 1/2 and at least 1 / seq_len.
    """

    def __init__(self, seq_len: int = 4000, lag: int = 1000, cutoff: float = 0.25) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 3)
        self.lag = self._whole("lag", lag, 1)
        self.cutoff = float(cutoff)
        self._demand(self.lag < self.seq_len, "lag must be < seq_len")
        self._period = self.seq_len + self.seq_len % 2
        in_band = math.isfinite(self.cutoff) and self.cutoff <= 0.5
        # The tolerance protects a cutoff that equals a frequency from rounding.
        self._n_frequencies = (
            min(math.floor(self.cutoff * self._period + 1e-6), self._period // 2 - 1) if in_band else 0
        )
        self._demand(self._n_frequencies >= 1, "cutoff must lie in [1 / seq_len, 0.5]")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.regression(self.seq_len, d_input=1, labelled=self.seq_len)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        coefficients = np.zeros((n, self._period // 2 + 1), dtype=np.complex128)
        # Each frequency adds (a² + b²) / 2 to the mean square, so each coefficient has variance RMS² / K.
        drawn = rng.standard_normal((n, self._n_frequencies, 2)) * (RMS / math.sqrt(self._n_frequencies))
        # irfft divides by the period and adds each frequency's conjugate: a cos + b sin is (a - ib) N / 2.
        coefficients[:, 1 : self._n_frequencies + 1] = (drawn[..., 0] - 1j * drawn[..., 1]) * (self._period / 2)
        noise = np.fft.irfft(coefficients, self._period, axis=1)[:, : self.seq_len]
        inputs = (noise - noise[:, :1]).astype(np.float32)[:, :, None]
        labels = np.zeros_like(inputs)
        labels[:, self.lag :] = inputs[:, : -self.lag]
        return {"inputs": inputs, "labels": labels}
