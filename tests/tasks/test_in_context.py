"""How the tasks whose rule is new in every sequence are distributed, where their definitions say so."""

from __future__ import annotations

import numpy as np

import tasks
from tests.tasks.case import assert_even, assert_law
from tests.tasks.solvers_in_context import words_of


def test_hops_and_cycles_are_drawn_evenly(rng: np.random.Generator) -> None:
    task = tasks.create_task("k_hop", seq_len=10, n_names=4, max_hops=3, n_questions=1)
    arrays = task.sample(rng, 12_000)
    hops = arrays["hops"][arrays["hops"] > 0]
    assert_even(np.bincount(hops)[1:], 3)
    # Six cycles through four nodes, each at 4! orders of its edges.
    orders = np.unique(arrays["inputs"][:, :8], axis=0, return_counts=True)[1]
    assert_even(orders, 144)
    asked = (arrays["inputs"][:, 0:8:2] == arrays["inputs"][:, 9:]).argmax(axis=1)
    assert_even(np.bincount(asked), 4)


def test_stacked_pairs_and_questions_come_in_any_order(rng: np.random.Generator) -> None:
    task = tasks.create_task("stacked_mqar", seq_len=9, n_symbols=3, d_key=1, n_passes=2)
    arrays = task.sample(rng, 12_000)
    for start in (0, 3, 6):
        orders = np.unique(arrays["inputs"][:, start : start + 3, 0], axis=0, return_counts=True)[1]
        assert_even(orders, 6)
    pairings = np.unique(arrays["labels"][:, 6:], axis=0, return_counts=True)[1]
    assert_even(pairings, 6)
    # The distance to a uniform place in the pass before, from a uniform place in the questions.
    counts = np.bincount(arrays["distance"][:, 6:].ravel(), minlength=6)[1:]
    assert_law(counts, np.array([1, 2, 3, 2, 1]) / 9)


def test_the_floor_of_regression_is_what_least_squares_reaches(rng: np.random.Generator) -> None:
    task, n = tasks.create_task("in_context_regression", seq_len=14, d_x=4), 2_000
    arrays = task.sample(rng, n)
    x, y = arrays["inputs"][:, ::2].astype(np.float64), arrays["labels"][:, ::2, 0].astype(np.float64)
    floors = task.floors()
    for pairs in range(7):
        weights = np.linalg.pinv(x[:, :pairs]) @ y[:, :pairs, None]
        error = np.square(y[:, pairs] - (x[:, pairs, None] @ weights)[:, 0, 0])
        floor = floors["floor_at_pairs"][str(pairs)]
        if pairs >= 4:
            # What is left is the rounding of y to float32, which a badly conditioned square of x may magnify.
            assert np.median(error) < 1e-9
            assert floor == 0
        else:
            assert abs(error.mean() / 4 - floor) < 5 * error.std() / 4 / np.sqrt(n)
    assert floors["floor"] == np.mean([floors["floor_at_pairs"][str(pairs)] for pairs in range(7)])


def test_symbols_and_edges_of_automata_are_drawn_evenly(rng: np.random.Generator) -> None:
    task = tasks.create_task("automata", seq_len=31, n_symbols=5, max_states=3, max_edges=2, max_word=2)
    arrays = task.sample(rng, 8_000)
    inputs = arrays["inputs"]
    assert_even(np.bincount(inputs[:, 0]), 5)
    # Words have one symbol or two.
    first_end = (inputs == 5).argmax(axis=1)
    assert set(first_end) == {1, 2}
    read = [words_of(row, 5) for row in inputs.tolist()]
    starts = np.array([len({word[0] for word in words if word}) for words in read])
    assert set(starts) == {1, 2}
    # Where a row has one start, a second edge has stayed unseen in ten words or more with odds of 2^-9 at most.
    labelled = (arrays["depth"] == 0).any(axis=1)
    assert (starts[labelled] == 1).all()
    assert np.count_nonzero(~labelled & (starts == 1)) < 20
    # One state, or the states behind its edges, must have a certain way on; the first one has it in half of all.
    some = 1 / 2 + 1 / 2 * 3 / 4
    assert abs(labelled.mean() - 1 / 2 / some) < 0.03


def test_automata_have_from_more_than_their_edges_up_to_the_most_states(rng: np.random.Generator) -> None:
    # One edge out of each state to another one: a walk of 4 states visits at most 4, and two at least for ever.
    task = tasks.create_task("automata", seq_len=61, n_symbols=40, max_states=4, max_edges=1, max_word=30)
    walks = [word for row in task.sample(rng, 500)["inputs"].tolist() for word in words_of(row, 40) if len(word) >= 8]
    assert {len(set(word)) for word in walks} == {1, 2, 3, 4}
    # From the fourth symbol on a walk repeats itself with a period of 2, 3 or 4.
    periods = {next(p for p in range(1, 5) if word[4:] == word[4 - p : len(word) - p]) for word in walks}
    assert {2, 3} <= periods
