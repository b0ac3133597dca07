"""Properties of every registered task: arrays, labels against a slow solver, chance, splits, digests, options.

`cases_*.py` define how to draw each task's options and how to solve it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tasks
from tasks import pages
from tasks.base import Arrays, FiniteTask, Task
from tasks.data.splits import SHARD_ROWS, SPLITS, at_most, sample_split
from tasks.spec import IGNORED, TaskSpec
from tests.tasks.case import (
    DIGESTED,
    DIGESTS,
    all_cases,
    assert_same_digest,
    commit_digest,
    committed_digest,
    digest,
)
from tests.tolerances import tolerance
from zoo.errors import UnknownNameError

CASES = all_cases()
NAMES = sorted(CASES)
CLASSIFICATION = [name for name in NAMES if tasks.create_task(name, **CASES[name].base).spec.loss == "cross_entropy"]
every_task = pytest.mark.parametrize("name", NAMES)


def base_task(name: str) -> Task:
    return tasks.create_task(name, **CASES[name].base)


@cache
def base_split(name: str, split: str, n: int, seed: int = 0) -> Arrays:
    task = base_task(name)
    return sample_split(task, split, at_most(task, split, n), seed)


def drawn_task(name: str, data: st.DataObject) -> Task:
    return tasks.create_task(name, **data.draw(CASES[name].options))


def test_exactly_the_registered_tasks_have_cases_with_refusals_and_digests() -> None:
    assert sorted(tasks.list_tasks()) == NAMES == sorted(json.loads(DIGESTS.read_text()))
    assert all(CASES[name].refusals for name in NAMES)


# Arrays


def assert_arrays_fit(spec: TaskSpec, arrays: Arrays, n: int) -> None:
    """Assert that names, shapes, dtypes and ranges of the arrays match the spec."""
    assert list(arrays) == ["inputs", "labels", *spec.facts]
    inputs, labels = arrays["inputs"], arrays["labels"]
    if spec.input == "tokens":
        assert spec.vocab_size is not None
        assert inputs.shape == (n, spec.seq_len)
        assert inputs.dtype == np.int64
        assert ((inputs >= 0) & (inputs < spec.vocab_size)).all()
    else:
        assert inputs.shape == (n, spec.seq_len, spec.d_input)
        assert inputs.dtype == np.float32
        assert np.isfinite(inputs).all()
    if spec.loss == "cross_entropy":
        assert spec.chance is not None
        assert 0 < spec.chance <= 1
        assert labels.shape == (n, spec.seq_len)
        assert labels.dtype == np.int64
        labelled = labels != IGNORED
        assert ((labels >= 0) & (labels < spec.n_outputs))[labelled].all()
    else:
        assert spec.chance is None
        assert labels.shape == (n, spec.seq_len, spec.n_outputs)
        assert labels.dtype == np.float32
        labelled = ~np.isnan(labels[:, :, 0])
        assert np.isfinite(labels[labelled]).all()
        assert np.isnan(labels[~labelled]).all()  # all channels of a position are labelled, or none
    assert labelled.any(axis=1).all()
    if spec.labelled is not None:
        assert (labelled.sum(axis=1) == spec.labelled).all()
    for fact in spec.facts:
        assert arrays[fact].shape == (n, spec.seq_len)
        assert arrays[fact].dtype == np.int32
        assert (arrays[fact] >= -1).all()
        assert (arrays[fact][~labelled] == -1).all()


@every_task
def test_the_default_and_the_published_shapes_are_valid(name: str) -> None:
    for options in (CASES[name].base, *CASES[name].published):
        task = tasks.create_task(name, **options).of_split("train")
        assert_arrays_fit(task.spec, task.sample(np.random.default_rng(0), 2), 2)


def labelled_positions(labels: np.ndarray) -> list[int]:
    known = labels != IGNORED if labels.ndim == 1 else ~np.isnan(labels[:, 0])
    return np.flatnonzero(known).tolist()


@every_task
@settings(max_examples=10)
@given(data=st.data())
def test_the_slow_solver_agrees_with_every_label(name: str, data: st.DataObject) -> None:
    case, split = CASES[name], data.draw(st.sampled_from(sorted(SPLITS)))
    task = drawn_task(name, data).of_split(split)
    n = data.draw(st.integers(0, 3))
    arrays = task.sample(np.random.default_rng(data.draw(st.integers(0, 99))), n)
    assert_arrays_fit(task.spec, arrays, n)
    facts = task.spec.facts
    for row, labels in enumerate(arrays["labels"]):
        asked = labelled_positions(labels)
        answers = case.solve(task.options(), arrays["inputs"][row].tolist(), asked)
        assert sorted(answers) == asked
        for position, answer in answers.items():
            answer, *found = answer if facts else [answer]
            assert found == [arrays[fact][row, position] for fact in facts]
            if labels.dtype.kind == "f":
                np.testing.assert_allclose(np.reshape(answer, -1), labels[position], **tolerance(torch.float32))
            else:
                assert answer == labels[position]


@pytest.mark.slow  # thousands of examples of each task
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_chance_is_the_accuracy_of_the_majority_class(name: str) -> None:
    chance = base_task(name).of_split("validation").spec.chance
    assert chance is not None
    n = CASES[name].examples
    # Chance is for the scored labels; training may label more.
    seen, scored = (base_split(name, split, n)["labels"] for split in ("test", "validation"))
    guess = np.bincount(seen[seen != IGNORED]).argmax()
    right, asked = (scored == guess).sum(axis=1), (scored != IGNORED).sum(axis=1)
    # Labels within an example are dependent, so the spread is over examples, and at least the binomial one.
    spread = max(np.sqrt(np.square(right - chance * asked).sum()), np.sqrt(chance * (1 - chance) * asked.sum()))
    assert abs(right.sum() - chance * asked.sum()) <= 5 * spread


# Seeds and splits


@every_task
def test_splits_share_no_example_and_a_larger_split_starts_with_the_smaller_one(name: str) -> None:
    train, few, test = (base_split(name, split, SHARD_ROWS) for split in ("train", "validation", "test"))
    rows = [{row.tobytes() for row in split["inputs"]} for split in (train, few, test)]
    shared = any(a & b for a, b in combinations(rows, 2))
    assert shared == (CASES[name].overlap is not None)
    many = base_split(name, "validation", SHARD_ROWS + 5)
    for key, array in few.items():
        np.testing.assert_array_equal(array, many[key][: len(array)])
    drawn_from = base_task(name).of_split("validation")
    if isinstance(drawn_from, FiniteTask):
        assert len(few["inputs"]) == len(many["inputs"]) == drawn_from.size < SHARD_ROWS
        assert len(np.unique(many["inputs"], axis=0)) == drawn_from.size
        return
    assert len(many["inputs"]) == SHARD_ROWS + 5
    if CASES[name].overlap is None:
        assert not np.array_equal(many["inputs"][:5], many["inputs"][SHARD_ROWS:])


def test_long_sequences_are_drawn_in_smaller_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    task, drawn = tasks.create_task("needle", distance=3, seq_len=64), []
    sample = type(task).sample
    monkeypatch.setattr(type(task), "sample", lambda self, rng, n: drawn.append(n) or sample(self, rng, n))
    monkeypatch.setattr("tasks.data.splits.SHARD_POSITIONS", 10 * 64 + 63)
    few, many = (sample_split(task, "test", n, 0)["inputs"] for n in (7, 25))
    assert drawn == [10] * 4
    np.testing.assert_array_equal(few, many[:7])
    assert len(np.unique(many, axis=0)) == 25


@pytest.mark.parametrize(("split", "seed"), [("train", 0), ("validation", 1), ("test", 0)])
@every_task
def test_examples_have_the_committed_digests(name: str, split: str, seed: int, request: pytest.FixtureRequest) -> None:
    found = digest(base_split(name, split, DIGESTED, seed))
    if request.config.getoption("--write-digests"):
        commit_digest(name, split, seed, found)
    assert_same_digest(found, committed_digest(name, split, seed))


# Errors


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [(name, options, words) for name in NAMES for options, words in CASES[name].refusals],
)
def test_invalid_options_are_one_line_errors(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"\A{name}: .*{re.escape(words)}.*\Z") as refusal:
        tasks.create_task(name, **options)
    assert any(str(value) in str(refusal.value) for value in options.values())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mqarr", {}, r"'mqarr' \(did you mean 'mqar'\?\).*needle"),
        ("needle", {"distanse": 3}, r"'distanse' \(did you mean 'distance'\?\).*n_noise"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_valid_one(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnknownNameError, match=words):
        tasks.create_task(name, **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": "bytes"}, "vectors"),
        ({"loss": "hinge"}, "mse"),
        ({"d_input": 3}, "vocab_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"chance": None}, "chance"),
        ({"loss": "mse"}, "chance"),
        ({"loss": "mse", "chance": None, "perplexity": True}, "perplexity"),
    ],
)
def test_a_contradictory_spec_is_refused(fields: dict[str, Any], message: str) -> None:
    good = {"input": "tokens", "seq_len": 4, "n_outputs": 2, "loss": "cross_entropy", "chance": 0.5, "vocab_size": 5}
    TaskSpec(**good)
    with pytest.raises(ValueError, match=message):
        TaskSpec(**{**good, **fields})


# Options, lengths


@every_task
@settings(max_examples=8)
@given(data=st.data(), longer=st.integers(1, 3), further=st.integers(0, 3))
def test_options_rebuild_the_task_and_other_lengths_are_valid_or_refused(
    name: str, data: st.DataObject, longer: int, further: int
) -> None:
    task = drawn_task(name, data)
    again = tasks.create_task(name, **task.options())
    assert type(again) is type(task)
    assert task.name == name
    assert again.options() == task.options() == json.loads(json.dumps(task.options()))
    assert again.spec == task.spec
    assert repr(again) == repr(task)

    same = task.at_length(task.spec.seq_len)
    assert same.spec == task.spec
    length = longer * task.spec.seq_len + further
    refusal = None
    try:
        other = task.at_length(length)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert re.match(rf"{name}: [^\n]+\Z", refusal)
        return
    assert other.spec.seq_len == length
    # A model trained at one length must fit the other.
    for shape in ("input", "vocab_size", "d_input", "n_outputs", "loss", "facts"):
        assert getattr(other.spec, shape) == getattr(task.spec, shape), shape
    assert_arrays_fit(other.spec, other.of_split("test").sample(np.random.default_rng(0), 2), 2)


@every_task
def test_a_task_has_other_lengths_unless_its_case_gives_a_reason(name: str) -> None:
    case, task = CASES[name], base_task(name)
    length = case.other_length or 2 * task.spec.seq_len
    if case.fixed_length is None:
        assert length != task.spec.seq_len
        assert task.at_length(length).spec.seq_len == length
    else:
        with pytest.raises(ValueError, match=rf"^{name}: [^\n]+\Z"):
            task.at_length(length)


# Documentation


@every_task
def test_a_task_documents_its_source_prediction_options_and_an_example(name: str) -> None:
    cls = tasks.task_class(name)
    assert cls.source
    assert cls.prediction
    assert ">>> task = " in (cls.__doc__ or "")  # test_habits.py runs it as a doctest
    assert len(tasks.TASKS.summary(name)) < 80
    assert [option for option, _, meaning in pages.options(cls) if not meaning] == []
    task = pages.worked(cls)
    assert task.spec.seq_len <= pages.LONGEST
    written = [task.input_text(token) for token in range(task.spec.vocab_size or 0)]
    assert len(set(written)) == len(written)


def test_every_public_name_resolves() -> None:
    assert all(getattr(tasks, name) is not None and name in dir(tasks) for name in tasks.__all__)
