"""Distributions of examples, chance levels and floors, where no record of a published generator exists.

Chi-square tests at level 1e-6 with fixed seeds. tests/upstream/tasks covers the laws with a record.
"""

from __future__ import annotations

import functools
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

import tasks
from tasks.generators.structure.expressions import Trees, length_share
from tasks.generators.structure.lano import Lano
from tasks.generators.structure.treecall import Treecall
from tasks.generators.tracking.group_words import GroupWords
from tasks.generators.tracking.groups import multiplication_table
from tasks.spec import IGNORED
from tests.tasks.case import assert_even, assert_law
from tests.tolerances import tolerance


def test_mqar_draws_the_number_of_pairs_evenly(rng: np.random.Generator) -> None:
    task = tasks.create_task("mqar", vocab_size=64, seq_len=16, n_pairs=None, min_pairs=1)
    pairs = (task.sample(rng, 60_000)["labels"] != IGNORED).sum(axis=1)
    assert_even(np.bincount(pairs, minlength=5)[1:], 4)


def test_an_update_assigns_any_value_but_the_keys_current_one(rng: np.random.Generator) -> None:
    task = tasks.create_task("forgetting", vocab_size=15, seq_len=14, n_pairs=2, n_updates=1)
    inputs = task.sample(rng, 20_000)["inputs"]
    again = (inputs[:, 4] == inputs[:, 2]).astype(int)  # which of the two keys is updated
    assert_even(np.bincount(again, minlength=2), 2)
    own = inputs[np.arange(len(inputs)), 1 + 2 * again]
    steps = (inputs[:, 5] - own) % 8  # 8 values
    assert (steps > 0).all()
    assert_even(np.bincount(steps, minlength=8)[1:], 7)


def test_one_token_of_a_compound_key_does_not_determine_the_value(rng: np.random.Generator) -> None:
    task = tasks.create_task("compositional", vocab_size=100, seq_len=54, n_pairs=9)
    orders = set()
    for inputs in task.sample(rng, 50)["inputs"]:
        first, second, values = inputs[:27].reshape(9, 3).T.tolist()
        assert len(set(first)) == len(set(second)) == 3
        assert len(set(zip(first, second, strict=True))) == len(set(values)) == 9
        assert all(1 <= a < 33 <= b < 66 <= value for a, b, value in zip(first, second, values, strict=True))
        orders.add(tuple(first.index(a) for a in first))
    assert len(orders) > 10  # the pairs are shuffled


@pytest.mark.parametrize("name", ["in_context_recall", "noisy_recall", "fuzzy_recall"])
def test_training_labels_every_token_and_scoring_only_the_determined_ones(name: str) -> None:
    task = tasks.create_task(name)
    train, test = (task.of_split(split).sample(np.random.default_rng(0), 50) for split in ("train", "test"))
    np.testing.assert_array_equal(train["labels"][:, :-1], train["inputs"][:, 1:])
    assert (test["labels"][:, :-1] != IGNORED).mean() < 0.6
    validation = task.of_split("validation").sample(np.random.default_rng(0), 50)
    np.testing.assert_array_equal(validation["labels"], test["labels"])  # validation scores the same positions as test
    answers = tasks.create_task(name, train_targets="answers").of_split("train").sample(np.random.default_rng(0), 50)
    np.testing.assert_array_equal(answers["inputs"], train["inputs"])
    np.testing.assert_array_equal(answers["labels"] != IGNORED, train["distance"] >= 0)


def test_selective_copying_draws_every_set_of_positions_equally_often(rng: np.random.Generator) -> None:
    inputs = tasks.create_task("selective_copying", vocab_size=5, seq_len=7, n_copied=2).sample(rng, 12_000)["inputs"]
    places = (inputs[:, :4] < 3) @ 2 ** np.arange(4)
    counts = np.unique(places, return_counts=True)[1]
    assert_even(counts, 6)
    assert (inputs[:, 4] == 4).all()
    assert (inputs[:, 5:] == 3).all()


def test_the_first_trigger_is_anywhere_that_leaves_room_for_an_answer(rng: np.random.Generator) -> None:
    task = tasks.create_task("induction_heads", vocab_size=4, seq_len=8)
    arrays = task.sample(rng, 12_000)
    row, place = np.nonzero(arrays["inputs"][:, :-1] == 3)
    np.testing.assert_array_equal(row, np.arange(12_000))
    assert_even(np.bincount(place, minlength=6), 6)
    assert_even(np.bincount(arrays["labels"][:, -1], minlength=3), 3)
    assert task.spec.chance == 1 / 3


def test_hops_and_cycles_are_drawn_evenly(rng: np.random.Generator) -> None:
    task = tasks.create_task("k_hop", seq_len=10, n_names=4, max_hops=3, n_questions=1)
    arrays = task.sample(rng, 12_000)
    hops = arrays["hops"][arrays["hops"] > 0]
    assert_even(np.bincount(hops)[1:], 3)
    # Six cycles through four nodes, each with 4! orders of its edges.
    orders = np.unique(arrays["inputs"][:, :8], axis=0, return_counts=True)[1]
    assert_even(orders, 144)
    asked = (arrays["inputs"][:, 0:8:2] == arrays["inputs"][:, 9:]).argmax(axis=1)
    assert_even(np.bincount(asked), 4)


def test_the_floor_of_regression_is_the_error_of_least_squares(rng: np.random.Generator) -> None:
    task, n = tasks.create_task("in_context_regression", seq_len=14, d_x=4), 2_000
    arrays = task.sample(rng, n)
    x, y = arrays["inputs"][:, ::2].astype(np.float64), arrays["labels"][:, ::2, 0].astype(np.float64)
    floors = task.floors()
    for pairs in range(7):
        weights = np.linalg.pinv(x[:, :pairs]) @ y[:, :pairs, None]
        error = np.square(y[:, pairs] - (x[:, pairs, None] @ weights)[:, 0, 0])
        floor = floors["floor_at_pairs"][str(pairs)]
        if pairs >= 4:
            # The remaining error is the rounding of y to float32, magnified if x is ill-conditioned.
            assert np.median(error) < 1e-9
            assert floor == 0
        else:
            assert abs(error.mean() / 4 - floor) < 5 * error.std() / 4 / np.sqrt(n)
    assert floors["floor"] == np.mean([floors["floor_at_pairs"][str(pairs)] for pairs in range(7)])


@pytest.mark.slow
def test_the_floor_of_a_grammar_is_the_loss_of_its_true_probabilities(rng: np.random.Generator) -> None:
    task, n = Lano(seq_len=65, n_levels=2), 250
    arrays = task.sample(rng, n)
    laws, labels = task.probabilities(arrays["inputs"])[:, :-1], arrays["labels"][:, :-1]
    bits = -np.log2(np.take_along_axis(laws, labels[:, :, None], axis=2)[:, :, 0]).mean(axis=1)
    wrong = (laws.argmax(axis=2) != labels).mean(axis=1)
    floors = task.floors()
    assert abs(bits.mean() - floors["floor_bits_per_token"]) < 5 * bits.std() * np.sqrt(1 / n + 1 / 252)
    assert abs(wrong.mean() - floors["floor_errors"]) < 5 * wrong.std() * np.sqrt(1 / n + 1 / 252)
    assert floors["floor"] == pytest.approx(2 ** floors["floor_bits_per_token"])


def test_needles_and_distractors_differ_only_by_the_marker(rng: np.random.Generator) -> None:
    task = tasks.create_task("needle", distance=4, n_classes=3, n_noise=2, seq_len=10, n_distractors=3)
    inputs = task.sample(rng, 20_000)["inputs"]
    places = (inputs < 3).sum(axis=0)
    assert (inputs[:, [4, 9]] == [6, 5]).all()  # the marker and the question
    assert places[5] == 20_000
    free = np.delete(places, [4, 5, 9])
    assert_even(free, 7)
    assert_even(np.bincount(inputs[inputs < 3]), 3)


@pytest.mark.parametrize(("max_depth", "n_words"), [(8, 14), (2, 8)])
def test_all_balanced_words_are_equally_likely(max_depth: int, n_words: int, rng: np.random.Generator) -> None:
    task = tasks.create_task("bracket", n_types=1, max_depth=max_depth, seq_len=8)
    words = Counter(map(tuple, task.sample(rng, 20_000)["inputs"].tolist()))
    assert_even(np.array(list(words.values())), n_words)


@pytest.mark.parametrize(("group", "generators"), [("A4", "2314+2143"), ("Z5", "1+4")])
def test_chance_at_words_of_generators_is_the_share_of_the_likeliest_product_per_length(
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


def test_the_distance_between_pathfinders_dots_is_independent_of_the_label(rng: np.random.Generator) -> None:
    n = 4_000
    arrays = tasks.create_task("pathfinder").sample(rng, n)
    place = np.argwhere(arrays["inputs"] == 2)[:, 1].reshape(n, 2)
    row, column = np.divmod(place, 32)
    apart = (np.abs(row[:, 0] - row[:, 1]) + np.abs(column[:, 0] - column[:, 1])) // 3
    assert (apart % 2 == 0).all()  # 14 dashes, an even number of steps on the lattice
    connected = arrays["labels"][:, -1] == 1
    here, there = (np.bincount(apart[label] // 2, minlength=15) for label in (connected, ~connected))
    often = here + there >= 50
    expected = (here + there)[often] / 2
    # If the label is independent of the distance, half of the pictures at each distance have label 1.
    assert (np.abs(here[often] - expected) < 5 * np.sqrt(expected / 2)).all()


def test_treecalls_heads_follow_the_grammar_and_queries_are_even(rng: np.random.Generator) -> None:
    task = Treecall(seq_len=64, n_terminals=5, n_nonterminals=1, max_rules=1, max_rhs=4, grammar_seed=0)
    arrays, heads = task.sample(rng, 10_000), task._grammar[0][0]
    # With one rule and no nonterminals only the first token, the head, varies, and it is the parent of all others.
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


@pytest.mark.parametrize("shape", [(30, 120, 10, 10), (3, 12, 3, 4)])
def test_the_share_of_listops_lengths_is_the_calculated_one(
    shape: tuple[int, int, int, int], rng: np.random.Generator
) -> None:
    low, high, max_depth, max_args = shape
    n = 4_000
    lengths = Trees.drawn(rng, n, high, max_depth, max_args).lengths
    share = length_share(low, high, max_depth, max_args)
    found = np.mean((lengths > low) & (lengths < high))
    assert 0.02 < share < 0.98
    assert abs(found - share) < 5 * np.sqrt(share * (1 - share) / n)


def test_the_inputs_of_ssm_teacher_are_white_noise(rng: np.random.Generator) -> None:
    x = tasks.create_task("ssm_teacher", seq_len=4, d_input=3).sample(rng, 20_000)["inputs"].reshape(20_000, -1)
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(12), atol=5 / np.sqrt(len(x)) * 2**0.5)


def test_ssm_teacher_is_the_same_at_a_longer_length() -> None:
    task = tasks.create_task("ssm_teacher", k=3, seq_len=8)
    np.testing.assert_allclose(task.at_length(20).lags[:8], task.lags, **tolerance(torch.float64))


def test_the_chance_level_of_brackets_is_the_mean_over_all_words() -> None:
    task = tasks.create_task("bracket", n_types=1, max_depth=2, seq_len=4)  # ()() and (()): depths 1 0 1 0, 1 2 1 0
    assert task.spec.chance == pytest.approx(4 / 8)


def test_the_chance_level_of_modular_arithmetic_is_the_mean_over_all_expressions() -> None:
    modulus = 5
    numbers, operators = range(modulus), "+-*"
    values = [
        eval(f"{a}{s}{b}{t}{c}") % modulus
        for a, b, c in product(numbers, repeat=3)
        for s, t in product(operators, repeat=2)
    ]
    share = np.bincount(values).max() / len(values)
    assert tasks.create_task("modular_arithmetic", seq_len=5, modulus=modulus).spec.chance == pytest.approx(share)
