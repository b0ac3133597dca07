"""Copying: reproduce tokens after a delay."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.placing import fact_at, labels_at
from tasks.spec import TaskSpec


class Copying(Task):
    """Read tokens, a stretch of blanks, then markers: reproduce the tokens in order.

    Definition, with V = vocab_size, M = n_copied: M tokens drawn uniformly from 1 ... V - 2, then blanks (token 0) up
    to the last M positions, which hold the marker V - 1. The labels at the markers are the tokens in order, so each
    token must be remembered for seq_len - M positions. With echo, only the first of the last M positions holds the
    marker; each later one holds the previous answer, as in autoregressive generation.

    Source: Arjovsky, Shah and Bengio, "Unitary Evolution Recurrent Neural Networks", arXiv 1511.06464, in the form and
    shape of state-spaces/s4: 10 tokens of an alphabet of 10 (8 to copy), 100 blanks, 10 markers.

    `distance` counts from a label back to the token to copy.

    Prediction: The delay is fixed, so a linear time-invariant mixer with poles near the unit circle solves the task, as
    does attention with positions. Recurrences whose gradient decays with distance fail as the delay grows.

        >>> task = Copying(vocab_size=5, seq_len=8, n_copied=2)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           3    2    0    0    0    0    4    4
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100    3    2

    Args:
        vocab_size: number of tokens, blank and marker included.
        seq_len: length of a sequence, at least twice n_copied.
        n_copied: number of tokens to copy.
        echo: after the first marker, each input is the previous answer.
    """

    def __init__(self, vocab_size: int = 10, seq_len: int = 120, n_copied: int = 10, echo: bool = False) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 4)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.n_copied = self._whole("n_copied", n_copied, 1)
        self.echo = bool(echo)
        self._demand(2 * self.n_copied <= self.seq_len, "2 * n_copied must be <= seq_len")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len,
            self.vocab_size,
            chance=1 / (self.vocab_size - 2),
            labelled=self.n_copied,
            facts=("distance",),
        )

    def input_text(self, token: int) -> str:
        return {0: "_", self.vocab_size - 1: ">"}.get(token, str(token))

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        tokens = rng.integers(1, self.vocab_size - 1, size=(n, self.n_copied))
        inputs = np.zeros((n, self.seq_len), dtype=np.int64)
        inputs[:, : self.n_copied] = tokens
        inputs[:, -self.n_copied :] = self.vocab_size - 1
        if self.echo:
            inputs[:, self.seq_len - self.n_copied + 1 :] = tokens[:, :-1]
        delay = self.seq_len - self.n_copied
        asked = np.arange(delay, self.seq_len)
        return {
            "inputs": inputs,
            "labels": labels_at(asked, tokens, self.seq_len),
            "distance": fact_at(asked, np.full_like(tokens, delay), self.seq_len),
        }
