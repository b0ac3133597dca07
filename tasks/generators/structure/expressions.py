"""Expressions of ListOps as trees, drawn and evaluated level by level without loops over examples or nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
WORDS = (*map(str, range(10)), *OPERATORS, "]", "")
"""Texts of the tokens, by number; the last token fills the positions before an expression."""

CLOSE, BLANK = 14, 15
NESTED = 4
"""One argument in 4 is a nested expression, as published."""

BLOCK = 1024
"""Number of expressions to draw at once; those of other lengths are discarded."""

COUNTED = 4096
"""Number of expressions over which to count values for the chance level."""


@dataclass
class Level:
    """The nodes of one depth; nodes of a tree are next to each other, in reading order.

    Attributes:
        tree: number of each node's tree, int64 (nodes,), ascending.
        digits: value of each node that is a digit, int64 (nodes,); arbitrary for nested nodes.
        nested: whether each node has an operator, bool (nodes,); the next level has their arguments, in order.
        operators: operator of each nested node, 0 ... 3 as in `OPERATORS`, int64.
        n_args: number of arguments of each nested node, int64.
    """

    tree: np.ndarray
    digits: np.ndarray
    nested: np.ndarray
    operators: np.ndarray
    n_args: np.ndarray

    def of_trees(self, kept: np.ndarray) -> Level:
        """Return the nodes of the trees that are `kept`, bool (trees,), and renumber these trees."""
        here = kept[self.tree]
        there = here[self.nested]
        number = np.cumsum(kept) - 1
        return Level(
            number[self.tree[here]], self.digits[here], self.nested[here], self.operators[there], self.n_args[there]
        )

    @property
    def first_args(self) -> np.ndarray:
        """Index of each nested node's first argument in the next level."""
        return np.cumsum(self.n_args) - self.n_args


class Trees:
    """Expressions that are not a single digit.

    Attributes:
        levels: their nodes, from the outermost level on.
        lengths: number of tokens of each, int64 (trees,).
    """

    def __init__(self, levels: list[Level], lengths: np.ndarray) -> None:
        self.levels, self.lengths = levels, lengths

    @classmethod
    def drawn(cls, rng: np.random.Generator, n_trees: int, too_long: int, max_depth: int, max_args: int) -> Trees:
        """Draw expressions as defined; those of `too_long` tokens or more are truncated and must be discarded."""
        levels: list[Level] = []
        tree, lengths = np.arange(n_trees), np.zeros(n_trees, dtype=np.int64)
        for depth in range(1, max_depth + 1):
            size = len(tree)
            nested = np.zeros(size, dtype=bool)
            if depth == 1:
                nested[:] = True
            elif depth < max_depth:
                nested = rng.integers(NESTED, size=size) == 0
            digits = rng.integers(10, size=size)
            lengths += np.bincount(tree, minlength=n_trees) + np.bincount(tree[nested], minlength=n_trees)
            nested &= (lengths < too_long)[tree]
            n_nested = np.count_nonzero(nested)
            operators = rng.integers(len(OPERATORS), size=n_nested)
            n_args = rng.integers(2, max_args + 1, size=n_nested)
            levels.append(Level(tree, digits, nested, operators, n_args))
            if not n_nested:
                break
            tree = np.repeat(tree[nested], n_args)
        return cls(levels, lengths)

    def of_trees(self, kept: np.ndarray) -> Trees:
        levels = [level.of_trees(kept) for level in self.levels]
        return Trees([level for level in levels if len(level.tree)], self.lengths[kept])

    def values(self) -> np.ndarray:
        """Return the value of each tree, int64 (trees,)."""
        below = np.empty(0, dtype=np.int64)
        for level in reversed(self.levels):
            values = level.digits.copy()
            if len(level.n_args):
                values[level.nested] = applied(level.operators, below, level.first_args, level.n_args)
            below = values
        return below

    def write(self, rows: np.ndarray) -> None:
        """Write the tokens of tree t to the end of row t of an int64 array (trees, seq_len), in place."""
        sizes: list[np.ndarray] = []  # number of tokens of each node, from the deepest level up
        for level in reversed(self.levels):
            size = np.ones(len(level.tree), dtype=np.int64)
            if len(level.n_args):
                size[level.nested] = 2 + np.add.reduceat(sizes[-1], level.first_args)
            sizes.append(size)
        start = rows.shape[1] - sizes[-1]
        for level, size, below in zip(self.levels, sizes[::-1], [*sizes[-2::-1], None], strict=True):
            token = level.digits.copy()
            token[level.nested] = 10 + level.operators
            rows[level.tree, start] = token
            rows[level.tree[level.nested], (start + size)[level.nested] - 1] = CLOSE
            if below is not None:
                before = np.cumsum(below) - below  # number of tokens of all earlier nodes of the level
                start = np.repeat(start[level.nested] + 1 - before[level.first_args], level.n_args) + before


def applied(operators: np.ndarray, values: np.ndarray, first: np.ndarray, n_args: np.ndarray) -> np.ndarray:
    """Return each operator's result on its `n_args` values from index `first` on; `values` has no other entries."""
    owner = np.repeat(np.arange(len(n_args)), n_args)
    ordered = np.sort(10 * owner + values) % 10
    low, high = ordered[first + (n_args - 1) // 2], ordered[first + n_args // 2]
    total = np.add.reduceat(values, first)
    return np.choose(operators, [ordered[first], ordered[first + n_args - 1], (low + high) // 2, total % 10])


def kept_trees(
    rng: np.random.Generator, min_length: int, max_length: int, max_depth: int, max_args: int, n: int
) -> Iterator[Trees]:
    """Yield, in parts, `n` expressions whose lengths lie strictly between the bounds."""
    while n > 0:
        trees = Trees.drawn(rng, BLOCK, max_length, max_depth, max_args)
        lengths = trees.lengths
        fits = (lengths > min_length) & (lengths < max_length)
        fits &= np.cumsum(fits) <= n
        if fits.any():
            yield trees.of_trees(fits)
            n -= int(np.count_nonzero(fits))


@cache
def majority_share(min_length: int, max_length: int, max_depth: int, max_args: int) -> float:
    """Return the share of the most common value among `COUNTED` expressions."""
    parts = kept_trees(np.random.default_rng(0), min_length, max_length, max_depth, max_args, COUNTED)
    return float(np.bincount(np.concatenate([trees.values() for trees in parts])).max() / COUNTED)


@cache
def length_share(min_length: int, max_length: int, max_depth: int, max_args: int) -> float:
    """Return the probability that the length of an expression, not a single digit, lies strictly between the bounds.

    Uses generating functions: coefficient l of a polynomial is the probability of length l, and the polynomials of
    arguments multiply.
    """
    n = 1 << (2 * max_length).bit_length()  # size of the transform: lengths up to max_length do not wrap around

    def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        product = np.fft.irfft(np.fft.rfft(a, n) * np.fft.rfft(b, n), n)
        return np.maximum(product[:max_length], 0)

    digit = np.zeros(max_length)
    digit[1] = 1
    argument = nested = digit
    for _ in range(max_depth - 1):
        # The mean of argument^2 ... argument^max_args by Horner's scheme.
        powers = np.zeros(max_length)
        for _ in range(max_args - 1):
            powers = times(powers, argument) + argument
        powers = times(powers, argument) / (max_args - 1)
        nested = np.concatenate([[0, 0], powers[:-2]])
        argument = ((NESTED - 1) * digit + nested) / NESTED
    return float(nested[min_length + 1 :].sum())
