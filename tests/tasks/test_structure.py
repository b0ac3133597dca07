"""How the tasks of long memory, state tracking and structure are distributed, where their definitions say so."""

from __future__ import annotations

import functools
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

import tasks
from tasks.generators.structure.treecall import Treecall
from tasks.generators.tracking.group_words import GroupWords
from tasks.generators.tracking.groups import group_elements, multiplication_table
from tests.tasks.case import assert_even, assert_law
from tests.tolerances import tolerance


def test_the_marks_of_adding_are_spread_over_their_halves(rng: np.random.Generator) -> None:
    inputs = tasks.create_task("adding", seq_len=9).sample(rng, 20_000)["inputs"]
    counts = inputs[:, :, 1].sum(axis=0)
    assert_even(counts[:4], 4)
    assert_even(counts[4:], 5)


@pytest.mark.parametrize(("seq_len", "cutoff", "n_frequencies"), [(64, 0.25, 16), (64, 0.5, 31), (60, 0.3, 18)])
def test_delay_has_the_noise_that_it_says(
    seq_len: int, cutoff: float, n_frequencies: int, rng: np.random.Generator
) -> None:
    n = 4_000
    inputs = tasks.create_task("delay", seq_len=seq_len, lag=5, cutoff=cutoff).sample(rng, n)["inputs"]
    power = np.square(np.abs(np.fft.rfft(inputs[:, :, 0].astype(np.float64), axis=1)))[
        :, 1:
    ]  # 0 is moved to begin at 0
    np.testing.assert_allclose(power[:, n_frequencies:], 0, atol=1e-3 * power.mean())
    # Each frequency's power is exponential, with a mean by which all together have a mean square of 1/4.
    mean = seq_len**2 / 4 / (2 * n_frequencies)
    np.testing.assert_array_less(np.abs(power[:, :n_frequencies].mean(axis=0) / mean - 1), 5 / np.sqrt(n))


def test_needles_and_distractors_differ_by_the_marker_alone(rng: np.random.Generator) -> None:
    task = tasks.create_task("needle", distance=4, n_classes=3, n_noise=2, seq_len=10, n_distractors=3)
    inputs = task.sample(rng, 20_000)["inputs"]
    places = (inputs < 3).sum(axis=0)
    assert (inputs[:, [4, 9]] == [6, 5]).all()  # the marker and the question
    assert places[5] == 20_000
    free = np.delete(places, [4, 5, 9])
    assert_even(free, 7)
    assert_even(np.bincount(inputs[inputs < 3]), 3)


@pytest.mark.parametrize("group", ["Z6", "S4", "A5", "A4xZ5", "Z2xS3"])
def test_groups_are_groups(group: str) -> None:
    table = multiplication_table(group).astype(np.int64)
    elements = np.arange(len(table))
    assert len(set(group_elements(group))) == len(table)
    np.testing.assert_array_equal(table[0], elements)
    np.testing.assert_array_equal(table[:, 0], elements)
    np.testing.assert_array_equal(np.sort(table, axis=0), np.tile(elements[:, None], len(table)))
    np.testing.assert_array_equal(table[table], table[elements[:, None, None], table])  # (ab)c and a(bc)


def test_the_order_of_elements_matters_where_it_should() -> None:
    for group in ("Z60", "Z2xZ2", "S2", "A3", "S3", "A4", "A5", "S5", "A4xZ5"):
        table = multiplication_table(group)
        assert np.array_equal(table, table.T) == (group in {"Z60", "Z2xZ2", "S2", "A3"}), group


@pytest.mark.parametrize(("max_depth", "n_words"), [(8, 14), (2, 8)])
def test_every_balanced_word_is_as_likely(max_depth: int, n_words: int, rng: np.random.Generator) -> None:
    task = tasks.create_task("bracket", n_types=1, max_depth=max_depth, seq_len=8)
    words = Counter(map(tuple, task.sample(rng, 20_000)["inputs"].tolist()))
    assert_even(np.array(list(words.values())), n_words)


def test_the_chance_level_of_brackets_is_that_of_all_words() -> None:
    task = tasks.create_task("bracket", n_types=1, max_depth=2, seq_len=4)  # ()() and (()): depths 1 0 1 0, 1 2 1 0
    chance = task.spec.chance
    assert chance is not None
    np.testing.assert_allclose(chance, 4 / 8, **tolerance(torch.float64))


def test_the_dots_of_pathfinder_are_as_far_apart_for_either_label(rng: np.random.Generator) -> None:
    n = 4_000
    arrays = tasks.create_task("pathfinder").sample(rng, n)
    place = np.argwhere(arrays["inputs"] == 2)[:, 1].reshape(n, 2)
    row, column = np.divmod(place, 32)
    apart = (np.abs(row[:, 0] - row[:, 1]) + np.abs(column[:, 0] - column[:, 1])) // 3
    assert (apart % 2 == 0).all()  # 14 dashes lead to a point of the same colour of the chessboard
    connected = arrays["labels"][:, -1] == 1
    here, there = (np.bincount(apart[label] // 2, minlength=15) for label in (connected, ~connected))
    often = here + there >= 50
    expected = (here + there)[often] / 2
    # Where labels are drawn after the distance, each distance's share of label 1 is a half, but for sampling.
    assert (np.abs(here[often] - expected) < 5 * np.sqrt(expected / 2)).all()


def test_the_dots_of_pathfinder_lie_on_either_long_path_as_often(rng: np.random.Generator) -> None:
    """The path that was drawn first has had more room: it must not be the one whose ends are marked."""
    task = tasks.create_task("pathfinder", image_size=15, path_length=4, distractor_length=1, n_distractors=0)
    (first, *_), pairs = task._fitted_paths(rng, 2000)
    on_first = (np.sort(pairs[:, 1], axis=1) == np.sort(first[:, [0, -1]], axis=1)).all(axis=1)
    assert abs(on_first.mean() - 0.5) < 4 * 0.5 / np.sqrt(2000)


def test_expressions_draw_numbers_and_operators_evenly(rng: np.random.Generator) -> None:
    inputs = tasks.create_task("modular_arithmetic", seq_len=9, modulus=4, operators="*-").sample(rng, 5_000)["inputs"]
    assert_even(np.bincount(inputs[:, ::2].ravel(), minlength=4), 4)
    counts = np.bincount(inputs[:, 1::2].ravel(), minlength=7)
    assert counts[:5].sum() == 0  # no + among those asked for
    assert_even(counts[5:], 2)


@pytest.mark.parametrize("modulus", [2, 4, 5])
def test_an_expressions_chance_is_that_of_all_expressions(modulus: int) -> None:
    numbers, operators = range(modulus), "+-*"
    values = [
        eval(f"{a}{s}{b}{t}{c}") % modulus
        for a, b, c in product(numbers, repeat=3)
        for s, t in product(operators, repeat=2)
    ]
    share = np.bincount(values).max() / len(values)
    assert tasks.create_task("modular_arithmetic", seq_len=5, modulus=modulus).spec.chance == pytest.approx(share)


def test_sentences_that_fit_are_as_many_as_the_grammar_says(rng: np.random.Generator) -> None:
    task = Treecall(seq_len=64, grammar_seed=0)
    n = 20_000
    lengths = task._sentences(rng, n)[2]
    share = task._share_that_fits()
    assert 0.2 < share < 0.8
    assert abs((lengths >= 3).mean() - share) < 5 * np.sqrt(share * (1 - share) / n)


def test_heads_follow_the_grammar_and_parents_are_asked_for_evenly(rng: np.random.Generator) -> None:
    task = Treecall(seq_len=64, n_terminals=5, n_nonterminals=1, max_rules=1, max_rhs=4, grammar_seed=0)
    arrays, heads = task.sample(rng, 10_000), task._grammar[0][0]
    # One rule without nonterminals: only the head, the first token, changes, and it is the parent of all others.
    first = arrays["inputs"][:, 1]
    assert_law(np.bincount(first, minlength=5), heads)
    np.testing.assert_array_equal(arrays["labels"].max(axis=1), first)
    assert (arrays["depth"].max(axis=1) == 1).all()
    rest = set(arrays["inputs"][0, 2 : 2 + len(task._grammar[2][0])].tolist()) & set(range(5))
    asked = arrays["inputs"][np.arange(10_000), (arrays["depth"] == 1).argmax(axis=1)]
    counts = np.bincount(asked, minlength=5)[sorted(rest)]
    assert counts.sum() == 10_000
    assert len(rest) >= 2
    assert_even(counts, len(rest))


@pytest.mark.parametrize(("group", "generators"), [("A4", "2314+2143"), ("S3", "213+132"), ("Z5", "1+4")])
def test_the_best_guess_at_words_of_generators_is_the_likeliest_product_of_their_length(
    group: str, generators: str
) -> None:
    task = GroupWords(group, 6, generators)
    table = multiplication_table(group)
    right = 0.0
    for length in range(1, task.seq_len + 1):
        counts: Counter[int] = Counter()
        for word in product(task.alphabet, repeat=length):
            counts[functools.reduce(lambda a, b: int(table[a, b]), word, 0)] += 1
        right += max(counts.values()) / len(task.alphabet) ** length
    assert task.spec.chance == pytest.approx(right / task.seq_len)
    assert task.at_length(12).options() == {"group": group, "seq_len": 12, "generators": generators}
