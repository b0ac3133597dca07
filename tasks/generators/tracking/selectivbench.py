"""SelectivBench: track the state of a random grammar through gaps of blanks or of letters that break its rules."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import one_of
from tasks.generators.occurrences import label_shares
from tasks.spec import TaskSpec

DENSITY = 0.4
"""Probability that a state has an edge to a letter."""

N_STARTS = 4
"""Number of possible first states of a string."""

MAX_STRING = 200
"""Maximum number of elements in a string, its end included."""

ATTEMPTS = 1000
"""Maximum number of grammars to draw in search of a valid one."""

COUNTED_ROWS, COUNTED_POSITIONS = 1024, 1 << 17
"""Maximum numbers of sequences and positions in which to count states for the chance level."""


class SelectivBench(Task):
    """Report the state of a grammar after each letter, and remember it while blanks or wrong letters follow.

    Definition, with V = n_symbols letters and D = n_states states per letter. The grammar is drawn once, by
    grammar_seed, and is the same in all sequences. From each state, each letter is possible with probability 0.4 and
    leads to one of its D states, drawn uniformly; the end # is possible with probability 0.4 / D. Four different states
    are starts. A grammar is redrawn unless all states have a path to # and the starts have different letters. So the
    letters since the last # determine the state; fewer letters may determine it by chance.

    A string begins with a start, drawn uniformly, and continues with a possible letter, drawn uniformly, up to #.
    Strings of more than 200 elements, # included, are redrawn. A sequence is a series of strings, cut off at seq_len.
    From element number gap_start on, a gap follows an element with probability gap_share. Its size is drawn uniformly
    between min_gap and max_gap, and rounded. Blanks fill the gap; with `distractors`, letters and ends that cannot come
    next, drawn uniformly. If all can come next, there is no gap. The label at each position is the state, which gaps do
    not change.

    Source: SelectivBench of Bouhadjar et al., "Dissecting Linear Recurrent Models: How Different Gating Strategies
    Drive Selectivity and Generalization", arXiv 2601.12598; symseqbench/selectivbench at 54609fb, symseqbench/symseq
    and symseqbench/seqbench. Its four tasks have V = D between 20 and 40 and 200 elements: one blank behind each
    element; 1 to 10 blanks, and noise; one distractor behind a tenth of the elements from the 50th on; longer gaps in
    the test than in training.

    Grammars, strings and gaps follow its distribution. In the source, starts may share a letter, and after # any letter
    may be a distractor, even a start, so that some states are uncertain. The noise on its inputs has no counterpart
    here.

    Reported: The authors report the share of elements whose state is right, judged by the sum of the probabilities at
    an element and in its gap.

    `elements` is the number of elements read in the current string.

    Prediction: Each letter maps states to states, so a mixer must track an automaton of V * D states; the last few
    letters give most of the information. Keeping the state through a gap takes gates that depend on the input: fixed
    decays forget, and with `distractors` the gate must depend on the state.

        >>> task = SelectivBench(seq_len=16, n_symbols=4, n_states=2)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>2}" for token in example["inputs"][0]))
         2  _  1  _  0  _  0  _  2  _  2  _  2  _  2  _
        >>> print(*(f"{task.label_text(label):>2}" for label in example["labels"][0]))
        2a 2a 1a 1a 0a 0a 0b 0b 2b 2b 2a 2a 2b 2b 2a 2a

    Args:
        seq_len: length of a sequence.
        n_symbols: number of letters, at least 4.
        n_states: number of states per letter.
        min_gap: minimum size of a gap.
        max_gap: maximum size of a gap.
        gap_share: share of the elements followed by a gap.
        gap_start: number of elements without gaps at the beginning of a sequence.
        distractors: whether gaps are filled with letters that cannot come next, instead of blanks.
        grammar_seed: seed of the grammar.
    """

    def __init__(
        self,
        seq_len: int = 128,
        n_symbols: int = 8,
        n_states: int = 4,
        min_gap: int = 1,
        max_gap: int = 1,
        gap_share: float = 1.0,
        gap_start: int = 0,
        distractors: bool = False,
        grammar_seed: int = 0,
    ) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.n_symbols = self._whole("n_symbols", n_symbols, N_STARTS)
        self.n_states = self._whole("n_states", n_states, 1)
        self.min_gap = self._whole("min_gap", min_gap, 0)
        self.max_gap = self._whole("max_gap", max_gap, 0)
        self._demand(self.min_gap <= self.max_gap, "min_gap must be <= max_gap")
        self.gap_share = float(gap_share)
        self._demand(0 <= self.gap_share <= 1, "gap_share must lie in [0, 1]")
        self.gap_start = self._whole("gap_start", gap_start, 0)
        self.distractors = bool(distractors)
        self.grammar_seed = self._whole("grammar_seed", grammar_seed, 0)
        rule = "n_symbols must be larger, or n_states smaller: no grammar had paths from all states to the end"
        self._demand(self._grammar is not None, rule, "grammar_seed")

    @property
    def _end(self) -> int:
        """The number of the state of #; state s belongs to the letter s // n_states."""
        return self.n_symbols * self.n_states

    @cached_property
    def _grammar(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Whether each letter (# is last) may follow each state, and the state it leads to, both (states, letters).

        The last row belongs to #, which starts may follow. None if there is no valid grammar.
        """
        rng, v, d, end = np.random.default_rng(self.grammar_seed), self.n_symbols, self.n_states, self._end
        probability = np.append(np.full(v, DENSITY), DENSITY / d)
        for _ in range(ATTEMPTS):
            possible = rng.random((end + 1, v + 1)) < probability
            leads_to = np.append(rng.integers(d, size=(end + 1, v)) + d * np.arange(v), np.full((end + 1, 1), end), 1)
            starts = rng.choice(end, size=N_STARTS, replace=False)
            possible[end] = False
            possible[end, starts // d], leads_to[end, starts // d] = True, starts
            ends, more = np.zeros(end + 1, dtype=bool), np.arange(end + 1) == end
            while (more & ~ends).any():
                ends |= more
                more = (possible & ends[leads_to]).any(axis=1)
            if ends.all() and possible[end].sum() == N_STARTS:
                return possible, leads_to
        return None

    @cached_property
    def _ending(self) -> np.ndarray:
        """Row r: the probability, after each state, that the string ends within r more elements."""
        assert self._grammar is not None
        possible, leads_to = self._grammar
        found = [np.append(np.zeros(self._end), 1.0)]
        for _ in range(MAX_STRING):
            found.append((possible * found[-1][leads_to]).sum(axis=1) / possible.sum(axis=1))
            found[-1][self._end] = 1
        return np.array(found)

    @property
    def spec(self) -> TaskSpec:
        rows = min(COUNTED_ROWS, max(1, COUNTED_POSITIONS // self.seq_len))
        return TaskSpec.tokens(
            self.seq_len,
            self.n_symbols + 2,
            self._end + 1,
            chance=float(label_shares(self, rows).max()),
            labelled=self.seq_len,
            facts=("elements",),
        )

    def input_text(self, token: int) -> str:
        return str(token) if token < self.n_symbols else "#_"[token - self.n_symbols]

    def label_text(self, label: int) -> str:
        """Return the letter of a state and the state's index as a letter, such as 2c."""
        letter, which = divmod(label, self.n_states)
        suffix = chr(ord("a") + which) if self.n_states <= 26 else f".{which}"
        return "#" if label == self._end else f"{letter}{suffix}"

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        assert self._grammar is not None
        possible, _ = self._grammar
        states, counts = self._strings(rng, n)
        size = np.floor(rng.uniform(self.min_gap, self.max_gap, size=states.shape) + 0.5).astype(np.int64)
        size *= (rng.random(states.shape) < self.gap_share) & (np.arange(self.seq_len) >= self.gap_start)
        if self.distractors:
            size *= ~possible[states].all(axis=2)
        # The position of each element, and the index of the last element at each position.
        places = np.cumsum(size + 1, axis=1) - size - 1
        begins = np.zeros(states.shape, dtype=bool)
        row, which = np.nonzero(places < self.seq_len)
        begins[row, places[row, which]] = True
        element = np.cumsum(begins, axis=1) - 1
        labels = np.take_along_axis(states, element, axis=1)
        inputs = np.where(begins, labels // self.n_states, self.n_symbols + 1)
        if self.distractors:
            inputs[~begins] = one_of(rng, ~possible[labels[~begins]])
        elements = np.take_along_axis(counts, element, axis=1).astype(np.int32)
        return {"inputs": inputs, "labels": labels, "elements": elements}

    def _strings(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the state of each element, and its number in its string, both (n, seq_len)."""
        assert self._grammar is not None
        possible, leads_to = self._grammar
        state, count = np.full(n, self._end), np.zeros(n, dtype=np.int64)
        states, counts = np.empty((n, self.seq_len), dtype=np.int64), np.empty((n, self.seq_len), dtype=np.int64)
        for place in range(self.seq_len):
            count = np.where(state == self._end, 0, count) + 1
            # Condition the next letter on the string ending in time.
            weights = possible[state] * self._ending[(MAX_STRING - count)[:, None], leads_to[state]]
            line = np.cumsum(weights, axis=1)
            letter = (line <= rng.random((n, 1)) * line[:, -1:]).sum(axis=1)
            state = leads_to[state, letter]
            states[:, place], counts[:, place] = state, count
        return states, counts
