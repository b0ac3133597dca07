"""Group words: the product of every prefix of a word over a finite group."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.tracking.groups import best_product_share, group_elements, group_order, multiplication_table
from tasks.spec import TaskSpec


class GroupWords(Task):
    """Compute the product of every prefix of a word over a finite group.

    Definition: elements x_1 ... x_L are drawn uniformly and independently from the group, or from `generators`, one
    token each; the label at position i is the product of x_1 ... x_i. Elements act in reading order: the product of a
    and b is "first a, then b", which for permutations takes k to b(a(k)). The order matters in all groups except the
    cyclic ones and their products.

    Elements of Z<m> are numbered by residue, permutations in lexicographic order of their images (S3: 0 = 123,
    1 = 132, 2 = 213, 3 = 231, 4 = 312, 5 = 321), elements of a product likewise; 0 is always the neutral element. A
    token is the number of its element, with generators too. Few generators give few words: at length 16 there are only
    65,536 words of two generators, and the splits share some of them.

    Source: Merrill, Petty and Sabharwal, "The Illusion of State in State-Space Models", arXiv 2404.08819 (Z60, A4xZ5,
    A5: three groups of 60 elements, solvable except for the last); lengths of 128, tested up to 512, with S3, A5 and S5
    in Siems et al., "DeltaProduct", arXiv 2502.10297; words of some of the elements, such as swaps only, in Grazzi et
    al., arXiv 2411.12537.

    Prediction: The word problem of a group that is not solvable (A5, S5) is complete for NC1. Attention and SSMs with
    diagonal or fixed transitions need a depth that grows with the length, an RNN or LSTM one layer. A layer of the
    delta rule with eigenvalues down to -1 reflects once per token, which tracks swaps (Z2). Tracking S3 takes two
    reflections per token; a single reflection can count instead, and is right as long as its readout knows the integers
    that it reaches (`zoo claims reflection_counts`). A rotation of A5 also takes two, an element of S5 up to four, but
    a swap only one, so one reflection per token tracks words of swaps (`generators`).

        >>> task = GroupWords(group="S3", seq_len=8)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(task.input_text(token) for token in example["inputs"][0]))
        321 231 231 132 132 123 123 123
        >>> print(*(task.label_text(label) for label in example["labels"][0]))
        321 132 213 312 213 213 213 213

    Args:
        group: Z<m> (cyclic), S<n> (all permutations), A<n> (even permutations), or a product joined by x, such as
            A4xZ5.
        seq_len: length of a sequence.
        generators: the elements from which words are drawn, joined by +, such as 23451+12453 of A5; default all.
    """

    def __init__(self, group: str = "A5", seq_len: int = 128, generators: str | None = None) -> None:
        self.group = str(group)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        try:
            self._order = group_order(self.group)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}, got group={self.group!r}") from None
        self.generators = None if generators is None else str(generators)
        elements = group_elements(self.group)
        drawn = elements if self.generators is None else self.generators.split("+")
        known = 1 < len(set(drawn)) == len(drawn) and set(drawn) <= set(elements)
        some = " ".join(elements[:6]) + (" ..." if len(elements) > 6 else "")
        self._demand(known, f"generators must be two or more of {some}, each once, joined by +")
        self.alphabet = tuple(elements.index(each) for each in drawn)
        """Numbers of the elements from which words are drawn."""

    @property
    def spec(self) -> TaskSpec:
        chance = 1 / self._order if self.generators is None else self._chance()
        return TaskSpec.tokens(self.seq_len, self._order, chance=chance, labelled=self.seq_len)

    def _chance(self) -> float:
        """Return the probability of the likeliest product of each length, averaged over positions."""
        table = multiplication_table(self.group)
        likely = np.eye(self._order)[0]
        right = 0.0
        for _ in range(self.seq_len):
            after = np.zeros(self._order)
            for element in self.alphabet:
                after[table[:, element]] += likely / len(self.alphabet)
            likely = after
            right += likely.max()
        return right / self.seq_len

    def input_text(self, token: int) -> str:
        return group_elements(self.group)[token]

    def label_text(self, label: int) -> str:
        return group_elements(self.group)[label]

    def guess_without_order(self) -> float | None:
        return best_product_share(self.group, self.alphabet, self.seq_len)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        table = multiplication_table(self.group)
        inputs = np.array(self.alphabet)[rng.integers(len(self.alphabet), size=(n, self.seq_len))]
        # Positions first, so that each step reads and writes contiguous memory.
        steps = np.ascontiguousarray(inputs.T)
        products = np.empty_like(steps)
        product = np.zeros(n, dtype=np.int64)
        for i, step in enumerate(steps):
            product = products[i] = table[product, step]
        return {"inputs": inputs, "labels": np.ascontiguousarray(products.T)}
