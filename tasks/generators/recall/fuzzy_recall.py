"""Fuzzy recall: MAD's in-context recall with keys and values of several tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tasks.base import Arrays
from tasks.generators.draws import distinct, one_of
from tasks.generators.occurrences import first_and_previous
from tasks.generators.recall.mad_recall import MadRecall
from tasks.spec import TaskSpec


class _Pairs(NamedTuple):
    """The pairs of each row; all arrays are (n, n_pairs, ...)."""

    tokens: np.ndarray
    """Tokens of the key, then of the value, each padded to the longest; the padding is arbitrary."""
    key_sizes: np.ndarray
    value_sizes: np.ndarray
    words: np.ndarray
    """A number per key; equal keys have equal numbers."""

    def taken(self, places: np.ndarray) -> _Pairs:
        """Return the pairs at these indices of each row, (n, any number)."""
        tokens = np.take_along_axis(self.tokens, places[:, :, None], axis=1)
        return _Pairs(tokens, *(np.take_along_axis(array, places, axis=1) for array in self[1:]))

    @property
    def sizes(self) -> np.ndarray:
        return self.key_sizes + self.value_sizes


class FuzzyRecall(MadRecall):
    """In-context recall in which keys and values are words of several tokens, without marked boundaries.

    Definition, with V = vocab_size, L = seq_len: token V - 1 is padding; the lower half of the others spell keys, the
    upper half values. A key is a word of different tokens, drawn uniformly from all words of its size. The size is
    uniform in 1 ... k_motif_size in training, and k_motif_size in validation and test. A value is a word of
    1 ... v_motif_size tokens, the size drawn first; within a sequence each key keeps its value. Pairs follow each other
    until less than twice the longest pair is left; then one of these pairs, drawn uniformly, is repeated. Padding
    before the pairs makes the total L + 1 tokens, of which the last is only a label. The labels of a key that occurred
    before are the tokens of its value, each at the position before it. Training labels every position with its next
    token, padding included, unless train_targets="answers".

    With as_published, the repeated pair is drawn first, like any other, then a position t, uniform in the first
    L - 2 s, where s is the pair's size. The pair is placed before the first pair that begins at or after t, unless its
    key was drawn independently earlier. Pairs follow each other until less than s plus the longest pair is left. That
    is MAD's distribution; a row then has one token of padding less in the tests, two in training.

    Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD), arXiv 2403.17844, in the
    multi-query form of its benchmark.

    Unlike in MAD, the repeated pair always occurs earlier in the sequence. In MAD t may lie after the last pair: 2 % of
    the examples of the published shape ask for a pair that did not occur. as_published redraws these examples and
    follows MAD's distribution for all others.

    `distance` counts from a label back to the same token in the value's last occurrence.

    Prediction: As in_context_recall, once a layer binds adjacent tokens into a word, by a short convolution or by
    attention to neighbours, before the look-up. A single layer of either cannot do both.

        >>> task = FuzzyRecall(vocab_size=9, seq_len=16, k_motif_size=2, v_motif_size=2, train_targets="answers")
        >>> example = task.sample(np.random.default_rng(1), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           8    8    8    3    0    5    0    3    5    6    3    0    5    0    3    5
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100    5 -100 -100    5    6

    Args:
        vocab_size: number of tokens: padding, the lower half of the others for keys, the rest for values.
        seq_len: length of a sequence, more than twice the longest pair.
        k_motif_size: maximum number of tokens in a key.
        v_motif_size: maximum number of tokens in a value.
        train_targets: labels of training, "every_token" (as published) or "answers".
        as_published: draw lengths, padding and the position of the repeated pair as MAD does.
    """

    def __init__(
        self,
        vocab_size: int = 16,
        seq_len: int = 128,
        k_motif_size: int = 3,
        v_motif_size: int = 3,
        train_targets: str = "every_token",
        as_published: bool = False,
    ) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 5)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.k_motif_size = self._whole("k_motif_size", k_motif_size, 1)
        self.v_motif_size = self._whole("v_motif_size", v_motif_size, 1)
        self._n_key_tokens = (self.vocab_size - 1) // 2
        self._n_value_tokens = self.vocab_size - 1 - self._n_key_tokens
        self._n_words = (self._n_key_tokens + 1) ** self.k_motif_size  # upper bound of the numbers of keys
        self._longest = self.k_motif_size + self.v_motif_size
        self._room = self.seq_len - 2 * self._longest  # pairs begin within it, so that the repeated one fits behind
        rule = "k_motif_size must be <= (vocab_size - 1) // 2, the tokens of keys"
        self._demand(self.k_motif_size <= self._n_key_tokens, rule)
        self._demand(self._n_words <= 2**40, "keys must be at most 2^40 words", "k_motif_size", "vocab_size")
        rule = "v_motif_size must be <= vocab_size // 2, the tokens of values"
        self._demand(self.v_motif_size <= self._n_value_tokens, rule)
        self._demand(self._room > 0, "seq_len must be > 2 * (k_motif_size + v_motif_size)")
        self._keep_train_targets(train_targets)
        self.as_published = bool(as_published)

    @property
    def spec(self) -> TaskSpec:
        return self._spec(self._n_value_tokens)

    def input_text(self, token: int) -> str:
        return "_" if token == self.vocab_size - 1 else str(token)

    @property
    def _smallest_key(self) -> int:
        return 1 if self._training else self.k_motif_size

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        pairs, shown = self._published_context(rng, n) if self.as_published else self._context(rng, n)
        starts = np.cumsum(pairs.sizes * shown, axis=1) - pairs.sizes

        # Pairs that are not shown get numbers that no word has, so that they are not found as earlier occurrences.
        _, previous = first_and_previous(np.where(shown, pairs.words, self._n_words + np.arange(shown.shape[1])))
        back = starts - np.take_along_axis(starts, np.maximum(previous, 0), axis=1) - 1
        slot = np.arange(self._longest)
        of_value = (slot >= self.k_motif_size) & (slot < self.k_motif_size + pairs.value_sizes[:, :, None])
        spelt = ((slot < pairs.key_sizes[:, :, None]) | of_value) & shown[:, :, None]
        answers = of_value & (previous >= 0)[:, :, None]
        distance = np.broadcast_to(back[:, :, None], spelt.shape)

        # The spelt tokens of each row fill its end in order, because both masks are read in the same order.
        length = spelt.sum(axis=(1, 2))
        filled = np.arange(self.seq_len + 1) > self.seq_len - length[:, None]
        packed = []
        for array, padding in ((pairs.tokens, self.vocab_size - 1), (answers, False), (distance, -1)):
            row = np.full(filled.shape, padding, dtype=array.dtype)
            row[filled] = array[spelt]
            packed.append(row)
        return self._labelled(*packed)

    def _pairs(self, rng: np.random.Generator, n: int, n_pairs: int) -> _Pairs:
        """Draw independent pairs; a key that occurs again keeps its first value."""
        key_sizes = rng.integers(self._smallest_key, self.k_motif_size, size=(n, n_pairs), endpoint=True)
        value_sizes = rng.integers(1, self.v_motif_size, size=(n, n_pairs), endpoint=True)
        # The first s of different uniform tokens are a uniform word of size s.
        keys, values = (
            distinct(rng, n * n_pairs, tokens, size).reshape(n, n_pairs, size)
            for tokens, size in ((self._n_key_tokens, self.k_motif_size), (self._n_value_tokens, self.v_motif_size))
        )
        keys[np.arange(self.k_motif_size) >= key_sizes[:, :, None]] = -1
        # A number for each word: its tokens as digits, with 0 for none.
        words = ((keys + 1) * (self._n_key_tokens + 1) ** np.arange(self.k_motif_size)).sum(axis=2)
        first, _ = first_and_previous(words)
        value_sizes = np.take_along_axis(value_sizes, first, axis=1)
        values = self._n_key_tokens + np.take_along_axis(values, first[:, :, None], axis=1)
        return _Pairs(np.concatenate([keys, values], axis=2), key_sizes, value_sizes, words)

    def _context(self, rng: np.random.Generator, n: int) -> tuple[_Pairs, np.ndarray]:
        """Return pairs with the repeated one at the end, and whether the sequence shows each of them."""
        most = -(-self._room // (self._smallest_key + 1))  # number of pairs if all had the smallest size
        pairs = self._pairs(rng, n, most)
        shown = np.cumsum(pairs.sizes, axis=1) - pairs.sizes < self._room
        repeated = one_of(rng, shown)[:, None]
        places = np.concatenate([np.broadcast_to(np.arange(most), (n, most)), repeated], axis=1)
        return pairs.taken(places), np.concatenate([shown, np.ones((n, 1), dtype=bool)], axis=1)

    def _published_context(self, rng: np.random.Generator, n: int) -> tuple[_Pairs, np.ndarray]:
        """Return pairs as `_context` does, from MAD's distribution, given that the last pair was shown before."""
        *drawn, answered = self._attempt(rng, n)
        while not answered.all():
            missing = np.flatnonzero(~answered)
            for array, again in zip((*drawn, answered), self._attempt(rng, len(missing)), strict=True):
                array[missing] = again
        *pairs, shown = drawn
        return _Pairs(*pairs), shown

    def _attempt(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
        """Draw from MAD's distribution: arrays of `_Pairs`, whether each is shown, whether the last one repeats."""
        smallest = self._smallest_key + 1
        most = -(-(self.seq_len - smallest - self._longest) // smallest)
        # The repeated pair comes first here, so that an equal key drawn independently gets its value.
        pairs = self._pairs(rng, n, 1 + most)
        repeated_size = pairs.sizes[:, :1]
        place = rng.integers(self.seq_len - 2 * repeated_size)
        others = pairs.taken(np.broadcast_to(np.arange(1, 1 + most), (n, most)))
        there = np.cumsum(others.sizes, axis=1) - others.sizes >= place
        by_itself = (others.words == pairs.words[:, :1]) & ~there
        # The repeated pair replaces the first pair at or after `place`; all pairs are independent, so dropping one is
        # harmless.
        inserted = there & (np.cumsum(there, axis=1) == 1) & ~by_itself.any(axis=1, keepdims=True)
        places = np.where(inserted, 0, np.arange(1, 1 + most))
        pairs = pairs.taken(np.concatenate([places, np.zeros((n, 1), dtype=np.int64)], axis=1))
        starts = np.cumsum(pairs.sizes, axis=1) - pairs.sizes
        shown = starts < self.seq_len - repeated_size - self._longest
        shown[:, -1] = True
        answered = ((pairs.words == pairs.words[:, -1:]) & shown)[:, :-1].any(axis=1)
        return *pairs, shown, answered
