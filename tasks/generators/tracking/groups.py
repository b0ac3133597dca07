"""Finite groups by name, as multiplication tables."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from functools import cache
from itertools import combinations, permutations

import numpy as np

MAX_ORDER = 1000
MAX_STEPS = 10**6
"""Maximum number of steps in which `best_product_share` counts words."""

NAMES = "Z<m> (cyclic), S<n> (all permutations), A<n> (even permutations), or a product joined by x, such as A4xZ5"


def group_order(name: str) -> int:
    """Return the number of elements of the group `name`.

    Raises:
        ValueError: no such group, or a group of more than `MAX_ORDER` elements; the message omits the task.
    """
    order = math.prod(_factor_order(factor) for factor in name.split("x"))
    if not 2 <= order <= MAX_ORDER:
        raise ValueError(f"the group must have 2 ... {MAX_ORDER} elements")
    return order


def _factor_order(factor: str) -> int:
    match = re.fullmatch(r"([ZSA])([1-9]\d{0,2})", factor)
    if match is None:
        raise ValueError(f"the group must be {NAMES}")
    kind, size = match[1], int(match[2])
    if kind == "Z":
        return size
    # Bound the size first, because the order is its factorial.
    return math.factorial(min(size, 10)) // (2 if kind == "A" and size > 1 else 1)


@cache
def group_elements(name: str) -> tuple[str, ...]:
    """Return the text of each element: a number for Z<m>, else the images of 1, 2, ...; element 0 is the identity."""
    named: list[str] = [""]
    for factor in name.split("x"):
        if factor[0] == "Z":
            mine = [str(residue) for residue in range(_factor_order(factor))]
        else:
            mine = ["".join(str(image + 1) for image in element) for element in _permutations(factor)]
        named = [f"{before},{own}" if before else own for before in named for own in mine]
    return tuple(named)


@cache
def multiplication_table(name: str) -> np.ndarray:
    """Return a table, int16 (order, order), in which `table[a, b]` is the element "first a, then b".

    Elements of Z<m> are numbered by residue, permutations of S<n> and A<n> in lexicographic order of their images,
    elements (a, b) of a product also lexicographically: the neutral element is 0. For permutations, "first a, then b"
    takes k to b(a(k)).
    """
    table = np.zeros((1, 1), dtype=np.int64)
    for factor in name.split("x"):
        own = _factor_table(factor)
        order = len(own)
        pairs = table[:, None, :, None] * order + own[None, :, None, :]
        table = pairs.reshape(len(table) * order, -1)
    return table.astype(np.int16)


@cache
def best_product_share(name: str, alphabet: tuple[int, ...], length: int) -> float | None:
    """Return the accuracy of the best guess of a word's product from the counts of its elements.

    This is exact, averaged over words of 1 ... `length` elements of `alphabet`. None if it takes more than `MAX_STEPS`.
    """
    table = multiplication_table(name)
    order, n = len(table), len(alphabet)
    products = table[np.ix_(alphabet, alphabet)]
    if (products == products.T).all():  # the elements commute
        return 1.0
    # Each combination of counts, of all lengths together, is extended by each element.
    if n * math.comb(n + length, length) > MAX_STEPS:
        return None
    # The probability of each product, together with its combination of counts.
    laws = {(0,) * n: np.eye(order)[0]}
    right = []
    for _ in range(length):
        longer: dict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros(order))
        for composition, law in laws.items():
            for x, element in enumerate(alphabet):
                longer[*composition[:x], composition[x] + 1, *composition[x + 1 :]][table[:, element]] += law / n
        laws = dict(longer)
        right.append(sum(law.max() for law in laws.values()))
    return float(np.mean(right))


def _factor_table(factor: str) -> np.ndarray:
    if factor[0] == "Z":
        residues = np.arange(_factor_order(factor))
        return (residues[:, None] + residues) % len(residues)
    elements = _permutations(factor)
    number = {element: i for i, element in enumerate(elements)}
    return np.array([[number[tuple(b[image] for image in a)] for b in elements] for a in elements])


def _permutations(factor: str) -> list[tuple[int, ...]]:
    """Return all (S<n>) or all even (A<n>) permutations of 0 ... n - 1, in lexicographic order."""
    every = permutations(range(int(factor[1:])))
    return [p for p in every if factor[0] == "S" or sum(a > b for a, b in combinations(p, 2)) % 2 == 0]
