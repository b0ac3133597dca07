"""Mano: evaluate modular arithmetic in prefix notation without writing intermediate results."""

from __future__ import annotations

from functools import cache

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.placing import LAST, fact_at, labels_at
from tasks.spec import TaskSpec

OPERATORS = "+-*"


class Mano(Task):
    """Evaluate an expression in prefix notation modulo m, without writing intermediate results.

    Definition, with m = modulus and L = seq_len/2 - 1: the number l of operators is uniform in 1 ... L. An expression
    with l operators is one operator, uniform among + - *, followed by two expressions. The first has k operators, k
    uniform in 0 ... l - 1, the second l - 1 - k. An expression without operators is a number, uniform in 0 ... m - 1.
    Tokens 0 ... m - 1 are the numbers, then come the operators, = and a blank. The last position holds =, the
    expression ends before it, and blanks fill the beginning. The label is the value modulo m, at =.

    Source: Mano of Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon
    Layers", SSRN 5240330, modulo 23 with L = 10, 13 and 16, tested at l = L; facebookresearch/PhysicsLM4, commit
    7580696, data-synthetic-pretrain/Mano/mano.py. In the source a text has several expressions, each after a token for
    its length, and every operator has two names.

    `operators` is l.

    Prediction: The value of a part must be stored until the next part is known, which a stack does. With depth, each
    layer can join the pairs that the layers below finished: accuracy falls with l, later in deeper models. A decay in
    (0, 1) does not compute modulo m; the channel mixers memorise the tables of products and sums.

        >>> task = Mano(seq_len=8, modulus=5)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token)}" for token in example["inputs"][0]), example["labels"][0, -1])
        - 1 - * 3 4 0 = 4

    Args:
        seq_len: length of a sequence, even.
        modulus: modulus of the arithmetic, at least 2.
    """

    def __init__(self, seq_len: int = 22, modulus: int = 23) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 4)
        self.modulus = self._whole("modulus", modulus, 2)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")

    @property
    def max_operators(self) -> int:
        """Maximum number of operators in an expression."""
        return self.seq_len // 2 - 1

    @property
    def spec(self) -> TaskSpec:
        law = _laws(self.max_operators, self.modulus)[1:].mean(axis=0)
        return TaskSpec.tokens(
            self.seq_len,
            self.modulus + len(OPERATORS) + 2,
            self.modulus,
            chance=float(law.max()),
            labelled=1,
            facts=("operators",),
        )

    def input_text(self, token: int) -> str:
        return str(token) if token < self.modulus else (*OPERATORS, "=", "")[token - self.modulus]

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        m = self.modulus
        n_operators = rng.integers(1, self.max_operators + 1, size=n)
        inputs = np.full((n, self.seq_len), m + len(OPERATORS) + 1)
        inputs[:, -1] = m + len(OPERATORS)
        self._write(rng, inputs, n_operators)
        return {
            "inputs": inputs,
            "labels": labels_at(LAST, self._values(inputs)[:, None], self.seq_len),
            "operators": fact_at(LAST, n_operators[:, None], self.seq_len),
        }

    def _write(self, rng: np.random.Generator, inputs: np.ndarray, n_operators: np.ndarray) -> None:
        """Write expressions from left to right, with a stack of the sizes of the remaining parts."""
        rows, begin = np.arange(len(inputs)), self.seq_len - 2 - 2 * n_operators
        stack = np.zeros((len(inputs), self.max_operators + 2), dtype=np.int64)
        stack[:, 0], height = n_operators, np.ones(len(inputs), dtype=np.int64)
        for position in range(self.seq_len - 1):
            # Draw for all rows, so that an expression does not depend on the shapes of others.
            number, operator, share = (rng.integers(size, size=len(rows)) for size in (self.modulus, 3, 1 << 40))
            here = rows[position >= begin]
            size = stack[here, height[here] - 1]
            first = share[here] * size >> 40
            inputs[here, position] = np.where(size > 0, self.modulus + operator[here], number[here])
            parted = here[size > 0]
            stack[parted, height[parted] - 1] = (size - 1 - first)[size > 0]
            stack[parted, height[parted]] = first[size > 0]
            height[here] += np.where(size > 0, 1, -1)

    def _values(self, inputs: np.ndarray) -> np.ndarray:
        """Evaluate expressions from right to left, with a stack of the values of finished parts."""
        rows, m = np.arange(len(inputs)), self.modulus
        stack = np.zeros((len(inputs), self.max_operators + 2), dtype=np.int64)
        height = np.zeros(len(inputs), dtype=np.int64)
        for position in range(self.seq_len - 2, -1, -1):
            token = inputs[:, position]
            here = rows[token < m]
            stack[here, height[here]] = token[here]
            height[here] += 1
            here = rows[(token >= m) & (token < m + len(OPERATORS))]
            a, b = stack[here, height[here] - 1], stack[here, height[here] - 2]
            stack[here, height[here] - 2] = np.choose(token[here] - m, (a + b, a - b, a * b)) % m
            height[here] -= 1
        return stack[:, 0]


@cache
def _laws(max_operators: int, modulus: int) -> np.ndarray:
    """Return the distribution of an expression's value with 0 ... max_operators operators, (operators, modulus)."""
    residues = np.arange(modulus)
    laws = np.full((max_operators + 1, modulus), 1 / modulus)
    results = [np.add.outer(residues, residues), np.subtract.outer(residues, residues), np.outer(residues, residues)]
    for size in range(1, max_operators + 1):
        both = sum(np.outer(laws[first], laws[size - 1 - first]) for first in range(size)) / (size * len(results))
        laws[size] = 0
        for result in results:
            np.add.at(laws[size], result % modulus, both)
    return laws
