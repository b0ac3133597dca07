"""Every task: shapes, labels a slow solver agrees with, chance, seeds, committed digests, refused shapes."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tasks
from tasks.base import Arrays, Task
from tasks.draws import distinct, weighted_distinct
from tasks.spec import IGNORED, TaskSpec
from tasks.splits import SHARD_ROWS, SPLITS, sample_split, split_rng
from tests.tasks.solvers import SOLVERS, respond
from zoo.naming import UnknownNameError


@st.composite
def mqar_options(draw: st.DrawFn) -> dict[str, Any]:
    n_pairs = draw(st.integers(1, 12))
    seq_len = 4 * n_pairs + 2 * draw(st.integers(0, 30))
    return {
        "vocab_size": seq_len + draw(st.integers(1, 300)),
        "seq_len": seq_len,
        "n_pairs": n_pairs,
        "power_a": draw(st.sampled_from([0.01, 0.5, 1.0, 3.0])),
        "random_non_queries": draw(st.booleans()),
    }


@st.composite
def needle_options(draw: st.DrawFn) -> dict[str, Any]:
    distance = draw(st.integers(1, 60))
    return {
        "distance": distance,
        "n_classes": draw(st.integers(2, 20)),
        "n_noise": draw(st.integers(1, 20)),
        "seq_len": draw(st.none() | st.integers(distance + 1, distance + 20)),
    }


@st.composite
def ssm_teacher_options(draw: st.DrawFn) -> dict[str, Any]:
    d_input, d_output = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    seq_len = draw(st.integers(1, 24))
    return {
        "k": draw(st.integers(1, min(seq_len, d_input * d_output))),
        "seq_len": seq_len,
        "d_input": d_input,
        "d_output": d_output,
        "rho": draw(st.sampled_from([0.1, 0.98, 1.0])),
        "teacher_seed": draw(st.integers(0, 3)),
    }


OPTIONS = {"mqar": mqar_options(), "needle": needle_options(), "ssm_teacher": ssm_teacher_options()}
CLASSIFICATION = sorted(SOLVERS)

any_task = st.sampled_from(sorted(OPTIONS)).flatmap(
    lambda name: st.builds(tasks.create_task, st.just(name))
) | st.one_of(*(options.map(lambda o, name=name: tasks.create_task(name, **o)) for name, options in OPTIONS.items()))


def test_every_task_is_covered_here() -> None:
    assert sorted(OPTIONS) == sorted(tasks.list_tasks())


@settings(max_examples=60)
@given(task=any_task, n=st.integers(0, 5))
def test_arrays_are_what_the_spec_says(task: Task, n: int) -> None:
    spec, arrays = task.spec, task.sample(np.random.default_rng(0), n)
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
    if spec.loss == "cross_entropy":
        labelled = labels != IGNORED
        assert labels.shape == (n, spec.seq_len)
        assert labels.dtype == np.int64
        assert ((labels >= 0) & (labels < spec.n_outputs))[labelled].all()
        assert (labelled.sum(axis=1) == spec.labelled).all()
        assert ((arrays["distance"] >= 0) == labelled).all()
        assert arrays["distance"].dtype == np.int32
    else:
        assert labels.shape == (n, spec.seq_len, spec.n_outputs)
        assert labels.dtype == np.float32
        assert spec.chance is None


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_the_slow_solver_agrees_with_every_label(name: str, data: st.DataObject) -> None:
    task = tasks.create_task(name, **data.draw(OPTIONS[name]))
    arrays = task.sample(np.random.default_rng(data.draw(st.integers(0, 99))), 4)
    for inputs, labels, distance in zip(*(arrays[k].tolist() for k in ("inputs", "labels", "distance")), strict=True):
        asked = [position for position, label in enumerate(labels) if label != IGNORED]
        answers = SOLVERS[name](task.options(), inputs, asked)
        assert answers == {position: labels[position] for position in asked}
        for position in asked:
            # What lies `distance` back is the answer itself: the value, or the needle.
            assert inputs[position - distance[position]] == labels[position]


@settings(max_examples=40)
@given(options=mqar_options(), seed=st.integers(0, 99))
def test_mqar_has_the_published_structure(options: dict[str, Any], seed: int) -> None:
    task = tasks.create_task("mqar", **options)
    n_keys, context = options["vocab_size"] // 2, 2 * options["n_pairs"]
    arrays = task.sample(np.random.default_rng(seed), 4)
    for inputs, labels in zip(arrays["inputs"].tolist(), arrays["labels"].tolist(), strict=True):
        keys, values = inputs[0:context:2], inputs[1:context:2]
        assert len(set(keys)) == len(set(values)) == options["n_pairs"]
        assert all(1 <= key < n_keys for key in keys)
        assert all(n_keys <= value < options["vocab_size"] for value in values)
        queries = [position for position, label in enumerate(labels) if label != IGNORED]
        assert all(position >= context and position % 2 == 0 for position in queries)
        assert sorted(inputs[position] for position in queries) == sorted(keys)
        if not options["random_non_queries"]:
            rest = set(range(context, options["seq_len"])) - set(queries)
            assert all(inputs[position] == 0 for position in rest)


@settings(max_examples=30)
@given(options=ssm_teacher_options(), seed=st.integers(0, 99))
def test_the_teacher_answers_as_its_lag_operators_say(options: dict[str, Any], seed: int) -> None:
    task = tasks.create_task("ssm_teacher", **options)
    arrays = task.sample(np.random.default_rng(seed), 2)
    for inputs, labels in zip(arrays["inputs"], arrays["labels"], strict=True):
        np.testing.assert_allclose(labels, respond(task.lags, inputs), rtol=1e-5, atol=1e-6)


def test_the_teachers_input_is_white(rng: np.random.Generator) -> None:
    x = tasks.create_task("ssm_teacher", seq_len=4, d_input=3).sample(rng, 20_000)["inputs"].reshape(20_000, -1)
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(12), atol=5 / np.sqrt(len(x)) * 2**0.5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mqar", {}),
        ("mqar", {"vocab_size": 9, "seq_len": 8, "n_pairs": 2}),
        ("needle", {}),
        ("needle", {"distance": 3, "n_classes": 3}),
    ],
)
def test_chance_is_what_the_best_blind_guesser_scores(name: str, options: dict[str, int]) -> None:
    task = tasks.create_task(name, **options)
    labels = sample_split(task, "train", 20_000, 0)["labels"]
    labels = labels[labels != IGNORED]
    frequency = np.bincount(labels, minlength=task.spec.n_outputs) / len(labels)
    assert task.spec.chance is not None
    spread = np.sqrt(task.spec.chance / len(labels))
    assert abs(frequency.max() - task.spec.chance) < 5 * spread  # the majority guesser
    assert abs(frequency[frequency > 0].mean() - task.spec.chance) < 1e-12  # the uniform guesser over what occurs


# Seeds and splits


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_splits_share_no_example(name: str) -> None:
    task = tasks.create_task(name)
    sizes = {"train": 5_000, "validation": 1_000, "test": 1_000}
    seen: set[bytes] = set()
    for split, n in sizes.items():
        seen |= {row.tobytes() for row in sample_split(task, split, n, 0)["inputs"]}
    assert len(seen) == sum(sizes.values())


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_more_examples_begin_with_the_same_ones(name: str) -> None:
    task = tasks.create_task(name)
    few, many = (sample_split(task, "validation", n, 3) for n in (SHARD_ROWS - 1, 2 * SHARD_ROWS + 5))
    for key, array in few.items():
        np.testing.assert_array_equal(array, many[key][: len(array)])
    assert len(many["inputs"]) == 2 * SHARD_ROWS + 5
    assert not np.array_equal(many["inputs"][:1024], many["inputs"][1024:2048])


DIGESTS = {
    ("mqar", "train", 0): "63be82c7883b5355",
    ("mqar", "train", 1): "d24c729c81c2370d",
    ("mqar", "validation", 0): "6c6d6e41cf750150",
    ("mqar", "validation", 1): "31d78489122343ad",
    ("mqar", "test", 0): "1ada24a86ef1cb47",
    ("mqar", "test", 1): "2a99f35584cc5e1e",
    ("needle", "train", 0): "2bbf4995cda72761",
    ("needle", "train", 1): "5e2d5ccabb6172ae",
    ("needle", "validation", 0): "a81ba9df3a902cd1",
    ("needle", "validation", 1): "132dce19d433da44",
    ("needle", "test", 0): "ee126aa063074b6b",
    ("needle", "test", 1): "8dea59211c79f6b9",
}


def digest(arrays: Arrays) -> str:
    """Of integer arrays, the same on every machine."""
    sha = hashlib.sha256()
    for name, array in arrays.items():
        sha.update(name.encode() + array.astype("<i8").tobytes())
    return sha.hexdigest()[:16]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("split", sorted(SPLITS))
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_integers_are_those_of_the_committed_digests(name: str, split: str, seed: int) -> None:
    assert digest(sample_split(tasks.create_task(name), split, 100, seed)) == DIGESTS[name, split, seed]


FLOATS = {
    ("train", 0): [0.703593969, 1.91028321, -1.31859279, -2.83668447],
    ("validation", 0): [0.918003619, -1.02900529, -4.71281958, -0.788200915],
    ("test", 0): [-1.56392574, 2.03961825, 0.317934126, -4.98042965],
}


@pytest.mark.parametrize(("split", "seed"), sorted(FLOATS))
def test_floats_are_the_committed_ones(split: str, seed: int) -> None:
    arrays = sample_split(tasks.create_task("ssm_teacher"), split, 100, seed)
    found = [*arrays["inputs"][99, -1, :2], *arrays["labels"][99, -1, :2]]
    np.testing.assert_allclose(found, FLOATS[split, seed], rtol=1e-6, atol=1e-6)


def test_a_split_is_refused_by_its_rule() -> None:
    task = tasks.create_task("needle")
    with pytest.raises(ValueError, match=r"^unknown split 'dev'; choose from: train, validation, test$"):
        split_rng(0, "dev", 0)
    with pytest.raises(ValueError, match=r"^seed and shard must be >= 0, got seed=-1, shard=0$"):
        split_rng(-1, "train", 0)
    with pytest.raises(ValueError, match=r"^needle: a split holds at least one example, got n=0$"):
        sample_split(task, "train", 0, 0)


# Distributions, by chi-square at a fixed seed; bounds are the 1 - 1e-6 quantiles


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_slots_are_drawn_successively_by_weight(rng: np.random.Generator) -> None:
    weights = np.arange(1, 5) ** (0.01 - 1)
    first, second = weighted_distinct(rng, 60_000, weights, 2).T
    counts = np.zeros((4, 4))
    np.add.at(counts, (first, second), 1)
    p = weights / weights.sum()
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    expected = np.array([p[i] * p[j] / (1 - p[i]) for i, j in pairs])
    assert counts.diagonal().sum() == 0
    assert chi_square(np.array([counts[pair] for pair in pairs]), expected) < 51.1  # 11 degrees of freedom


def test_mqar_places_a_key_by_the_power_law(rng: np.random.Generator) -> None:
    task = tasks.create_task("mqar", vocab_size=64, seq_len=22, n_pairs=1)
    slots = np.nonzero(task.sample(rng, 60_000)["labels"] != IGNORED)[1] // 2 - 1
    law = np.arange(1, 11) ** (0.01 - 1)
    assert chi_square(np.bincount(slots, minlength=10), law / law.sum()) < 46.7  # 9 degrees of freedom


@pytest.mark.parametrize(("population", "size"), [(4, 3), (3, 3)])
def test_draws_without_replacement_are_uniform_over_ordered_tuples(
    population: int, size: int, rng: np.random.Generator
) -> None:
    drawn = distinct(rng, 48_000, population, size)
    codes = drawn @ population ** np.arange(size)
    tuples, counts = np.unique(codes, return_counts=True)
    n_tuples = np.prod(range(population - size + 1, population + 1))
    assert len(tuples) == n_tuples
    assert chi_square(counts, np.full(n_tuples, 1 / n_tuples)) < {24: 73.3, 6: 35.9}[n_tuples]


@settings(max_examples=40)
@given(population=st.integers(1, 60), data=st.data())
def test_draws_without_replacement_are_distinct(population: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, population))
    drawn = distinct(np.random.default_rng(0), 5, population, size)
    assert ((drawn >= 0) & (drawn < population)).all()
    assert all(len(set(row)) == size for row in drawn.tolist())
    raced = weighted_distinct(np.random.default_rng(0), 5, np.arange(1.0, population + 1), size)
    assert all(len(set(row)) == size for row in raced.tolist())


def test_random_filler_covers_the_vocabulary(rng: np.random.Generator) -> None:
    arrays = tasks.create_task("mqar", vocab_size=9, seq_len=8, n_pairs=1).sample(rng, 20_000)
    filler = arrays["inputs"][:, 2:][arrays["labels"][:, 2:] == IGNORED]
    assert chi_square(np.bincount(filler, minlength=9), np.full(9, 1 / 9)) < 44.9  # 8 degrees of freedom


# Shapes that cannot exist, names that do not


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "mqar",
            {"n_pairs": 20, "seq_len": 64},
            "mqar: 4 * n_pairs must be <= seq_len, got n_pairs=20, seq_len=64",
        ),
        ("mqar", {"vocab_size": 64}, "mqar: vocab_size must be > seq_len, got vocab_size=64, seq_len=64"),
        ("mqar", {"seq_len": 63}, "mqar: seq_len must be even, got seq_len=63"),
        ("mqar", {"n_pairs": 0}, "mqar: n_pairs must be an integer >= 1, got n_pairs=0"),
        ("mqar", {"n_pairs": 2.5}, "mqar: n_pairs must be an integer >= 1, got n_pairs=2.5"),
        ("mqar", {"n_pairs": True}, "mqar: n_pairs must be an integer >= 1, got n_pairs=True"),
        ("mqar", {"power_a": 0.0}, "mqar: power_a must be positive, got power_a=0.0"),
        ("mqar", {"power_a": float("nan")}, "mqar: power_a must be positive, got power_a=nan"),
        ("needle", {"distance": 0}, "needle: distance must be an integer >= 1, got distance=0"),
        ("needle", {"seq_len": 128}, "needle: seq_len must be > distance, got seq_len=128, distance=128"),
        ("needle", {"n_classes": 1}, "needle: n_classes must be an integer >= 2, got n_classes=1"),
        ("needle", {"n_noise": 0}, "needle: n_noise must be an integer >= 1, got n_noise=0"),
        ("ssm_teacher", {"k": 33}, "ssm_teacher: k must be <= seq_len, got k=33, seq_len=32"),
        (
            "ssm_teacher",
            {"k": 5, "d_input": 2, "d_output": 2},
            "ssm_teacher: k must be <= d_input * d_output, got k=5, d_input=2, d_output=2",
        ),
        ("ssm_teacher", {"rho": 1.01}, "ssm_teacher: rho must lie in (0, 1], got rho=1.01"),
        ("ssm_teacher", {"teacher_seed": -1}, "ssm_teacher: teacher_seed must be an integer >= 0, got teacher_seed=-1"),
        (
            "needle",
            {"distanse": 3},
            "unknown needle option 'distanse' (did you mean 'distance'?); "
            "choose from: distance, n_classes, n_noise, seq_len",
        ),
        ("mqarr", {}, "unknown task 'mqarr' (did you mean 'mqar'?); choose from: mqar, needle, ssm_teacher"),
    ],
)
def test_what_cannot_exist_is_refused_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tasks.create_task(name, **options)


def test_an_unknown_option_is_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError):
        tasks.create_task("mqar", pairs=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": "bytes"}, "input must be"),
        ({"loss": "hinge"}, "loss must be"),
        ({"d_input": 3}, "tokens need vocab_size alone"),
        ({"vocab_size": None}, "tokens need vocab_size alone"),
        ({"chance": None}, "chance is an accuracy"),
        ({"loss": "mse"}, "chance is an accuracy"),
    ],
)
def test_a_contradictory_spec_is_refused(fields: dict[str, Any], message: str) -> None:
    good = {"input": "tokens", "seq_len": 4, "n_outputs": 2, "loss": "cross_entropy", "chance": 0.5, "vocab_size": 5}
    TaskSpec(**good)
    with pytest.raises(ValueError, match=message):
        TaskSpec(**{**good, **fields})


@settings(max_examples=20)
@given(task=any_task)
def test_options_rebuild_the_task(task: Task) -> None:
    again = tasks.create_task(task.name, **task.options())
    assert again.options() == task.options()
    assert again.spec == task.spec
    assert repr(again) == repr(task)


# Imports and examples


def test_importing_tasks_is_light() -> None:
    code = (
        "import sys, tasks; tasks.list_tasks(); tasks.TASKS.summary('mqar'); dir(tasks)\n"
        "heavy = {'numpy', 'torch', 'datasets', 'pyarrow', 'lightning'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "tasks.task_class('ssm_teacher')()\n"
        "heavy = {'torch', 'datasets', 'pyarrow', 'lightning'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_resolves() -> None:
    for name in tasks.__all__:
        assert getattr(tasks, name) is not None
        assert name in dir(tasks)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tasks.nonsense


@pytest.mark.parametrize("module", ["tasks", "tasks.mqar", "tasks.needle", "tasks.ssm_teacher"])
def test_the_worked_examples_are_true(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0
