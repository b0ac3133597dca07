"""Automata: predict the next symbol of words whose automaton is new in every sequence."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import shuffled, weighted_distinct
from tasks.spec import IGNORED, TaskSpec


class Automata(Task):
    """Predict the next symbol of a word, given earlier words of the same automaton.

    Definition, with V = n_symbols and E = max_edges. Each sequence has its own automaton. The number of states is
    uniform in E + 1 ... max_states; the alphabet consists of E + 1 ... V of the symbols 0 ... V - 1. From each state, 1
    to E edges (their number drawn uniformly) lead to different other states, with different symbols of the alphabet. A
    word starts in state 0 and at each step takes one of the edges of its state, drawn uniformly; its length is uniform
    in 1 ... max_word. The sequence consists of words, each followed by the separator V, and is cut off at seq_len.

    The label is the next symbol if the sequence determines it. That is the case if only one edge leaves the current
    state, and if an earlier word began with the same symbols and continued. So every label can be found by searching
    the earlier words for the beginning of the current word. There is no label if several edges leave the state, if the
    beginning is new, or if the word ends. A sequence without any label is redrawn, with another automaton.

    Source: Akyürek et al., "In-Context Language Learning: Architectures and Algorithms" (RegBench), arXiv 2401.12973;
    berlino/seq_icl at 9b9223d, src/dataloaders/dfa.py.

    Automata and words follow the distribution of RegBench, which draws 10 to 19 words of up to 49 symbols from automata
    of 4 to 12 states; here words fill the sequence. RegBench trains on every next symbol, and counts a guess as right
    if the automaton has such an edge. Here only the next symbols that are certain have labels.

    `depth` is the number of symbols of the current word that have been read.

    Reported: RegBench reports the share of best guesses that the automaton allows, over all positions; `accuracy` uses
    only the positions where it is known to allow a single symbol.

    Prediction: Attention finds the symbols that followed the same beginning, by heads that match several symbols back;
    deeper labels need longer matches, as accuracy by depth shows. A mixer with a fixed state must store the beginnings
    of all words. With fixed transitions it adds them up without the positions of symbols, unless earlier layers add
    those.

        >>> task = Automata(seq_len=20, n_symbols=4, max_states=3, max_edges=2, max_word=4)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>4}" for token in example["inputs"][0]))
           2    |    2    3    1    0    |    0    1    0    |    0    1    3    |    0    1    3    1    |
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100    1 -100 -100 -100    1 -100 -100 -100 -100

    Args:
        seq_len: length of a sequence.
        n_symbols: number of symbols from which alphabets are drawn, more than max_edges.
        max_states: maximum number of states, more than max_edges.
        max_edges: maximum number of edges from a state.
        max_word: maximum number of symbols in a word, less than seq_len.
    """

    def __init__(
        self, seq_len: int = 128, n_symbols: int = 18, max_states: int = 8, max_edges: int = 3, max_word: int = 8
    ) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 2)
        self.n_symbols = self._whole("n_symbols", n_symbols, 2)
        self.max_states = self._whole("max_states", max_states, 2)
        self.max_edges = self._whole("max_edges", max_edges, 1)
        self.max_word = self._whole("max_word", max_word, 1)
        fewer = "max_edges must be < n_symbols and < max_states"
        self._demand(self.max_edges < min(self.n_symbols, self.max_states), fewer)
        self._demand(self.max_word < self.seq_len, "max_word must be < seq_len")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(self.seq_len, self.n_symbols + 1, self.n_symbols, facts=("depth",))

    def input_text(self, token: int) -> str:
        return "|" if token == self.n_symbols else str(token)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        arrays = self._sequences(rng, n)
        while len(rows := np.flatnonzero((arrays["labels"] == IGNORED).all(axis=1))):
            for name, drawn in self._sequences(rng, len(rows)).items():
                arrays[name][rows] = drawn
        return arrays

    def _sequences(self, rng: np.random.Generator, n: int) -> Arrays:
        """Draw as `sample` does, including examples without a label."""
        n_edges, symbols, targets = self._automata(rng, n)
        rows, separator = np.arange(n), self.n_symbols
        # One token more than the input: the label of the last position.
        tokens = np.empty((n, self.seq_len + 1), dtype=np.int64)
        depths, is_certain = np.empty_like(tokens), np.empty(tokens.shape, dtype=bool)
        state, depth = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        length = rng.integers(1, self.max_word + 1, size=n)
        for position in range(self.seq_len + 1):
            ends = depth == length
            edge = rng.integers(n_edges[rows, state])
            tokens[:, position] = np.where(ends, separator, symbols[rows, state, edge])
            depths[:, position] = depth
            is_certain[:, position] = ~ends & (n_edges[rows, state] == 1)
            state = np.where(ends, 0, targets[rows, state, edge])
            depth = np.where(ends, 0, depth + 1)
            length = np.where(ends, rng.integers(1, self.max_word + 1, size=n), length)
        labelled = (is_certain & self._came_before(tokens, depths))[:, 1:]
        return {
            "inputs": np.ascontiguousarray(tokens[:, :-1]),
            "labels": np.where(labelled, tokens[:, 1:], IGNORED),
            "depth": np.where(labelled, depths[:, 1:], -1).astype(np.int32),
        }

    def _automata(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the number of edges (n, max_states), and their symbols and targets (n, max_states, max_edges)."""
        n_states = rng.integers(self.max_edges + 1, self.max_states + 1, size=n)
        n_letters = rng.integers(self.max_edges + 1, self.n_symbols + 1, size=n)
        n_edges = rng.integers(1, self.max_edges + 1, size=(n, self.max_states))
        order = shuffled(rng, n, self.n_symbols)
        letters = np.repeat(order < n_letters[:, None], self.max_states, axis=0)
        exist = np.arange(self.max_states) < n_states[:, None]
        others = (exist[:, None, :] & ~np.eye(self.max_states, dtype=bool)).reshape(-1, self.max_states)
        shape = (n, self.max_states, self.max_edges)
        symbols = weighted_distinct(rng, len(letters), letters.astype(np.float64), self.max_edges)
        targets = weighted_distinct(rng, len(others), others.astype(np.float64), self.max_edges)
        return n_edges, symbols.reshape(shape), targets.reshape(shape)

    def _came_before(self, tokens: np.ndarray, depths: np.ndarray) -> np.ndarray:
        """Return whether the word up to each symbol is the beginning of an earlier word of its row; bool, as tokens."""
        flat, depth = tokens.reshape(-1), depths.reshape(-1)
        # Number all beginnings of one length, each by the number of its shorter beginning and its last symbol.
        beginning = np.repeat(np.arange(len(tokens)), tokens.shape[1])
        found = np.zeros(len(flat), dtype=bool)
        for length in range(self.max_word):
            here = np.flatnonzero((depth == length) & (flat < self.n_symbols))
            if length:
                beginning[here] = beginning[here - 1]
            _, first, number = np.unique(
                beginning[here] * self.n_symbols + flat[here], return_index=True, return_inverse=True
            )
            beginning[here], found[here] = number, True
            found[here[first]] = False
        return found.reshape(tokens.shape)
