"""Statistics of our examples match those recorded from the published generators.

Each statistic is one number per row. We compare its histograms by the chi-square test of homogeneity at level 1e-6; the
seed is fixed, so the outcome never varies.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import tasks
from tasks.generators.memory import capo
from tasks.generators.structure.lano import Lano
from tools.record_tasks import GENERATORS, RECORDS
from tools.task_summaries import IGNORED, ROWS, SUMMARIES, counts
from zoo.training.metrics import MacroAccuracy

OURS: dict[str, tuple[str, dict[str, Any], str]] = {name: (name, {}, "test") for name in SUMMARIES} | {
    "brevo": ("brevo", {"seq_len": 612, "n_names": 70}, "train"),
    "lano-cfg3f": ("lano", {"n_levels": 6, "seq_len": 731}, "test"),
    "lano-cfg3k": ("lano", {"grammar": "cfg3k", "n_levels": 7, "seq_len": 2189}, "test"),
    "capo": ("capo", {"n_people": 100_000}, "test"),
    "selectivbench-blanks": ("selectivbench", {"seq_len": 64, "max_gap": 10}, "test"),
    "selectivbench-distractors": (
        "selectivbench",
        {"seq_len": 64, "max_gap": 3, "gap_share": 0.5, "gap_start": 10, "distractors": True},
        "test",
    ),
    "mqar-basic": ("mqar", {}, "test"),
    "mqar-figure2": (
        "mqar",
        {"vocab_size": 8192, "seq_len": 512, "n_pairs": 64, "random_non_queries": False},
        "test",
    ),
    "fuzzy_recall": ("fuzzy_recall", {"as_published": True}, "test"),
    "fuzzy_recall-train": ("fuzzy_recall", {"as_published": True}, "train"),
    "selective_copying": ("selective_copying", {"as_published": True}, "test"),
    "in_context_regression": ("in_context_regression", {"seq_len": 82, "d_x": 20}, "test"),
    "stacked_mqar": ("stacked_mqar", {"seq_len": 48, "n_symbols": 64, "d_key": 1, "n_passes": 2}, "test"),
    "automata": ("automata", {"seq_len": 256, "max_states": 12, "max_word": 49}, "test"),
}
"""{record: (task, options, split)}."""

QUICK = ("mqar-basic", "in_context_recall", "selective_copying", "copying", "adding", "even_pairs")
"""Records of tasks that are quick to draw; the others take a second each and are slow tests."""

Counts = dict[int, int]


@cache
def recorded(name: str) -> dict[str, Any]:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


@cache
def histograms(name: str) -> dict[str, Counts]:
    return {what: {int(k): v for k, v in found.items()} for what, found in recorded(name)["counts"].items()}


@cache
def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of our generator, as many rows as were recorded, in upstream's form."""
    task_name, options, split = OURS[name]
    if task_name == "selectivbench":
        grammars = (tasks.create_task(task_name, **options, grammar_seed=i) for i in range(ROWS[name]))
        drawn = [task.sample(np.random.default_rng(i), 1) for i, task in enumerate(grammars)]
        inputs, labels = (np.concatenate([each[what] for each in drawn]) for what in ("inputs", "labels"))
        return inputs, labels
    task = tasks.create_task(task_name, **options)
    arrays = tasks.sample_split(task, split, recorded(name)["about"]["rows"], seed=1)
    inputs, labels = arrays["inputs"], arrays["labels"]
    if name == "capo":
        within = np.where(capo.SIZES > 1, inputs - capo.FIRST, -1)
        return within, np.where(labels == IGNORED, IGNORED, np.roll(within, -1, axis=1))
    if name == "adding":
        return inputs, labels[:, -1, 0]
    if name == "delay":
        return inputs[:, :, 0], labels[:, :, 0]
    if name in ("even_pairs", "cycle_navigation", "modular_arithmetic", "mano"):
        return inputs, labels[:, -1]
    if name == "in_context_regression":
        return inputs[:, ::2], labels[:, ::2, 0]
    if name == "stacked_mqar":
        return stacked_numbers(task.options(), inputs), labels
    return inputs, labels


def stacked_numbers(options: dict[str, Any], inputs: np.ndarray) -> np.ndarray:
    """Indices of the key and value vectors nearest to the inputs' only channel; arbitrary if there is no value."""
    n = options["n_symbols"]
    drawn = np.random.default_rng(options["vector_seed"]).standard_normal(2 * n).astype(np.float32)
    return np.stack([np.abs(inputs[:, :, i, None] - drawn[n * i : n * (i + 1)]).argmin(axis=2) for i in (0, 1)], axis=2)


@cache
def numbers(name: str) -> dict[str, np.ndarray]:
    return SUMMARIES[name](*examples(name))


def apart(ours: Counts, theirs: Counts) -> float:
    """Chi-square statistic of two histograms, divided by its 1 - 1e-6 quantile."""
    if len(theirs) == 1 and ours.keys() != theirs.keys():  # a constant upstream must be the same constant here
        return float("inf")
    cells, cell = [], np.zeros(2)
    for value in sorted({*ours, *theirs}):
        cell = cell + np.array([ours.get(value, 0), theirs.get(value, 0)])
        if cell.sum() >= 20:  # with fewer per cell the statistic does not follow the chi-square law
            cells.append(cell)
            cell = np.zeros(2)
    if cell.sum():
        cells = [*cells[:-1], (cells[-1] if cells else 0) + cell]
    if len(cells) == 1:
        return 0.0
    statistic, _, freedom, _ = stats.chi2_contingency(np.array(cells), correction=False)
    return float(statistic / stats.chi2.isf(1e-6, freedom))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param(name, what, marks=() if name in QUICK else pytest.mark.slow)
        for name in SUMMARIES
        for what in recorded(name)["counts"]
        if what != "padding of all"
    ],
)
def test_statistics_of_examples_match_the_published_generators(name: str, what: str) -> None:
    ours, theirs = counts(numbers(name)[what]), histograms(name)[what]
    assert apart(ours, theirs) < 1, f"ours {ours}, theirs {theirs}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SUMMARIES if "constant guess" in recorded(name)])
def test_the_best_constant_guess_has_upstreams_micro_and_macro_accuracy(name: str) -> None:
    task_name, options, split = OURS[name]
    task, scored = tasks.create_task(task_name, **options), examples(name)[1]
    labels = torch.from_numpy(scored[scored != IGNORED])
    theirs = recorded(name)["constant guess"]
    guess = torch.full_like(labels, int(torch.bincount(labels).argmax()))
    metric = MacroAccuracy(task.spec.n_outputs)
    metric.update(guess, labels)
    if name != "compression":  # upstream also scores the marker, which is a class there
        assert float(metric.compute()) == pytest.approx(theirs["macro"], rel=1e-3)
        micro = float((guess == labels).float().mean())
        assert micro == pytest.approx(theirs["micro"], abs=5 * np.sqrt(theirs["micro"] / len(scored)))
    if split == "test":
        chance = task.spec.chance
        assert chance is not None
        assert chance == pytest.approx(theirs["micro"], abs=5 * np.sqrt(chance / len(scored)))


def test_capos_names_and_facts_have_upstreams_numbers_of_values() -> None:
    assert list(recorded("capo")["sizes"].values()) == capo.SIZES[capo.SIZES > 1].tolist()


@pytest.mark.parametrize("grammar", ["cfg3f", "cfg3k"])
def test_lanos_next_token_probabilities_are_upstreams(grammar: str) -> None:
    found = recorded(f"lano-{grammar}")
    sentence = np.array([4, *found["sentence"]]) - 1
    task = Lano(grammar=grammar, n_levels=len(found["rules"]), seq_len=len(sentence))
    theirs = np.array(found["next token"])[:, [1, 2, 3, 0]]
    np.testing.assert_allclose(task.probabilities(sentence[None])[0], theirs, rtol=0, atol=1e-6)


def test_every_generator_has_a_record() -> None:
    assert sorted(path.stem for path in RECORDS.iterdir()) == sorted(GENERATORS) == sorted(SUMMARIES) == sorted(OURS)
