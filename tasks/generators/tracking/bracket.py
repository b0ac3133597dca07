"""Brackets: count the open brackets of a balanced word."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tasks.base import Arrays, Task
from tasks.spec import TaskSpec


class Bracket(Task):
    """Count the open brackets at every position of a balanced word.

    Definition, with k = n_types: tokens 0 ... k - 1 open a bracket of one of k types, tokens k ... 2k - 1 close it. The
    shape of the word (opening or closing at each position) is drawn uniformly from all balanced words of length seq_len
    and depth at most D = max_depth (the language Dyck-(k, D)). The type of each pair is drawn uniformly. The label at a
    position is the number of open brackets after it, 0 ... max_depth.

    Source: Hewitt et al., "RNNs can generate bounded hierarchical languages with optimal memory", arXiv 2010.07515, and
    Yao et al., "Self-Attention Networks Can Process Bounded Hierarchical Languages", arXiv 2105.11115, with k = 8 and
    D = 10. They ask for the closing bracket, and draw words from a process that favours short ones; the uniform draw
    and the question about the depth are ours.

    Prediction: The depth is a sum of +1 and -1. One linear state with its pole at 1 counts it, as does attention that
    averages and knows the position. A decay in (0, 1) forgets the beginning, so the error grows with the length.

        >>> task = Bracket(n_types=2, max_depth=3, seq_len=10)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(task.input_text(token) for token in example["inputs"][0]))
        ( [ [ ] ] ) [ ] [ ]
        >>> print(*example["labels"][0])
        1 2 3 2 1 0 1 0 1 0

    Args:
        n_types: number of types of brackets.
        max_depth: maximum number of open brackets.
        seq_len: length of a word, even.
    """

    def __init__(self, n_types: int = 8, max_depth: int = 10, seq_len: int = 256) -> None:
        self.n_types = self._whole("n_types", n_types, 1)
        self.max_depth = self._whole("max_depth", max_depth, 1)
        self.seq_len = self._whole("seq_len", seq_len, 2)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len, 2 * self.n_types, self.max_depth + 1, chance=self._majority_share, labelled=self.seq_len
        )

    def input_text(self, token: int) -> str:
        opens, kind = token < self.n_types, token % self.n_types
        if self.n_types <= 4:
            return ("([{<" if opens else ")]}>")[kind]
        return f"({kind}" if opens else f"{kind})"

    @cached_property
    def _endings(self) -> np.ndarray:
        """Row r: the number of ways in which r brackets lead from each depth to 0, divided by the row's maximum.

        float64 (seq_len + 1, max_depth + 1). Sums and quotients of IEEE numbers are the same on every machine.
        """
        endings = np.zeros((self.seq_len + 1, self.max_depth + 1))
        endings[0, 0] = 1
        for r in range(self.seq_len):
            row = self._step(endings[r])
            endings[r + 1] = row / row.max()
        return endings

    @staticmethod
    def _step(ways: np.ndarray) -> np.ndarray:
        """Return the sum over the two neighbours of each depth."""
        moved = np.zeros_like(ways)
        moved[1:] += ways[:-1]
        moved[:-1] += ways[1:]
        return moved

    @cached_property
    def _opening(self) -> np.ndarray:
        """Probability that the next bracket opens, by the number of brackets left and the depth; NaN if impossible."""
        after = self._endings[:-1]
        up, down = np.zeros_like(after), np.zeros_like(after)
        up[:, :-1], down[:, 1:] = after[:, 1:], after[:, :-1]
        with np.errstate(invalid="ignore"):
            return np.concatenate([np.full((1, self.max_depth + 1), np.nan), up / (up + down)])

    @cached_property
    def _majority_share(self) -> float:
        """Share of the most common depth among all positions of all words."""
        # By symmetry, the number of ways from depth 0 to a depth is the number of ways back.
        passing = self._endings * self._endings[::-1]
        shares = passing / passing.sum(axis=1, keepdims=True)
        return float(shares[1:].mean(axis=0).max())

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        chances, kinds = rng.random((self.seq_len, n)), rng.integers(self.n_types, size=(self.seq_len, n))
        words, depths = np.empty((2, self.seq_len, n), dtype=np.int64)
        rows, depth = np.arange(n), np.zeros(n, dtype=np.int64)
        open_kinds = np.zeros((n, self.max_depth), dtype=np.int64)  # kinds of the open brackets, outermost first
        for i in range(self.seq_len):
            opens = chances[i] < self._opening[self.seq_len - i, depth]
            # An opening bracket writes its kind at its depth, a closing one reads the kind of the innermost.
            top = depth - ~opens
            kind = np.where(opens, kinds[i], open_kinds[rows, top])
            open_kinds[rows, top] = kind
            words[i] = np.where(opens, kind, self.n_types + kind)
            depth = depths[i] = top + opens
        return {"inputs": np.ascontiguousarray(words.T), "labels": np.ascontiguousarray(depths.T)}
