"""Cases of in-context learning tasks, whose rule is new in every sequence: automata, regression, induction, k-hop."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.tasks.case import Answers, Options, TaskCase


def words_of(tokens: list[int], separator: int) -> list[list[int]]:
    """The words between separators; the last one is incomplete, or empty after a separator."""
    words: list[list[int]] = [[]]
    for token in tokens:
        if token == separator:
            words.append([])
        else:
            words[-1].append(token)
    return words


def words_so_far(options: Options, inputs: list[int], position: int) -> list[list[int]]:
    """The words up to and including a position; the last one is the current word."""
    words = words_of(inputs[: position + 1], options["n_symbols"])
    assert all(1 <= len(word) <= options["max_word"] for word in words[:-1])
    return words


def continuations(words: list[list[int]], prefix: list[int]) -> set[int]:
    """The symbols that follow a prefix in any of these words."""
    n = len(prefix)
    return {word[n] for word in words if word[:n] == prefix and len(word) > n}


def solve_automata(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Find earlier words with the same prefix as the current one: all continue with the same symbol, also later."""
    answers = {}
    everything = words_so_far(options, inputs, len(inputs) - 1)
    for position in asked:
        *earlier, current = words_so_far(options, inputs, position)
        (symbol,) = continuations(earlier, current)
        assert continuations(everything, current) == {symbol}
        answers[position] = symbol, len(current)
    if options["max_edges"] == 1:  # every position is asked unless its prefix is new or the word ends
        for position in range(len(inputs) - 1):
            *earlier, current = words_so_far(options, inputs, position)
            known = inputs[position + 1] != options["n_symbols"] and continuations(earlier, current)
            assert (position in asked) == bool(known)
    return answers


@st.composite
def automata_options(draw: st.DrawFn) -> Options:
    max_edges, max_word = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    return {
        "seq_len": max(2, max_word + draw(st.integers(1, 40))),
        "n_symbols": max_edges + draw(st.integers(1, 6)),
        "max_states": max_edges + draw(st.integers(1, 6)),
        "max_edges": max_edges,
        "max_word": max_word,
    }


def solve_in_context_regression(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Read the answers, which follow the questions, and check that one linear function fits them all."""
    assert asked == list(range(0, len(inputs), 2))
    assert not any(any(y[1:]) for y in inputs[1::2])
    x, y = np.array(inputs[::2]), np.array([y[0] for y in inputs[1::2]])
    fitted = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(fitted, y, atol=1e-5 * np.abs(x).max() * options["d_x"])
    return {2 * pairs: (answer, pairs) for pairs, answer in enumerate(y)}


def solve_induction(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """At the second trigger, answer with the token after the first one."""
    first, second = (i for i, token in enumerate(inputs) if token == options["vocab_size"] - 1)
    others = {i: (inputs[i + 1], -1) for i in asked if i != second}
    assert not others or (options["train_targets"] == "every_token" and len(others) == second)
    return others | {second: (inputs[first + 1], second - (first + 1))}


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
    """Follow the successors step by step."""
    successor, questions = edges_and_questions(options, inputs)
    assert asked == list(questions)
    answers = {}
    for position, (node, hops) in questions.items():
        for _ in range(hops):
            node = successor[node]
        answers[position] = node, hops
    return answers


@st.composite
def k_hop_options(draw: st.DrawFn) -> Options:
    n_nodes = draw(st.integers(2, 12))
    n_questions = draw(st.integers(1, n_nodes))
    return {
        "seq_len": 2 * (n_nodes + n_questions),
        "n_names": n_nodes + draw(st.integers(0, 20)),
        "max_hops": draw(st.integers(1, n_nodes - 1)),
        "n_questions": n_questions,
    }


CASES = {
    "automata": TaskCase(
        options=automata_options(),
        solve=solve_automata,
        least={"seq_len": 2, "n_symbols": 2, "max_states": 2, "max_edges": 1, "max_word": 1},
        refused=[
            ({"n_symbols": 3}, "max_edges must be < n_symbols and < max_states"),
            ({"max_states": 3}, "max_edges must be < n_symbols and < max_states"),
            ({"max_word": 128}, "max_word must be < seq_len"),
        ],
        published=[{"seq_len": 512, "n_symbols": 18, "max_states": 12, "max_edges": 3, "max_word": 49}],
    ),
    "in_context_regression": TaskCase(
        options=st.fixed_dictionaries(
            {"seq_len": st.integers(1, 20).map(lambda pairs: 2 * pairs), "d_x": st.integers(1, 8)}
        ),
        solve=solve_in_context_regression,
        least={"seq_len": 2, "d_x": 1},
        refused=[({"seq_len": 41}, "seq_len must be even")],
        published=[{"seq_len": 82, "d_x": 20}],
    ),
    "induction_heads": TaskCase(
        options=st.fixed_dictionaries(
            {
                "vocab_size": st.integers(3, 30),
                "seq_len": st.integers(3, 80),
                "train_targets": st.sampled_from(["every_token", "answers"]),
            }
        ),
        solve=solve_induction,
        least={"seq_len": 3, "vocab_size": 3},
        published=[{}, {"seq_len": 2**20}],
    ),
    "k_hop": TaskCase(
        options=k_hop_options(),
        solve=solve_k_hop,
        least={"n_questions": 1, "max_hops": 1},
        refused=[
            ({"seq_len": 63}, "seq_len must be even"),
            ({"n_questions": 17}, "4 * n_questions must be <= seq_len"),
            ({"max_hops": 24}, "max_hops must be < seq_len / 2 - n_questions"),
            ({"n_names": 23}, "n_names must be >= seq_len / 2 - n_questions"),
        ],
    ),
}
