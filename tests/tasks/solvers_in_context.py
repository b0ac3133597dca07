"""Slow solvers of the tasks whose rule is new in every sequence: plain loops, from the definitions alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Options = dict[str, Any]
Answers = dict[int, int]


def edges_and_questions(options: Options, inputs: list[int]) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """{node: successor}, which must be one cycle, and {position: (node, k)}."""
    listed = len(inputs) - 2 * options["n_questions"]
    successor = dict(zip(inputs[0:listed:2], inputs[1:listed:2], strict=True))
    assert all(0 <= node < options["n_names"] for node in successor)
    node = first = inputs[0]
    for step in range(1, listed // 2 + 1):
        node = successor[node]
        assert (node == first) == (step == listed // 2)
    questions = {}
    for position in range(listed + 1, len(inputs), 2):
        questions[position] = inputs[position], inputs[position - 1] - options["n_names"] + 1
    assert all(1 <= k <= options["max_hops"] for _, k in questions.values())
    assert len({node for node, _ in questions.values()}) == options["n_questions"]
    return successor, questions


def solve_k_hop(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Take one step after the other."""
    successor, questions = edges_and_questions(options, inputs)
    assert asked == list(questions)
    answers = {}
    for position, (node, k) in questions.items():
        for _ in range(k):
            node = successor[node]
        answers[position] = node
    return answers


def k_hop_hops(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    _, questions = edges_and_questions(options, inputs)
    return {position: questions[position][1] for position in asked}


def solve_stacked_mqar(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Look the key up in every pass, then the value that stood beside it among all values, drawn behind all keys."""
    m, d, n_passes = options["n_symbols"], options["d_key"], options["n_passes"]
    n_pairs = len(inputs) // (n_passes + 1)
    assert asked == list(range(n_passes * n_pairs, len(inputs)))
    drawn = np.random.default_rng(options["vector_seed"]).standard_normal(2 * m * d).astype(np.float32).tolist()
    numbers = [drawn[d * i : d * (i + 1)] for i in range(2 * m)]
    answers = {}
    for position in asked:
        assert inputs[position][d:] == [0.0] * d
        beside = {tuple(x[d:]) for x in inputs[: asked[0]] if x[:d] == inputs[position][:d]}
        assert len(beside) == 1
        assert inputs[position][:d] in numbers[:m]
        answers[position] = numbers[m:].index(list(*beside))
    assert len(set(answers.values())) == n_pairs
    return answers


def stacked_mqar_distance(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Back to where the key stood last among the pairs."""
    d = options["d_key"]
    keys = [x[:d] for x in inputs]
    return {i: next(i - j for j in reversed(range(asked[0])) if keys[j] == keys[i]) for i in asked}


def solve_in_context_regression(
    options: Options, inputs: list[list[float]], asked: list[int]
) -> dict[int, list[float]]:
    """Read the answers, which follow the questions; one linear function must give them all."""
    assert asked == list(range(0, len(inputs), 2))
    assert not any(any(y[1:]) for y in inputs[1::2])
    x, y = np.array(inputs[::2]), np.array([y[0] for y in inputs[1::2]])
    fitted = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(fitted, y, atol=1e-5 * np.abs(x).max() * options["d_x"])
    return {position: [inputs[position + 1][0]] for position in asked}


def pairs_before(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    return {position: len(inputs[:position]) // 2 for position in asked}


def words_of(tokens: list[int], separator: int) -> list[list[int]]:
    """The words; the last one is not ended, and empty after a separator."""
    words: list[list[int]] = [[]]
    for token in tokens:
        if token == separator:
            words.append([])
        else:
            words[-1].append(token)
    return words


def words_so_far(options: Options, inputs: list[int], position: int) -> list[list[int]]:
    """The words up to and with a position; the last one is the current word."""
    words = words_of(inputs[: position + 1], options["n_symbols"])
    assert all(1 <= len(word) <= options["max_word"] for word in words[:-1])
    return words


def went_on(words: list[list[int]], beginning: list[int]) -> set[int]:
    """The symbols that follow a beginning in any of these words."""
    n = len(beginning)
    return {word[n] for word in words if word[:n] == beginning and len(word) > n}


def solve_automata(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look for earlier words that begin as the current one does: they all go on with one symbol, here and later."""
    answers = {}
    everything = words_so_far(options, inputs, len(inputs) - 1)
    for position in asked:
        *earlier, current = words_so_far(options, inputs, position)
        (answers[position],) = went_on(earlier, current)
        assert went_on(everything, current) == {answers[position]}
    if options["max_edges"] == 1:  # nothing but what is new and where words end is left open
        for position in range(len(inputs) - 1):
            *earlier, current = words_so_far(options, inputs, position)
            known = inputs[position + 1] != options["n_symbols"] and went_on(earlier, current)
            assert (position in asked) == bool(known)
    return answers


def symbols_read(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    return {position: len(words_so_far(options, inputs, position)[-1]) for position in asked}
