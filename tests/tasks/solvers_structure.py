"""Slow solvers of the tasks of long memory, state tracking and structure: plain loops, from the definitions alone."""

from __future__ import annotations

import json
import statistics
from functools import cache
from typing import Any

import numpy as np

Options = dict[str, Any]
Answers = dict[int, int]


def solve_adding(options: Options, inputs: list[list[float]], asked: list[int]) -> dict[int, list[float]]:
    """Sum what is marked: one number of each half."""
    marked = [position for position, (_, mark) in enumerate(inputs) if mark == 1]
    assert len(marked) == 2
    assert marked[0] < len(inputs) // 2 <= marked[1]
    assert all(mark in (0, 1) for _, mark in inputs)
    return {position: [sum(inputs[i][0] for i in marked)] for position in asked}


def solve_delay(options: Options, inputs: list[list[float]], asked: list[int]) -> dict[int, list[float]]:
    """Look back; before the beginning there is silence."""
    assert inputs[0] == [0]
    return {i: inputs[i - options["lag"]] if i >= options["lag"] else [0.0] for i in asked}


def solve_parity(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Count the ones."""
    return {position: inputs[: position + 1].count(1) % 2 for position in asked}


# Regular languages: one answer at the end, or one for every prefix


def prefixes_asked(options: Options, inputs: list[int], asked: list[int], answerable: list[int]) -> list[int]:
    assert len(inputs) == options["seq_len"]
    assert asked == (answerable if options["every_position"] else [len(inputs) - 1])
    return asked


def solve_even_pairs(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Write the bits out and count 01 and 10."""
    answers = {}
    for position in prefixes_asked(options, inputs, asked, list(range(len(inputs)))):
        bits = "".join(map(str, inputs[: position + 1]))
        answers[position] = sum(bits[i : i + 2] in ("01", "10") for i in range(position)) % 2
    return answers


def solve_cycle_navigation(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Go from place to place."""
    places, last = {}, options["cycle_length"] - 1
    place = 0
    for position, token in enumerate(inputs):
        if token == 0:
            place = last if place == 0 else place - 1
        elif token == 2:
            place = 0 if place == last else place + 1
        else:
            assert token == 1
        places[position] = place
    return {position: places[position] for position in prefixes_asked(options, inputs, asked, list(places))}


def solve_modular_arithmetic(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Write the expression out and let Python compute it in whole numbers."""
    modulus = options["modulus"]
    texts = [str(token) if token < modulus else "+-*"[token - modulus] for token in inputs]
    assert all(token < modulus for token in inputs[::2])
    assert all(text in options["operators"] for text in texts[1::2])
    answerable = prefixes_asked(options, inputs, asked, list(range(0, len(inputs), 2)))
    return {position: eval(" ".join(texts[: position + 1])) % modulus for position in answerable}


# Groups, as sums of residues and as permutations that move things about: no table of products.


def solve_group_words(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Let every element act, one after the other, on a clock or on a row of things for each factor of the group."""
    factors = options["group"].split("x")
    elements = [all_elements(factor) for factor in factors]
    states: list[Any] = [own[0] for own in elements]
    answers = {}
    for position, token in enumerate(inputs):
        for j in reversed(range(len(factors))):
            token, place = divmod(token, len(elements[j]))
            states[j] = then(states[j], elements[j][place], len(elements[j]))
        label = 0
        for j in range(len(factors)):
            label = label * len(elements[j]) + elements[j].index(states[j])
        answers[position] = label
    return {position: answers[position] for position in asked}


def all_elements(factor: str) -> list[Any]:
    size = int(factor[1:])
    if factor[0] == "Z":
        return list(range(size))
    found = sorted(arrangements(list(range(size))))
    return [p for p in found if factor[0] == "S" or swaps_to_sort(p) % 2 == 0]


def arrangements(things: list[int]) -> list[tuple[int, ...]]:
    if not things:
        return [()]
    return [(first, *rest) for first in things for rest in arrangements([t for t in things if t != first])]


def swaps_to_sort(permutation: tuple[int, ...]) -> int:
    row, swaps = list(permutation), 0
    for i in range(len(row)):
        while row[i] != i:
            j = row[i]
            row[i], row[j] = row[j], row[i]
            swaps += 1
    return swaps


def then(state: Any, element: Any, order: int) -> Any:
    """First what was, then the element."""
    if isinstance(state, int):
        return (state + element) % order
    return tuple(element[place] for place in state)


# Brackets


def solve_bracket(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Keep a stack; every bracket must close the one that was opened last, and none may stay open."""
    stack: list[int] = []
    depth = {}
    for position, token in enumerate(inputs):
        if token < options["n_types"]:
            stack.append(token)
        else:
            assert stack.pop() == token - options["n_types"]
        depth[position] = len(stack)
        assert len(stack) <= options["max_depth"]
    assert not stack
    return {position: depth[position] for position in asked}


# ListOps


def solve_listops(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Read the expression with a stack of unfinished lists; what it comes to, and that it is one as defined."""
    blanks = inputs.count(15)
    assert inputs[:blanks] == [15] * blanks
    expression = inputs[blanks:]
    assert options["min_length"] < len(expression) < options["max_length"]
    unfinished: list[list[int]] = [[]]
    for token in expression:
        if 10 <= token <= 13:
            unfinished.append([token])
            assert len(unfinished) <= options["max_depth"]
            continue
        value = token
        if token == 14:
            operator, *values = unfinished.pop()
            assert 2 <= len(values) <= options["max_args"]
            value = outcome(operator, values)
        unfinished[-1].append(value)
    [[value]] = unfinished
    return dict.fromkeys(asked, value)


def outcome(operator: int, values: list[int]) -> int:
    if operator == 10:
        return min(values)
    if operator == 11:
        return max(values)
    if operator == 12:
        return int(statistics.median(values))
    return sum(values) % 10


# Pathfinder


def solve_pathfinder(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Flood the picture from one dot, over gaps of a pixel, and see whether the other gets wet."""
    size = options["image_size"]
    lit = {divmod(place, size) for place, token in enumerate(inputs) if token > 0}
    dots = [divmod(place, size) for place, token in enumerate(inputs) if token == 2]
    assert len(dots) == 2
    paths = []
    while lit:
        path, shore = set(), {min(lit)}
        while shore:
            row, column = shore.pop()
            path.add((row, column))
            lit.discard((row, column))
            shore |= {(r, c) for r in range(row - 2, row + 3) for c in range(column - 2, column + 3)} & lit
        paths.append(path)
    dashes = sorted(sum(pixel not in dots for pixel in path) // 2 for path in paths)
    expected = 2 * [options["path_length"]] + options["n_distractors"] * [options["distractor_length"]]
    assert dashes == sorted(expected)
    together = any(set(dots) <= path for path in paths)
    for path in paths:
        assert not path & set(dots) or len(path) >= 2 * options["path_length"]
    return dict.fromkeys(asked, int(together))


# Trees of a grammar: the grammar is drawn again, then read as a person would


@cache
def treecall_rules(text: str) -> dict[tuple[int, int], list[int]]:
    """{(nonterminal, head): the items behind it}; items from n_terminals on are nonterminals."""
    options = dict(json.loads(text))
    rng, v, n = np.random.default_rng(options["grammar_seed"]), options["n_terminals"], options["n_nonterminals"]
    levels = [int(level) for level in rng.integers(1, options["n_levels"] + 1, size=n)]
    levels[0] = 1
    rules = {}
    for nonterminal in range(n):
        items = [*range(v), *(v + other for other in range(n) if levels[other] > levels[nonterminal])]
        own = []
        for _ in range(int(rng.integers(1, options["max_rules"] + 1))):
            size = int(rng.integers(1, options["max_rhs"] + 1))
            own.append([items[i] for i in rng.integers(len(items), size=size)])
        for head, rule in enumerate(rng.integers(len(own), size=v)):
            rules[nonterminal, head] = own[rule]
    return rules


def treecall_tree(options: Options, inputs: list[int]) -> tuple[list[int], list[int], int]:
    """The sentence, the place of each token's parent (of the first one -1), and of what is asked about the last one."""
    v, end = options["n_terminals"], inputs.index(options["n_terminals"] + 1)
    sentence = inputs[1:end]
    assert inputs[0] == v
    assert len(sentence) >= 3
    assert set(inputs[end + 2 :]) <= {v + 2}
    rules = treecall_rules(json.dumps({key: value for key, value in options.items() if key != "seq_len"}))
    parents: list[int] = []

    def read(item: int, parent: int) -> None:
        place = len(parents)
        parents.append(parent)
        if item < v:
            assert sentence[place] == item
        else:
            for each in rules[item - v, sentence[place]]:
                read(each, place)

    read(v, -1)
    assert len(parents) == len(sentence)
    return sentence, parents, max(i for i, each in enumerate(sentence) if each == inputs[end + 1])


def solve_treecall(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Find the token where it stands last, and its parent."""
    sentence, parents, place = treecall_tree(options, inputs)
    assert asked == [len(sentence) + 2]
    return {asked[0]: sentence[parents[place]]}


def treecall_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Back to where the parent stands: a token is one place behind the start."""
    _, parents, place = treecall_tree(options, inputs)
    return {asked[0]: asked[0] - (1 + parents[place])}


def treecall_depth(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Up to the first token."""
    _, parents, place = treecall_tree(options, inputs)
    depth = 0
    while place > 0:
        place, depth = parents[place], depth + 1
    return {asked[0]: depth}
