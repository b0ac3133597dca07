"""Trivial baselines: the accuracy of the best guess from the multiset of tokens read so far, without their order."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from tasks import create_task
from tasks.generators.tracking.groups import multiplication_table
from tasks.spec import IGNORED


@pytest.mark.parametrize(
    ("group", "generators", "alphabet"), [("S3", None, range(6)), ("A4", "2314+2143", (4, 3)), ("Z3", None, range(3))]
)
def test_the_best_guess_at_group_words_knows_the_counts_of_elements(
    group: str, generators: str | None, alphabet: tuple[int, ...]
) -> None:
    words = create_task("group_words", group=group, seq_len=3, generators=generators)
    answers: dict[tuple[int, ...], Counter[int]] = {}
    for word in itertools.product(alphabet, repeat=3):
        product = 0
        for at, element in enumerate(word, 1):
            product = int(multiplication_table(group)[product, element])
            answers.setdefault(tuple(sorted(word[:at])), Counter())[product] += 1
    right = sum(max(found.values()) for found in answers.values())
    assert words.guess_without_order() == pytest.approx(right / (3 * len(alphabet) ** 3))


@pytest.mark.parametrize(("group", "generators", "guess"), [("Z2", None, 1), ("S3", "132+321+123", None)])
def test_the_guess_at_long_words_is_1_if_elements_commute_and_else_unknown(
    group: str, generators: str | None, guess: float | None
) -> None:
    assert create_task("group_words", group=group, seq_len=1100, generators=generators).guess_without_order() == guess


def test_the_frequencies_of_bytes_carry_4_to_6_bits_of_english() -> None:
    perplexity = create_task("text").guess_without_order()
    assert perplexity is not None
    assert 16 < perplexity < 64


def test_guessing_one_of_the_values_read_is_right_once_per_number_of_pairs() -> None:
    rng, n = np.random.default_rng(0), 4000
    for options, pairs in (({"n_pairs": 6}, 6), ({"n_pairs": 6, "min_pairs": 1}, 3.5), ({"n_pairs": None}, 8)):
        mqar = create_task("mqar", seq_len=32, vocab_size=64, **options)
        asked = (mqar.sample(rng, n)["labels"] != IGNORED).sum()
        assert mqar.guess_among_read() == pytest.approx(1 / pairs)
        assert n / asked == pytest.approx(1 / pairs, rel=0.05)  # one value guessed throughout a row is right once


def test_the_answer_of_k_hop_is_any_node_but_the_queried_one(rng: np.random.Generator) -> None:
    hops = create_task("k_hop", seq_len=16, n_names=10, max_hops=3, n_questions=2)
    drawn = hops.sample(rng, 1)
    nodes = set(drawn["inputs"][0, :12])
    answers = zip(drawn["inputs"][0], drawn["labels"][0], strict=True)
    assert all(label in nodes - {asked} for asked, label in answers if label != IGNORED)
    assert hops.guess_among_read() == pytest.approx(1 / (len(nodes) - 1))


@pytest.mark.parametrize(
    ("name", "options", "tokens"), [("induction_heads", {}, 15), ("selective_copying", {"n_copied": 6}, 14)]
)
def test_the_best_guess_is_the_most_frequent_token(
    name: str, options: dict[str, int], tokens: int, rng: np.random.Generator
) -> None:
    task = create_task(name, seq_len=32, **options)
    rows = [Counter(row[row < tokens].tolist()) for row in task.sample(rng, 4000)["inputs"]]
    counted = np.mean([max(row.values()) / row.total() for row in rows])
    assert task.guess_among_read() == pytest.approx(counted, rel=0.03)


def test_few_long_sequences_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    task = create_task("induction_heads", seq_len=2**20)
    drawn: list[int] = []
    monkeypatch.setattr(type(task), "sample", lambda _, rng, n: drawn.append(n) or {"inputs": np.zeros((n, 2), int)})
    assert task.guess_among_read() == 1
    assert drawn == [16]  # 2,000 took 16 GB


def test_the_best_guess_in_brevo_is_a_node_not_yet_listed(rng: np.random.Generator) -> None:
    task, shares = create_task("brevo", seq_len=36, n_names=10), []
    drawn = task.sample(rng, 4000)
    for row, labels in zip(drawn["inputs"].tolist(), drawn["labels"].tolist(), strict=True):
        question = row.index(10)
        nodes = {node for node in row[:question] if node < 10}
        listed = [{*row[question + 1 : at + 1]} for at, label in enumerate(labels) if label != IGNORED]
        shares += [1 / len(nodes - before) for before in listed]
    assert task.guess_among_read() == pytest.approx(np.mean(shares), rel=0.03)
