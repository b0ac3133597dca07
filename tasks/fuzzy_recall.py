"""MAD's fuzzy in-context recall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tasks.base import Arrays
from tasks.draws import distinct, one_of
from tasks.mad_recall import MadRecall
from tasks.occurrences import first_and_previous
from tasks.spec import TaskSpec


class FuzzyRecall(MadRecall):
    """In-context recall where keys and values are words of several tokens, whose bounds nothing marks.

    Definition, with V = vocab_size, L = seq_len: token V - 1 is padding; of the others the lower half spell keys, the
    upper half values. A key is a word of different tokens: its size is drawn uniformly from 1 ... k_motif_size in
    training and is k_motif_size in validation and test; then it is drawn uniformly from all words of that size. A value
    is a word of 1 ... v_motif_size tokens, the size drawn first; within a sequence each key keeps its value. Pairs
    follow each other until less than twice the longest pair is left; then one of the pairs shown, drawn uniformly, is
    repeated. Padding in front fills L + 1 tokens, of which the last is only a label. The labels of a key that was shown
    before are the tokens of its value, each at the position before it. Training labels every position with its next
    token, padding included, unless train_targets="answers".

    Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD), arXiv 2403.17844, in the
    multi-query form of its benchmark.

    Unlike there, the pair that is repeated is one of those that stand in the sequence. MAD inserts it at a random
    token, which may lie behind the last pair: such an example asks for what it never showed.

    `distance` is the position of a label minus that of the same token where the value was given last, -1 where none is
    asked for.

        >>> task = FuzzyRecall(vocab_size=9, seq_len=16, k_motif_size=2, v_motif_size=2)
        >>> example = task.sample(np.random.default_rng(1), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           8    8    8    3    0    5    0    3    5    6    3    0    5    0    3    5
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100    5 -100 -100    5    6

    Args:
        vocab_size: tokens: padding, the lower half of the others for keys, the rest for values.
        seq_len: length of a sequence, more than twice the longest pair.
        k_motif_size: most tokens of a key.
        v_motif_size: most tokens of a value.
        train_targets: what training labels, "every_token" (as published) or "answers".
    """

    name: ClassVar[str] = "fuzzy_recall"
    worked: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 9,
        "seq_len": 16,
        "k_motif_size": 2,
        "v_motif_size": 2,
        "train_targets": "answers",
    }
    prediction: ClassVar[str] = (
        "As in_context_recall, once a layer binds adjacent tokens to a word: a short convolution or attention to "
        "neighbours in front of the look-up; a single layer of either cannot."
    )

    def __init__(
        self,
        vocab_size: int = 16,
        seq_len: int = 128,
        k_motif_size: int = 3,
        v_motif_size: int = 3,
        train_targets: str = "every_token",
    ) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 5)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.k_motif_size = self._whole("k_motif_size", k_motif_size, 1)
        self.v_motif_size = self._whole("v_motif_size", v_motif_size, 1)
        rule = "k_motif_size must be <= (vocab_size - 1) // 2, the tokens of keys"
        self._demand(self.k_motif_size <= self._n_key_tokens, rule, "k_motif_size", "vocab_size")
        self._demand(self._n_words <= 2**40, "keys must be at most 2^40 words", "k_motif_size", "vocab_size")
        rule = "v_motif_size must be <= vocab_size // 2, the tokens of values"
        self._demand(self.v_motif_size <= self._n_value_tokens, rule, "v_motif_size", "vocab_size")
        rule = "seq_len must be > 2 * (k_motif_size + v_motif_size)"
        self._demand(self._room > 0, rule, "seq_len", "k_motif_size", "v_motif_size")
        self._keep_train_targets(train_targets)

    @property
    def _n_key_tokens(self) -> int:
        return (self.vocab_size - 1) // 2

    @property
    def _n_value_tokens(self) -> int:
        return self.vocab_size - 1 - self._n_key_tokens

    @property
    def _n_words(self) -> int:
        """The numbers that stand for words of keys lie below it."""
        return (self._n_key_tokens + 1) ** self.k_motif_size

    @property
    def _room(self) -> int:
        """Tokens in front of which a pair may begin: behind it the longest pair fits, and the repeated one."""
        return self.seq_len - 2 * (self.k_motif_size + self.v_motif_size)

    @property
    def spec(self) -> TaskSpec:
        return self._spec(self._n_value_tokens)

    def input_text(self, token: int) -> str:
        return "_" if token == self.vocab_size - 1 else str(token)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        smallest_key = 1 if self._training else self.k_motif_size
        most = -(-self._room // (smallest_key + 1))  # pairs, if all were of the smallest size
        key_sizes = rng.integers(smallest_key, self.k_motif_size, size=(n, most), endpoint=True)
        value_sizes = rng.integers(1, self.v_motif_size, size=(n, most), endpoint=True)
        # The first s of different uniform tokens are a uniform word of size s.
        keys = distinct(rng, n * most, self._n_key_tokens, self.k_motif_size).reshape(n, most, self.k_motif_size)
        values = distinct(rng, n * most, self._n_value_tokens, self.v_motif_size).reshape(n, most, self.v_motif_size)
        keys[np.arange(self.k_motif_size) >= key_sizes[:, :, None]] = -1

        # A number for each word: its tokens as digits, with 0 for none.
        words = ((keys + 1) * (self._n_key_tokens + 1) ** np.arange(self.k_motif_size)).sum(axis=2)
        first, _ = first_and_previous(words)
        value_sizes = np.take_along_axis(value_sizes, first, axis=1)
        values = self._n_key_tokens + np.take_along_axis(values, first[:, :, None], axis=1)
        sizes = key_sizes + value_sizes
        starts = np.cumsum(sizes, axis=1) - sizes
        shown = starts < self._room

        repeated = one_of(rng, shown)[:, None]
        pairs = np.concatenate([np.broadcast_to(np.arange(most), (n, most)), repeated], axis=1)
        context_end = np.where(shown, starts + sizes, 0).max(axis=1, initial=0)
        starts = np.concatenate([starts, context_end[:, None]], axis=1)
        shown = np.concatenate([shown, np.ones((n, 1), dtype=bool)], axis=1)
        key_sizes, value_sizes, words = (
            np.take_along_axis(array, pairs, axis=1) for array in (key_sizes, value_sizes, words)
        )
        tokens = np.take_along_axis(np.concatenate([keys, values], axis=2), pairs[:, :, None], axis=1)

        # Pairs that are not shown must not be met: numbers that no word has.
        _, previous = first_and_previous(np.where(shown, words, self._n_words + np.arange(most + 1)))
        back = starts - np.take_along_axis(starts, np.maximum(previous, 0), axis=1) - 1
        slot = np.arange(self.k_motif_size + self.v_motif_size)
        of_value = (slot >= self.k_motif_size) & (slot < self.k_motif_size + value_sizes[:, :, None])
        spelt = ((slot < key_sizes[:, :, None]) | of_value) & shown[:, :, None]
        answers = of_value & (previous >= 0)[:, :, None]
        distance = np.broadcast_to(back[:, :, None], spelt.shape)

        # Row by row the tokens that are spelt, in order, fill the row's end: both masks are read in the same order.
        length = spelt.sum(axis=(1, 2))
        filled = np.arange(self.seq_len + 1) > self.seq_len - length[:, None]
        packed = []
        for array, padding in ((tokens, self.vocab_size - 1), (answers, False), (distance, -1)):
            row = np.full(filled.shape, padding, dtype=array.dtype)
            row[filled] = array[spelt]
            packed.append(row)
        return self._labelled(*packed)
