"""Slow solvers of the tasks whose rule is new in every sequence: plain loops, from the definitions alone."""

from __future__ import annotations

from typing import Any

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
