"""Selective copying: reproduce the tokens scattered among blanks."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tasks.base import Arrays
from tasks.generators import mad
from tasks.generators.copying.copying import Copying
from tasks.generators.draws import distinct
from tasks.generators.occurrences import most_frequent_share
from tasks.generators.placing import fact_at, labels_at


class SelectiveCopying(Copying):
    """Read tokens scattered among blanks, then a marker: reproduce the tokens in order, without the blanks.

    Definition, with V = vocab_size, L = seq_len, M = n_copied: M tokens drawn uniformly from 0 ... V - 3 fill, in
    order, M of the first L - M - 1 positions; the others hold the blank V - 2. The marker V - 1 follows, then blanks at
    the last M positions, whose labels are the tokens in order. All sets of M positions are equally likely. With
    as_published, each blank is put before one of the M tokens, chosen uniformly and independently, as in MAD.

    Source: Gu and Dao, "Mamba", arXiv 2312.00752: L = 4,096, 16 tokens of a vocabulary of 16. Its generator was not
    released; the form is that of Poli et al. (MAD), arXiv 2403.17844, whose shape is the default.

    as_published spaces the tokens almost evenly, and no blank follows the last one. At the default shape the standard
    deviation of the gaps is 3.6, against 12.8 by default. MAD draws them from a generator without a seed.

    `distance` counts from a label back to the token to copy.

    Prediction: Distances vary, so a linear time-invariant mixer cannot select the tokens, except through the
    nonlinearity between its layers. A mixer with input-dependent transitions writes tokens and skips blanks. Attention
    solves the task by counting.

        >>> task = SelectiveCopying(vocab_size=6, seq_len=12, n_copied=3)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           3    2    2    4    4    4    4    4    5    4    4    4
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100 -100    3    2    2

    Args:
        vocab_size: number of tokens, blank and marker included.
        seq_len: length of a sequence, more than twice n_copied.
        n_copied: number of tokens to copy.
        as_published: draw the positions as MAD does.
    """

    reported: ClassVar[str] = mad.REPORTED

    def __init__(
        self, vocab_size: int = 16, seq_len: int = 256, n_copied: int = 16, as_published: bool = False
    ) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 4)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.n_copied = self._whole("n_copied", n_copied, 1)
        self.as_published = bool(as_published)
        self._demand(2 * self.n_copied < self.seq_len, "2 * n_copied must be < seq_len")

    def input_text(self, token: int) -> str:
        return {self.vocab_size - 2: "_", self.vocab_size - 1: ">"}.get(token, str(token))

    def guess_among_read(self) -> float:
        return most_frequent_share(self, self.vocab_size - 2)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        blank, marker = self.vocab_size - 2, self.vocab_size - 1
        marked = self.seq_len - self.n_copied - 1
        tokens = rng.integers(blank, size=(n, self.n_copied))
        places = self._places(rng, n, marked)
        inputs = np.full((n, self.seq_len), blank, dtype=np.int64)
        np.put_along_axis(inputs, places, tokens, axis=1)
        inputs[:, marked] = marker
        asked = np.arange(marked + 1, self.seq_len)
        return {
            "inputs": inputs,
            "labels": labels_at(asked, tokens, self.seq_len),
            "distance": fact_at(asked, asked - places, self.seq_len),
        }

    def _places(self, rng: np.random.Generator, n: int, room: int) -> np.ndarray:
        """Return ascending positions of the tokens among the first `room`, (n, n_copied)."""
        if self.as_published:
            in_front = rng.multinomial(room - self.n_copied, np.full(self.n_copied, 1 / self.n_copied), size=n)
            return np.arange(self.n_copied) + np.cumsum(in_front, axis=1)
        return np.sort(distinct(rng, n, room, self.n_copied), axis=1)
