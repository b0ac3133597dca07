"""Cases of state-tracking tasks."""

from __future__ import annotations

from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.tasks.case import Answers, Options, TaskCase


def solve_bracket(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Keep a stack: every closing bracket must match the last open one, and none may stay open."""
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


@st.composite
def bracket_options(draw: st.DrawFn) -> Options:
    return {
        "n_types": draw(st.integers(1, 6)),
        "max_depth": draw(st.integers(1, 12)),
        "seq_len": 2 * draw(st.integers(1, 30)),
    }


def prefixes_asked(options: Options, inputs: list[int], asked: list[int], answerable: list[int]) -> list[int]:
    assert len(inputs) == options["seq_len"]
    assert asked == (answerable if options["every_position"] else [len(inputs) - 1])
    return asked


def solve_cycle_navigation(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Walk from place to place."""
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


def solve_even_pairs(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Write out the bits and count 01 and 10."""
    answers = {}
    for position in prefixes_asked(options, inputs, asked, list(range(len(inputs)))):
        bits = "".join(map(str, inputs[: position + 1]))
        answers[position] = sum(bits[i : i + 2] in ("01", "10") for i in range(position)) % 2
    return answers


def solve_group_words(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Apply the elements one after the other, for each factor of the group, to a number or a permutation."""
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
    return [p for p in permutations(range(size)) if factor[0] == "S" or inversions(p) % 2 == 0]


def inversions(permutation: tuple[int, ...]) -> int:
    return sum(a > b for a, b in combinations(permutation, 2))


def then(state: Any, element: Any, order: int) -> Any:
    """The product of the state and the element."""
    if isinstance(state, int):
        return (state + element) % order
    return tuple(element[place] for place in state)


def solve_parity(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Count the ones."""
    answerable = prefixes_asked(options, inputs, asked, list(range(len(inputs))))
    return {position: inputs[: position + 1].count(1) % 2 for position in answerable}


def solve_modular_arithmetic(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Write out the expression and let Python evaluate it."""
    modulus = options["modulus"]
    texts = [str(token) if token < modulus else "+-*"[token - modulus] for token in inputs]
    assert all(token < modulus for token in inputs[::2])
    assert all(text in options["operators"] for text in texts[1::2])
    answerable = prefixes_asked(options, inputs, asked, list(range(0, len(inputs), 2)))
    return {position: eval(" ".join(texts[: position + 1])) % modulus for position in answerable}


@cache
def selectivbench_grammar(n_symbols: int, n_states: int, seed: int) -> dict[tuple[int, int], int]:
    """{(state, letter): next state}, drawn from the grammar's seed; # is the last letter and the last state."""
    rng, end = np.random.default_rng(seed), n_symbols * n_states
    while True:
        chance, leads = rng.random((end + 1, n_symbols + 1)), rng.integers(n_states, size=(end + 1, n_symbols))
        starts = rng.choice(end, size=4, replace=False).tolist()
        moves = {}
        for state in range(end):
            for letter in range(n_symbols):
                if chance[state, letter] < 0.4:
                    moves[state, letter] = n_states * letter + int(leads[state, letter])
            if chance[state, n_symbols] < 0.4 / n_states:
                moves[state, n_symbols] = end
        ends, more = {end}, {end}
        while more:
            more = {state for (state, _), target in moves.items() if target in more} - ends
            ends |= more
        if len(ends) == end + 1 and len({start // n_states for start in starts}) == 4:
            return moves | {(end, start // n_states): start for start in starts}


def solve_selectivbench(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Follow the letters that the grammar allows; other letters and blanks are gaps."""
    n_symbols, n_states = options["n_symbols"], options["n_states"]
    moves = selectivbench_grammar(n_symbols, n_states, options["grammar_seed"])
    state, end, count, gap, gaps, answers = n_symbols * n_states, n_symbols * n_states, 0, 0, [], {}
    for position, letter in enumerate(inputs):
        if (state, letter) in moves:
            count = 1 if state == end else count + 1
            state = moves[state, letter]
            gaps.append(gap)
            gap = 0
        else:
            assert (letter == n_symbols + 1) != options["distractors"]
            gap += 1
        answers[position] = (state, count)
        assert count <= 200
    assert gaps[0] == 0
    assert not any(gaps[1 : options["gap_start"] + 1])
    assert all(options["min_gap"] <= size <= options["max_gap"] for size in gaps if size)
    assert asked == [*range(len(inputs))]
    return answers


SELECTIVBENCH_OPTIONS = st.tuples(st.integers(0, 3), st.integers(0, 3)).flatmap(
    lambda gap: st.fixed_dictionaries(
        {
            "seq_len": st.integers(1, 60),
            "n_symbols": st.integers(5, 10),
            "n_states": st.integers(1, 5),
            "min_gap": st.just(gap[0]),
            "max_gap": st.just(sum(gap)),
            "gap_share": st.sampled_from([0.0, 0.5, 1.0]),
            "gap_start": st.integers(0, 10),
            "distractors": st.booleans(),
            "grammar_seed": st.integers(0, 5),
        }
    )
)


CASES = {
    "bracket": TaskCase(
        options=bracket_options(),
        solve=solve_bracket,
        least={"n_types": 1, "max_depth": 1, "seq_len": 2},
        refused=[({"seq_len": 5}, "seq_len must be even")],
        published=[{"seq_len": 700}],
    ),
    "cycle_navigation": TaskCase(
        options=st.fixed_dictionaries(
            {"seq_len": st.integers(1, 40), "cycle_length": st.integers(3, 9), "every_position": st.booleans()}
        ),
        solve=solve_cycle_navigation,
        least={"seq_len": 1, "cycle_length": 3},
        base={"seq_len": 24, "every_position": True},
        published=[{}],
    ),
    "even_pairs": TaskCase(
        options=st.fixed_dictionaries({"seq_len": st.integers(2, 80), "every_position": st.booleans()}),
        solve=solve_even_pairs,
        least={"seq_len": 2},
        base={"seq_len": 40, "every_position": True},
        published=[{}],
    ),
    "group_words": TaskCase(
        options=st.fixed_dictionaries(
            {
                "group": st.sampled_from(["Z2", "Z7", "S2", "S3", "S4", "A3", "A4", "A5", "S5", "Z2xZ2", "A4xZ5"]),
                "seq_len": st.integers(1, 40),
            }
        )
        | st.sampled_from(
            [{"group": "A5", "generators": "23451+12453"}, {"group": "S3xZ2", "generators": "213,1+132,0"}]
        ).map(lambda generated: generated | {"seq_len": 12}),
        solve=solve_group_words,
        least={"seq_len": 1},
        refused=[
            ({"generators": "54321+12345+54321"}, "two or more of 12345 12453"),
            ({"generators": "23451 12453"}, "two or more of 12345 12453"),
            ({"group": "Z2", "generators": ""}, "two or more of 0 1"),
            ({"generators": "23451"}, "two or more of 12345 12453"),
            ({"group": "D4"}, "Z<m> (cyclic)"),
            ({"group": "S3x"}, "Z<m> (cyclic)"),
            ({"group": "S7"}, "2 ... 1000 elements"),
            ({"group": "Z1"}, "2 ... 1000 elements"),
        ],
        published=[{"group": group} for group in ("Z60", "A4xZ5", "A5", "S3", "S5")],
    ),
    "modular_arithmetic": TaskCase(
        options=st.fixed_dictionaries(
            {
                "seq_len": st.integers(0, 20).map(lambda half: 2 * half + 1),
                "modulus": st.integers(2, 12),
                "operators": st.sampled_from(["+", "-", "*", "+-", "*-", "+-*"]),
                "every_position": st.booleans(),
            }
        ),
        solve=solve_modular_arithmetic,
        least={"seq_len": 1, "modulus": 2},
        refused=[
            ({"seq_len": 40}, "seq_len must be odd"),
            ({"operators": ""}, "some of +-*"),
            ({"operators": "+/"}, "some of +-*"),
            ({"operators": "++"}, "some of +-*"),
        ],
        base={"seq_len": 23, "every_position": True},
        published=[{}],
        other_length=47,
    ),
    "parity": TaskCase(
        options=st.fixed_dictionaries({"seq_len": st.integers(1, 80), "every_position": st.booleans()}),
        solve=solve_parity,
        least={"seq_len": 1},
        published=[{}, {"seq_len": 256}],
    ),
    "selectivbench": TaskCase(
        options=SELECTIVBENCH_OPTIONS,
        solve=solve_selectivbench,
        least={"seq_len": 1, "n_symbols": 4, "n_states": 1}
        | dict.fromkeys(("min_gap", "max_gap", "gap_start", "grammar_seed"), 0),
        refused=[
            ({"min_gap": 2}, "min_gap must be <= max_gap"),
            ({"gap_share": 1.5}, "gap_share must lie in [0, 1]"),
            ({"n_symbols": 4, "n_states": 100}, "no grammar had paths from all states to the end"),
        ],
        published=[
            {"seq_len": 400, "n_symbols": 40, "n_states": 40},
            {"seq_len": 1300, "n_symbols": 40, "n_states": 40, "max_gap": 10},
            {"seq_len": 215, "n_symbols": 40, "n_states": 40, "gap_share": 0.1, "gap_start": 50, "distractors": True},
        ],
    ),
}
