"""Compression: store a sequence in the state, then recall its tokens by position."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators import mad
from tasks.generators.draws import shuffled
from tasks.generators.placing import fact_at, labels_at
from tasks.spec import TaskSpec


class Compression(Task):
    """Read random tokens and a marker, then answer for each position which token was there.

    Definition, with V = vocab_size, M = (seq_len - 1) / 2: M tokens drawn uniformly from 0 ... V - 2, the marker V - 1,
    then the M place tokens V ... V + M - 1 in random order. The label at place token V + p is the token at position p.
    A mixer with a fixed state must store all M tokens in it at the marker.

    Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD), arXiv 2403.17844, with M = 31.

    Unlike in MAD, the model itself answers, at tokens after the marker. In MAD a network after the model decodes each
    token from the output at the marker and an embedding of its position. Both require a state of fixed size to store
    everything at the marker. Attention may look back here, but in MAD must gather everything into one output.
    `--decode_from M+1` turns the model into MAD's autoencoder: after the marker it reads only the output at the marker
    and the place token. MAD also asks for the marker.

    `distance` counts from a label back to its token.

    Prediction: The state must store (seq_len - 1) / 2 tokens by position. A fixed state loses accuracy once their
    number exceeds its capacity; attention, which may look back here, has no such limit.

        >>> task = Compression(vocab_size=6, seq_len=9)
        >>> example = task.sample(np.random.default_rng(1), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           2    2    3    4    5    9    6    8    7
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100    4    2    3    2

    Args:
        vocab_size: number of tokens, with the marker but without the place tokens.
        seq_len: length of a sequence, questions included; odd.
        max_seq_len: largest length that the place tokens cover; default seq_len. At other lengths it stays the same, so
            that the vocabulary does not change.
    """

    reported: ClassVar[str] = mad.REPORTED

    def __init__(self, vocab_size: int = 16, seq_len: int = 63, max_seq_len: int | None = None) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 3)
        self.seq_len = self._whole("seq_len", seq_len, 3)
        self.max_seq_len = self._whole("max_seq_len", self.seq_len if max_seq_len is None else max_seq_len, 3)
        self._demand(self.seq_len % 2 == 1, "seq_len must be odd")
        self._demand(self.seq_len <= self.max_seq_len, "seq_len must be <= max_seq_len")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len,
            self.vocab_size + (self.max_seq_len - 1) // 2,
            self.vocab_size - 1,
            labelled=self.seq_len // 2,
            facts=("distance",),
        )

    def input_text(self, token: int) -> str:
        place = token - self.vocab_size
        return f"@{place}" if place >= 0 else "|" if place == -1 else str(token)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        n_tokens = self.seq_len // 2
        tokens = rng.integers(self.vocab_size - 1, size=(n, n_tokens))
        places = shuffled(rng, n, n_tokens)
        inputs = np.empty((n, self.seq_len), dtype=np.int64)
        inputs[:, :n_tokens] = tokens
        inputs[:, n_tokens] = self.vocab_size - 1
        inputs[:, n_tokens + 1 :] = self.vocab_size + places
        asked = np.arange(n_tokens + 1, self.seq_len)
        return {
            "inputs": inputs,
            "labels": labels_at(asked, np.take_along_axis(tokens, places, axis=1), self.seq_len),
            "distance": fact_at(asked, asked - places, self.seq_len),
        }
