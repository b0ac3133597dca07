"""Slow solvers of the recall and copying tasks: plain loops over one example, from the definitions alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

Options = dict[str, Any]
Answers = dict[int, int]


def solve_forgetting(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Read the list of pairs as assignments, one after the other."""
    value_of = {}
    for j in range(options["n_pairs"] + options["n_updates"]):
        value_of[inputs[2 * j]] = inputs[2 * j + 1]
    return {i: value_of[inputs[i]] for i in asked}


def forgetting_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Back to the value of the key's last assignment."""
    distance = {}
    for i in asked:
        for j in range(options["n_pairs"] + options["n_updates"]):
            if inputs[2 * j] == inputs[i]:
                distance[i] = i - (2 * j + 1)
    return distance


def forgetting_assignments(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """How often the key stands in the list."""
    keys = inputs[0 : 2 * (options["n_pairs"] + options["n_updates"]) : 2]
    return {i: keys.count(inputs[i]) for i in asked}


def all_pairs(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    return dict.fromkeys(asked, options["n_pairs"])


def solve_compositional(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look the two tokens up in the list of triples in front."""
    value_of = {}
    for j in range(options["n_pairs"]):
        first, second, value = inputs[3 * j : 3 * j + 3]
        value_of[first, second] = value
    return {i: value_of[inputs[i - 1], inputs[i]] for i in asked}


def compositional_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Back to the value of the triple with the same key."""
    keys = [tuple(inputs[3 * j : 3 * j + 2]) for j in range(options["n_pairs"])]
    return {i: i - (3 * keys.index((inputs[i - 1], inputs[i])) + 2) for i in asked}


# MAD's recall


def every_token_asked(options: Options, asked: list[int], n_next: int) -> bool:
    """Whether this is the training form, which labels each position with its next token."""
    return options["train_targets"] == "every_token" and asked == list(range(n_next))


def _key_positions(options: Options, inputs: list[int]) -> dict[int, list[int]]:
    """For each key where it stands; noise, if there is any, is above keys and values."""
    positions: dict[int, list[int]] = {}
    n_keys = (options["vocab_size"] - options.get("noise_vocab_size", 0)) // 2
    for i in range(0, len(inputs), 2):
        if inputs[i] < n_keys:
            positions.setdefault(inputs[i], []).append(i)
    return positions


def solve_recall(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """The value behind the key's first occurrence, for each occurrence after it; in training the next token."""
    if every_token_asked(options, asked, len(inputs) - 1):
        return {i: inputs[i + 1] for i in asked}
    return {i: inputs[first + 1] for first, *later in _key_positions(options, inputs).values() for i in later}


def recall_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Back to the value behind the occurrence before."""
    distance = {}
    for positions in _key_positions(options, inputs).values():
        for before, i in pairwise(positions):
            distance[i] = i - (before + 1)
    return distance


def _fuzzy_pairs(options: Options, inputs: list[int]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Read the sequence as words: (key, positions of its value's tokens). A word ends where the other alphabet begins.

    Two words of one alphabet never follow each other, so the reading is unique.
    """
    pairs: list[tuple[tuple[int, ...], list[int]]] = []
    key: list[int] = []
    n_keys = (options["vocab_size"] - 1) // 2
    for i, token in enumerate(inputs):
        if token == options["vocab_size"] - 1:
            continue
        if token < n_keys:
            if i == 0 or inputs[i - 1] >= n_keys:
                key = []
                pairs.append(((), []))
            key.append(token)
            pairs[-1] = (tuple(key), [])
        else:
            pairs[-1][1].append(i)
    return pairs


def _fuzzy_answers(options: Options, inputs: list[int]) -> list[tuple[int, int, int]]:
    """(position of a label, the token, position where the value gave it before), for keys that come back."""
    answers = []
    given: dict[tuple[int, ...], list[int]] = {}
    value: dict[tuple[int, ...], list[int]] = {}
    pairs = _fuzzy_pairs(options, inputs)
    for number, (key, positions) in enumerate(pairs):
        if key not in given:
            given[key], value[key] = positions, [inputs[i] for i in positions]
            continue
        start = positions[0] if positions else len(inputs)
        # The last token of the last value is a label only, and so the value's size is known from before.
        size = len(value[key])
        assert len(positions) == size - (number == len(pairs) - 1)
        answers += [(start + w - 1, value[key][w], given[key][w]) for w in range(size)]
        given[key] = [start + w for w in range(size)]
    return answers


def solve_fuzzy(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Spell the value of each key that comes back; in training each next token, the last of which is such an answer."""
    answers = {i: token for i, token, _ in _fuzzy_answers(options, inputs)}
    if every_token_asked(options, asked, len(inputs)):
        return {**{i: inputs[i + 1] for i in asked[:-1]}, len(inputs) - 1: answers[len(inputs) - 1]}
    return answers


def fuzzy_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    return {i: i - before for i, _, before in _fuzzy_answers(options, inputs)}


# Copying


def solve_copying(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Say what is neither blank nor marker before the first marker, in order."""
    before = inputs[: inputs.index(options["vocab_size"] - 1)]
    tokens = [token for token in before if token > 0]
    return dict(zip(asked, tokens, strict=True))


def copying_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    places = range(options["n_copied"])
    return {i: i - place for i, place in zip(asked, places, strict=True)}


def solve_selective(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Say what is neither blank nor marker, in order; asked are the positions behind the marker."""
    tokens = [token for token in inputs if token < options["vocab_size"] - 2]
    return {inputs.index(options["vocab_size"] - 1) + 1 + k: token for k, token in enumerate(tokens)}


def selective_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    places = [i for i, token in enumerate(inputs) if token < options["vocab_size"] - 2]
    return {i: i - place for i, place in zip(asked, places, strict=True)}


def solve_induction(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """What stands behind the first trigger, at the second."""
    first, second = (i for i, token in enumerate(inputs) if token == options["vocab_size"] - 1)
    return {second: inputs[first + 1]}


def induction_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    first, second = (i for i, token in enumerate(inputs) if token == options["vocab_size"] - 1)
    return {second: second - (first + 1)}


def solve_compression(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """A place token names the place whose token it asks for."""
    marker = inputs.index(options["vocab_size"] - 1)
    return {i: inputs[inputs[i] - options["vocab_size"]] for i in range(marker + 1, len(inputs))}


def compression_distance(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    return {i: i - (inputs[i] - options["vocab_size"]) for i in asked}


def solve_memorization(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look the key in front of the question up in the map, drawn from its seed as the definition says."""
    n_keys = (options["vocab_size"] - 1) // 2
    values = np.random.default_rng(options["map_seed"]).permutation(range(n_keys, options["vocab_size"] - 1))
    return {i: int(values[inputs[i - 1]]) for i in asked}
