"""MQAR: the published structure and the published distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tasks
from tasks.spec import IGNORED
from tests.tasks.case import assert_even, assert_law
from tests.tasks.cases_first import mqar_options


@settings(max_examples=40)
@given(options=mqar_options(), seed=st.integers(0, 99))
def test_mqar_has_the_published_structure(options: dict[str, Any], seed: int) -> None:
    task = tasks.create_task("mqar", **options)
    n_keys, most = options["vocab_size"] // 2, options["n_pairs"] or options["seq_len"] // 4
    arrays = task.sample(np.random.default_rng(seed), 4)
    for inputs, labels in zip(arrays["inputs"].tolist(), arrays["labels"].tolist(), strict=True):
        n_pairs = len(labels) - labels.count(IGNORED)
        assert (options["min_pairs"] or most) <= n_pairs <= most
        context = 2 * n_pairs
        keys, values = inputs[0:context:2], inputs[1:context:2]
        assert len(set(keys)) == len(set(values)) == n_pairs
        assert all(1 <= key < n_keys for key in keys)
        assert all(n_keys <= value < options["vocab_size"] for value in values)
        queries = [position for position, label in enumerate(labels) if label != IGNORED]
        assert all(position >= context and position % 2 == 0 for position in queries)
        assert sorted(inputs[position] for position in queries) == sorted(keys)
        if not options["random_non_queries"]:
            rest = set(range(context, options["seq_len"])) - set(queries)
            assert all(inputs[position] == 0 for position in rest)


def test_mqar_places_a_key_by_the_power_law(rng: np.random.Generator) -> None:
    task = tasks.create_task("mqar", vocab_size=64, seq_len=22, n_pairs=1)
    slots = np.nonzero(task.sample(rng, 60_000)["labels"] != IGNORED)[1] // 2 - 1
    law = np.arange(1, 11) ** (0.01 - 1)
    assert_law(np.bincount(slots, minlength=10), law / law.sum())


def test_mqar_draws_the_number_of_pairs_evenly_and_keeps_the_power_law(rng: np.random.Generator) -> None:
    task = tasks.create_task("mqar", vocab_size=64, seq_len=16, n_pairs=None, min_pairs=1)
    labelled = task.sample(rng, 60_000)["labels"] != IGNORED
    pairs = labelled.sum(axis=1)
    assert_even(np.bincount(pairs, minlength=5)[1:], 4)
    slots = np.nonzero(labelled[pairs == 1])[1] // 2 - 1
    law = np.arange(1, 8) ** (0.01 - 1)
    assert_law(np.bincount(slots, minlength=7), law / law.sum())


def test_as_many_pairs_as_fit_grow_with_the_length() -> None:
    task = tasks.create_task("mqar", vocab_size=8192, seq_len=256, n_pairs=None)
    for length in (64, 256, 1024):
        longer = task.at_length(length)
        assert longer.spec.labelled == length // 4
        assert longer.sample(np.random.default_rng(0), 1)["pairs"].max() == length // 4
    assert tasks.create_task("mqar").at_length(128).spec.labelled == 4  # a number that is given stays


def test_random_filler_covers_the_vocabulary(rng: np.random.Generator) -> None:
    arrays = tasks.create_task("mqar", vocab_size=9, seq_len=8, n_pairs=1).sample(rng, 20_000)
    filler = arrays["inputs"][:, 2:][arrays["labels"][:, 2:] == IGNORED]
    assert_even(np.bincount(filler, minlength=9), 9)
