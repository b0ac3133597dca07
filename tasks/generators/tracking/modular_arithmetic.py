"""Modular arithmetic: evaluate sums, differences and products without brackets."""

from __future__ import annotations

from functools import cache

import numpy as np

from tasks.base import Arrays
from tasks.generators.tracking.regular import Regular
from tasks.spec import IGNORED, TaskSpec

OPERATORS = "+-*"


class ModularArithmetic(Regular):
    """Evaluate an expression without brackets modulo m, products before sums and differences.

    Definition, with m = modulus: numbers, uniform in 0 ... m - 1, are at positions 0, 2, 4, ...; between them are
    operators, uniform among `operators`. Tokens 0 ... m - 1 are the numbers; m, m + 1 and m + 2 are +, - and *. The
    label at the last position is the value of the expression modulo m. A product may be 0, which erases its factors:
    unlike steps in a group, not all steps are invertible.

    Source: Delétang et al., "Neural Networks and the Chomsky Hierarchy", arXiv 2207.02098, modulo 5, trained on lengths
    up to 40 (odd ones, so 39) and tested up to 500; the only label is at the end. Their blank token, which never
    occurs, is left out here. Also in Beck et al., "xLSTM", arXiv 2405.04517.

    Prediction: The state is the sum of the finished products and the current product, both residues. An RNN or LSTM
    learns it. A linear recurrence must permute and erase depending on the input: reflections (delta rule with beta up
    to 2, delta_product) can, decays in (0, 1) cannot. Attention fails on longer sequences.

        >>> task = ModularArithmetic(seq_len=9, every_position=True)
        >>> example = task.sample(np.random.default_rng(1), 1)
        >>> print(*(f"{task.input_text(token):>4}" for token in example["inputs"][0]))
           2    +    2    *    3    *    4    +    0
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
           2 -100    4 -100    3 -100    1 -100    1

    Args:
        seq_len: length of a sequence, odd.
        modulus: modulus of the arithmetic, at least 2.
        operators: the operators in use, some of "+-*"; without "*" the steps are those of the cyclic group.
        every_position: label every number with the value of the expression so far, instead of only the last one.
    """

    def __init__(
        self, seq_len: int = 39, modulus: int = 5, operators: str = OPERATORS, every_position: bool = False
    ) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.modulus = self._whole("modulus", modulus, 2)
        self.operators = str(operators)
        self.every_position = bool(every_position)
        self._demand(self.seq_len % 2 == 1, "seq_len must be odd")
        known = 0 < len(self.operators) == len(set(self.operators) & set(OPERATORS))
        self._demand(known, f"operators must be some of {OPERATORS}, each once")

    @property
    def spec(self) -> TaskSpec:
        product_share = ("*" in self.operators) / len(self.operators)
        return self._regular_spec(self.modulus + 3, _values(self.seq_len // 2 + 1, self.modulus, product_share))

    def input_text(self, token: int) -> str:
        return str(token) if token < self.modulus else OPERATORS[token - self.modulus]

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        m, n_numbers = self.modulus, self.seq_len // 2 + 1
        # Positions first, so that each step reads and writes contiguous memory.
        numbers = rng.integers(m, size=(n_numbers, n))
        codes = np.array([OPERATORS.index(operator) for operator in self.operators])
        operators = codes[rng.integers(len(codes), size=(n_numbers - 1, n))]

        signed = numbers.copy()
        signed[1:][operators == 1] *= -1
        values = np.empty_like(numbers)
        values[0] = open_product = numbers[0]
        for i in range(1, n_numbers):
            # A factor changes the open product, and the value by the same amount; + and - begin a new product.
            before = np.where(operators[i - 1] == 2, open_product, 0)
            open_product = np.where(operators[i - 1] == 2, open_product * numbers[i] % m, signed[i])
            values[i] = (values[i - 1] - before + open_product) % m

        inputs = np.empty((n, self.seq_len), dtype=np.int64)
        inputs[:, ::2], inputs[:, 1::2] = numbers.T, m + operators.T
        answers = np.full((n, self.seq_len), IGNORED, dtype=np.int64)
        answers[:, ::2] = values.T
        return {"inputs": inputs, "labels": self._asked(answers)}


@cache
def _values(n_numbers: int, modulus: int, product_share: float) -> np.ndarray:
    """Return the distribution of an expression's value after 1 ... n_numbers numbers, (n_numbers, modulus).

    The loop carries the joint distribution of the sum of closed products and the open product, (modulus, modulus). A
    sign does not change the distribution of a uniform number, so sums and differences are treated alike.
    """
    residues = np.arange(modulus)
    differences = (residues[:, None] - residues) % modulus
    # Row c: distribution of the product c times a uniform factor.
    times = np.zeros((modulus, modulus))
    np.add.at(times, (residues[:, None], residues[:, None] * residues % modulus), 1 / modulus)
    joint = np.zeros((modulus, modulus))
    joint[0] = 1 / modulus
    laws = np.empty((n_numbers, modulus))
    for law in laws:
        law[:] = joint[differences, residues].sum(axis=1)
        joint = product_share * joint @ times + (1 - product_share) * law[:, None] / modulus
    return laws
