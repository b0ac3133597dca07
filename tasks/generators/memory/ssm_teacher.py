"""SSM teacher: regress a linear state space model whose head count is known."""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar

import numpy as np

from tasks.base import Arrays, Task
from tasks.spec import TaskSpec


class SSMTeacher(Task):
    """Reproduce the output of a linear time-invariant teacher whose lag operators span k dimensions.

    Inputs are white: x_j ~ N(0, I). Labels are y_i = sum over lags tau = 0 ... i of G_tau x_{i - tau}. G is the
    balanced teacher of `zoo.theory.teacher`: k orthonormal matrices, each times a Fourier mode times rho^tau. Consider
    a student that is a sum of H heads, each a scalar function of the lag times one matrix. Its least relative squared
    error is known in closed form (`zoo.theory.head_count_bound`) and vanishes from H = k on. Every position has a
    label. Predicting zero has relative squared error 1.

    Source: the head-count theorem of Ghodsi, arXiv 2512.15115, in the weighted Eckart-Young form; the teacher is this
    project's.

    Prediction: A sum of H heads, each a function of the lag times one matrix, has the relative squared error of the
    best rank-H approximation of the lag operators, which vanishes from H = k on.

        >>> task = SSMTeacher(k=1, seq_len=3, d_input=1, d_output=1, rho=0.5)  # G_tau = 0.5^tau
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(np.round(example["inputs"][0, :, 0], 3), np.round(example["labels"][0, :, 0], 3))
        [ 1.118 -1.387 -0.427] [ 1.118 -0.828 -0.841]

    Args:
        k: dimension of the span of the teacher's lag operators, which is the sufficient number of heads.
        seq_len: length of a sequence.
        d_input: channels of the input.
        d_output: channels of the output; k is at most d_input * d_output.
        rho: modulus of every pole, in (0, 1].
        teacher_seed: seed of the residues; the teacher is the same for all splits and data seeds.
        period: period of the teacher's slowest oscillation in lags, at least k; default seq_len. At other lengths it
            stays the same, so that the teacher does not change.
    """

    equal_in_mixture: ClassVar[tuple[str, ...]] = ("period",)
    sources: ClassVar[tuple[str, ...]] = ("zoo.theory.teacher", "zoo.theory.lags")
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "torch")

    def __init__(
        self,
        k: int = 4,
        seq_len: int = 32,
        d_input: int = 6,
        d_output: int = 6,
        rho: float = 0.98,
        teacher_seed: int = 0,
        period: int | None = None,
    ) -> None:
        self.k = self._whole("k", k, 1)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.d_input = self._whole("d_input", d_input, 1)
        self.d_output = self._whole("d_output", d_output, 1)
        self.rho = float(rho)
        self.teacher_seed = self._whole("teacher_seed", teacher_seed, 0)
        self.period = self._whole("period", self.seq_len if period is None else period, 1)
        self._demand(self.k <= self.period, "k must be <= period")
        self._demand(self.k <= self.d_input * self.d_output, "k must be <= d_input * d_output")
        self._demand(math.isfinite(self.rho) and 0 < self.rho <= 1, "rho must lie in (0, 1]")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.regression(self.seq_len, self.d_input, self.d_output, labelled=self.seq_len)

    @cached_property
    def lags(self) -> np.ndarray:
        """The teacher's lag operators G, float64 (seq_len, d_output, d_input)."""
        # Imported here so that the task's options and help need no import of torch.
        from zoo.theory.teacher import balanced_teacher

        return balanced_teacher(
            self.k,
            self.d_input,
            self.seq_len,
            self.rho,
            self.teacher_seed,
            d_out=self.d_output,
            period=self.period,
        ).numpy()

    @cached_property
    def _response(self) -> np.ndarray:
        """The lag operators' spectrum, transposed to act on rows: complex (seq_len + 1, d_input, d_output)."""
        return np.fft.rfft(self.lags, 2 * self.seq_len, axis=0).swapaxes(1, 2)

    def floors(self) -> dict[str, float | dict[str, float]]:
        """Return `floor_at_heads` H, the least relative squared error with H heads, for H = 1 ... k; it is 0 at k."""
        import torch

        from zoo.theory.lags import head_count_bound

        lags = torch.as_tensor(self.lags)
        return {"floor_at_heads": {str(heads): head_count_bound(lags, heads) for heads in range(1, self.k + 1)}}

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        inputs = rng.standard_normal((n, self.seq_len, self.d_input), dtype=np.float32)
        # Padded to twice the length, the circular convolution is the causal one; float64 throughout.
        spectrum = np.fft.rfft(inputs.astype(np.float64), 2 * self.seq_len, axis=1).swapaxes(0, 1) @ self._response
        outputs = np.fft.irfft(spectrum, 2 * self.seq_len, axis=0)[: self.seq_len].swapaxes(0, 1)
        return {"inputs": inputs, "labels": np.ascontiguousarray(outputs, dtype=np.float32)}
