"""Cases of memory tasks: adding, delay, capo, memorization, needle, ssm_teacher."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.tasks.case import Answers, Options, TaskCase
from zoo.theory.teacher import balanced_teacher


def solve_adding(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Sum the two marked numbers, one in each half."""
    marked = [position for position, (_, mark) in enumerate(inputs) if mark == 1]
    assert len(marked) == 2
    assert marked[0] < len(inputs) // 2 <= marked[1]
    assert all(mark in (0, 1) for _, mark in inputs)
    return {position: [sum(inputs[i][0] for i in marked)] for position in asked}


def solve_delay(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Answer with the input `lag` positions earlier, or 0 before the start."""
    assert inputs[0] == [0]
    return {i: inputs[i - options["lag"]] if i >= options["lag"] else [0.0] for i in asked}


@st.composite
def delay_options(draw: st.DrawFn) -> Options:
    seq_len = draw(st.integers(5, 80))
    return {
        "seq_len": seq_len,
        "lag": draw(st.integers(1, seq_len - 1)),
        "cutoff": draw(st.sampled_from([0.25, 0.37, 0.5])),
    }


def solve_capo(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look people up by name in the population, which is drawn from its seed as in the definition."""
    rng, n = np.random.default_rng(options["people_seed"]), options["n_people"]
    numbers = rng.choice(400 * 400 * 1000, size=n, replace=False).tolist()
    drawn = rng.integers([12, 28, 200, 200, 300, 100, 263], size=(n, 7)).tolist()
    # Tokens in the order of a biography: names, then a word of each sentence and its facts.
    sizes, first, words = [400, 400, 1000, 1, 12, 28, 200, 1, 200, 1, 300, 1, 100, 1, 263], [0], {3, 7, 9, 11, 13}
    for size in sizes:
        first.append(first[-1] + size)
    known = {}
    for number, facts in zip(numbers, drawn, strict=True):
        left = iter([number // 400_000, number // 1000 % 400, number % 1000, *facts])
        tokens = [first[place] + (0 if place in words else next(left)) for place in range(15)]
        known[tuple(tokens[:3])] = tokens
    assert len(known) == n
    assert inputs == [token for start in range(0, len(inputs), 15) for token in known[tuple(inputs[start : start + 3])]]
    assert asked == [i for i in range(len(inputs)) if i % 15 in (3, 4, 5, 7, 9, 11, 13)]
    return {i: known[tuple(inputs[i // 15 * 15 :][:3])][i % 15 + 1] for i in asked}


def solve_memorization(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look up the key before the question in the map, which is drawn from its seed as in the definition."""
    n_keys = (options["vocab_size"] - 1) // 2
    values = np.random.default_rng(options["map_seed"]).permutation(range(n_keys, options["vocab_size"] - 1))
    return {i: int(values[inputs[i - 1]]) for i in asked}


def solve_needle(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Answer with the class after the marker or, without a marker, with the only class."""
    question = options["n_classes"] + options["n_noise"]
    classes = [place for place, token in enumerate(inputs) if token < options["n_classes"]]
    markers = [place for place, token in enumerate(inputs) if token > question]
    assert len(classes) == 1 + options["n_distractors"]
    assert len(markers) == (options["n_distractors"] > 0)
    [place] = classes if not markers else [marker + 1 for marker in markers]
    assert place in classes
    return {i: (inputs[place], i - place) for i in asked}


@st.composite
def needle_options(draw: st.DrawFn) -> Options:
    distance, n_distractors = draw(st.integers(1, 60)), draw(st.sampled_from([0, 1, 2, 20]))
    fewest = max(distance + 2, n_distractors + 3) if n_distractors else distance + 1
    lengths = st.integers(fewest, fewest + 20)
    return {
        "distance": distance,
        "n_classes": draw(st.integers(2, 20)),
        "n_noise": draw(st.integers(1, 20)),
        "seq_len": draw(lengths if n_distractors >= distance else st.none() | lengths),
        "n_distractors": n_distractors,
    }


def solve_ssm_teacher(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Sum over lags in a plain loop, with the lag operators of zoo.theory, which its tests cover."""
    lags = _lags(*(options[name] for name in ("k", "d_input", "seq_len", "rho", "teacher_seed", "d_output", "period")))
    return {i: respond(lags, np.array(inputs), i).tolist() for i in asked}


@cache
def _lags(k: int, d_input: int, seq_len: int, rho: float, seed: int, d_output: int, period: int) -> np.ndarray:
    return balanced_teacher(k, d_input, seq_len, rho, seed, d_out=d_output, period=period).numpy()


def respond(lags: np.ndarray, inputs: np.ndarray, i: int) -> np.ndarray:
    """y_i = sum_tau G_tau x_{i - tau} by a loop; lags (seq, d_out, d_in), inputs (seq, d_in)."""
    output = np.zeros(lags.shape[1])
    for tau in range(i + 1):
        output += lags[tau] @ inputs[i - tau]
    return output


@st.composite
def ssm_teacher_options(draw: st.DrawFn) -> Options:
    d_input, d_output = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    seq_len = draw(st.integers(1, 24))
    options: dict[str, Any] = {
        "k": draw(st.integers(1, min(seq_len, d_input * d_output))),
        "seq_len": seq_len,
        "d_input": d_input,
        "d_output": d_output,
        "rho": draw(st.sampled_from([0.1, 0.98, 1.0])),
        "teacher_seed": draw(st.integers(0, 3)),
    }
    return options


CASES = {
    "adding": TaskCase(
        options=st.fixed_dictionaries({"seq_len": st.integers(2, 80)}),
        solve=solve_adding,
        least={"seq_len": 2},
        base={"seq_len": 100},
        published=[{}],
    ),
    "delay": TaskCase(
        options=delay_options(),
        solve=solve_delay,
        least={"lag": 1},
        refused=[
            ({"lag": 4000}, "lag must be < seq_len"),
            ({"cutoff": 0.6}, "cutoff must lie in [1 / seq_len, 0.5]"),
            ({"cutoff": 0.0002}, "cutoff must lie in [1 / seq_len, 0.5]"),
            ({"cutoff": float("nan")}, "cutoff must lie in [1 / seq_len, 0.5]"),
        ],
        base={"seq_len": 128, "lag": 32},
        published=[{}],
    ),
    "capo": TaskCase(
        options=st.fixed_dictionaries(
            {
                "seq_len": st.integers(1, 3).map(lambda biographies: 15 * biographies),
                "n_people": st.integers(1, 100),
                "people_seed": st.integers(0, 3),
            }
        ),
        solve=solve_capo,
        least={"n_people": 1, "people_seed": 0},
        refused=[
            ({"seq_len": 16}, "seq_len must be a multiple of 15"),
            ({"n_people": 160_000_001}, "n_people must be <= 160000000, the full names"),
        ],
        overlap="the people are the same in all splits",
        published=[{"n_people": 100_000, "seq_len": 510}],
    ),
    "memorization": TaskCase(
        options=st.fixed_dictionaries(
            {
                "vocab_size": st.integers(5, 60),
                "seq_len": st.integers(1, 20).map(lambda n: 2 * n),
                "map_seed": st.integers(0, 3),
            }
        ),
        solve=solve_memorization,
        least={"vocab_size": 5, "map_seed": 0},
        refused=[({"seq_len": 31}, "seq_len must be even")],
        published=[{}, {"vocab_size": 8192}],
    ),
    "needle": TaskCase(
        options=needle_options(),
        solve=solve_needle,
        least={"distance": 1, "n_classes": 2, "n_noise": 1, "n_distractors": 0},
        refused=[
            *(({"seq_len": n}, "seq_len must be > distance") for n in (127, 128)),
            ({"n_distractors": 1, "seq_len": 129}, "with distractors seq_len must be > distance + 1"),
            ({"n_distractors": 128}, "n_distractors must be <= seq_len - 3"),
        ],
    ),
    "ssm_teacher": TaskCase(
        options=ssm_teacher_options(),
        solve=solve_ssm_teacher,
        least={"teacher_seed": 0, "period": 1},
        refused=[
            ({"k": 33}, "k must be <= period"),
            ({"k": 5, "d_input": 2, "d_output": 2}, "k must be <= d_input * d_output"),
            ({"rho": 1.01}, "rho must lie in (0, 1]"),
        ],
    ),
}
