"""Recall and copying: the published structures and distributions. Bounds of chi-square are its 1 - 1e-6 quantiles."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

import tasks
from tasks.spec import IGNORED
from tests.tasks.case import assert_even, assert_law

# MQAR's variants


def test_an_update_gives_a_key_any_value_but_its_own(rng: np.random.Generator) -> None:
    task = tasks.create_task("forgetting", vocab_size=15, seq_len=14, n_pairs=2, n_updates=1)
    inputs = task.sample(rng, 20_000)["inputs"]
    again = (inputs[:, 4] == inputs[:, 2]).astype(int)  # which of the two keys is re-assigned
    assert_even(np.bincount(again, minlength=2), 2)
    own = inputs[np.arange(len(inputs)), 1 + 2 * again]
    steps = (inputs[:, 5] - own) % 8  # 8 values
    assert (steps > 0).all()
    assert_even(np.bincount(steps, minlength=8)[1:], 7)


def test_neither_token_of_a_compound_key_decides_the_value(rng: np.random.Generator) -> None:
    task = tasks.create_task("compositional", vocab_size=100, seq_len=54, n_pairs=9)
    orders = set()
    for inputs in task.sample(rng, 50)["inputs"]:
        first, second, values = inputs[:27].reshape(9, 3).T.tolist()
        assert len(set(first)) == len(set(second)) == 3
        assert len(set(zip(first, second, strict=True))) == len(set(values)) == 9
        assert all(1 <= a < 33 <= b < 66 <= value for a, b, value in zip(first, second, values, strict=True))
        orders.add(tuple(first.index(a) for a in first))
    assert len(orders) > 10  # not the order of the grid


# MAD's recall


@pytest.mark.parametrize("name", ["in_context_recall", "noisy_recall", "fuzzy_recall"])
def test_training_labels_every_next_token_and_scoring_those_that_can_be_known(name: str) -> None:
    task = tasks.create_task(name)
    train, test = (task.of_split(split).sample(np.random.default_rng(0), 50) for split in ("train", "test"))
    np.testing.assert_array_equal(train["labels"][:, :-1], train["inputs"][:, 1:])
    assert (test["labels"][:, :-1] != IGNORED).mean() < 0.6
    validation = task.of_split("validation").sample(np.random.default_rng(0), 50)
    np.testing.assert_array_equal(validation["labels"], test["labels"])  # what is monitored is what is scored
    answers = tasks.create_task(name, train_targets="answers").of_split("train").sample(np.random.default_rng(0), 50)
    np.testing.assert_array_equal(answers["inputs"], train["inputs"])
    np.testing.assert_array_equal(answers["labels"] != IGNORED, train["distance"] >= 0)


def test_every_sequence_ends_with_a_key_shown_before_drawn_evenly(rng: np.random.Generator) -> None:
    arrays = tasks.create_task("in_context_recall", vocab_size=8, seq_len=6).sample(rng, 20_000)
    first, second, last = arrays["inputs"][:, 0::2].T
    assert ((last == first) | (last == second)).all()
    assert (arrays["labels"][:, 4] == arrays["inputs"][:, 5]).all()
    differ = first != second
    # Half of them, where the two differ: a standard deviation is sqrt(n) / 2.
    assert abs((last == first)[differ].sum() - differ.sum() / 2) < 5 * np.sqrt(differ.sum()) / 2


def test_keys_and_values_are_drawn_evenly(rng: np.random.Generator) -> None:
    inputs = tasks.create_task("in_context_recall", vocab_size=10, seq_len=4).sample(rng, 20_000)["inputs"]
    assert_even(np.bincount(inputs[:, 0], minlength=5), 5)
    assert_even(np.bincount(inputs[:, 1] - 5, minlength=5), 5)


def test_noise_takes_its_share_of_pairs_but_not_all_of_them(rng: np.random.Generator) -> None:
    task = tasks.create_task("noisy_recall", vocab_size=12, seq_len=22, noise_vocab_size=4, frac_noise=0.6)
    inputs = task.sample(rng, 5_000)["inputs"].reshape(5_000, 11, 2)
    noisy = (inputs >= 8).all(axis=2)
    assert (noisy == (inputs >= 8).any(axis=2)).all()
    assert not noisy[:, -1].any()
    n_noisy = noisy.sum(axis=1)
    assert n_noisy.max() == 9
    # Nine pairs of the first ten may be noise, each with probability 0.6; which one is spared is drawn evenly.
    assert abs(n_noisy.mean() - 9 * 0.6) < 5 * np.sqrt(9 * 0.6 * 0.4 / 5_000)
    assert_even(noisy[:, :10].sum(axis=0), 10)
    assert_even(np.bincount(inputs[noisy].ravel() - 8, minlength=4), 4)


@pytest.mark.parametrize("split", ["train", "test"])
def test_fuzzy_words_are_drawn_evenly_by_size(split: str, rng: np.random.Generator) -> None:
    task = tasks.create_task("fuzzy_recall", vocab_size=7, seq_len=11, k_motif_size=3, v_motif_size=2).of_split(split)
    inputs = task.sample(rng, 20_000)["inputs"]  # room for one pair, then repeated; 3 tokens for keys, 3 for values
    keys, values = [], []
    for row in inputs.tolist():
        row = [token for token in row if token != 6]
        starts = [0] + [i + 1 for i, (a, b) in enumerate(pairwise(row)) if a >= 3 > b]
        assert len(starts) == 2
        shown = row[: starts[1]]
        assert row[starts[1] :] == shown[:-1]  # the last token is a label only
        keys.append(tuple(token for token in shown if token < 3))
        values.append(tuple(token for token in shown if token >= 3))
    sizes = [1, 2, 3] if split == "train" else [3]
    for words, allowed, n_words in ((keys, sizes, {1: 3, 2: 6, 3: 6}), (values, [1, 2], {1: 3, 2: 6})):
        assert all(len(set(word)) == len(word) for word in words)
        kinds, counts = zip(*sorted((word, words.count(word)) for word in set(words)), strict=True)
        expected = np.array([1 / len(allowed) / n_words[len(word)] for word in kinds])
        assert abs(expected.sum() - 1) < 1e-12  # every word of every size turned up
        assert_law(np.array(counts), expected)


# Copying


def test_every_set_of_places_is_copied_from_equally_often(rng: np.random.Generator) -> None:
    inputs = tasks.create_task("selective_copying", vocab_size=5, seq_len=7, n_copied=2).sample(rng, 12_000)["inputs"]
    places = (inputs[:, :4] < 3) @ 2 ** np.arange(4)
    counts = np.unique(places, return_counts=True)[1]
    assert_even(counts, 6)
    assert (inputs[:, 4] == 4).all()
    assert (inputs[:, 5:] == 3).all()


def test_the_trigger_stands_anywhere_that_leaves_room_for_an_answer(rng: np.random.Generator) -> None:
    arrays = tasks.create_task("induction_heads", vocab_size=4, seq_len=8).sample(rng, 12_000)
    row, place = np.nonzero(arrays["inputs"][:, :-1] == 3)
    np.testing.assert_array_equal(row, np.arange(12_000))
    assert_even(np.bincount(place, minlength=6), 6)
    assert_even(np.bincount(arrays["labels"][:, -1], minlength=3), 3)


def test_induction_at_a_million_tokens_takes_no_more_memory_than_its_arrays() -> None:
    task = tasks.create_task("induction_heads").at_length(2**20)
    tracemalloc.start()
    try:
        arrays = task.sample(np.random.default_rng(0), 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = sum(array.nbytes for array in arrays.values())
    assert kept == 2 * 2**20 * (8 + 8 + 4)
    assert peak < 1.01 * kept


def test_compression_asks_for_each_place_once_in_random_order(rng: np.random.Generator) -> None:
    inputs = tasks.create_task("compression", vocab_size=4, seq_len=7).sample(rng, 12_000)["inputs"]
    asked = inputs[:, 4:] - 4
    assert (np.sort(asked, axis=1) == np.arange(3)).all()
    assert len(np.unique(asked, axis=0)) == 6


def test_compression_keeps_its_vocabulary_at_shorter_lengths_and_has_no_longer_ones() -> None:
    task = tasks.create_task("compression", seq_len=9)
    assert task.at_length(5).spec.vocab_size == task.spec.vocab_size == 16 + 4
    with pytest.raises(
        ValueError, match=r"^compression: seq_len must be <= max_seq_len, got seq_len=11, max_seq_len=9$"
    ):
        task.at_length(11)


def test_a_memorised_map_is_one_to_one_and_the_same_everywhere() -> None:
    task = tasks.create_task("memorization", vocab_size=20)
    assert len(set(task.values.tolist())) == len(task.values) == 9
    assert 9 <= task.values.min() <= task.values.max() < 19
    found = set()
    for split in ("train", "test"):
        arrays = tasks.sample_split(task, split, 200, seed=1)
        keys, values = arrays["inputs"][:, 0::2], arrays["labels"][:, 1::2]
        found |= set(zip(keys.ravel().tolist(), values.ravel().tolist(), strict=True))
    assert found == set(enumerate(task.values.tolist()))
    assert not np.array_equal(tasks.create_task("memorization", vocab_size=20, map_seed=1).values, task.values)
