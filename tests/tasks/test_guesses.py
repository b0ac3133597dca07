"""Guesses without order: what a guesser that only counts the tokens it has read scores."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from typing import Any

import numpy as np
import pytest

from lab.config import parse
from lab.guesses import among_read, score_without_order, to_be_left, without_order
from tasks import create_task
from tasks.generators.recall.mqar import MQAR
from tasks.generators.tracking.groups import multiplication_table
from tasks.spec import IGNORED


def test_the_best_guess_without_order_is_the_commonest_answer_to_the_tokens_that_were_read() -> None:
    for group, generators, alphabet in (("S3", None, range(6)), ("A4", "2314+2143", (4, 3))):
        words = create_task("group_words", group=group, seq_len=3, generators=generators)
        answers: dict[tuple[int, ...], Counter[int]] = {}
        for word in itertools.product(alphabet, repeat=3):
            product = 0
            for at, element in enumerate(word, 1):
                product = int(multiplication_table(group)[product, element])
                answers.setdefault(tuple(sorted(word[:at])), Counter())[product] += 1
        right = sum(max(found.values()) for found in answers.values())
        assert without_order(words) == pytest.approx(right / (3 * len(alphabet) ** 3))
    assert without_order(create_task("group_words", group="Z3", seq_len=5)) == 1  # a cyclic group has no order
    assert without_order(create_task("mqar", seq_len=32, n_pairs=4)) == 0.25
    assert 16 < without_order(create_task("text")) < 64  # bytes of English: their frequencies are worth 4 to 6 bits


def test_a_guess_among_what_was_read_is_right_as_often_as_counted() -> None:
    rng, n = np.random.default_rng(0), 4000
    for options, pairs in (({"n_pairs": 6}, 6), ({"n_pairs": 6, "min_pairs": 1}, 3.5), ({"n_pairs": None}, 8)):
        mqar = create_task("mqar", seq_len=32, vocab_size=64, **options)
        asked = (mqar.sample(rng, n)["labels"] != IGNORED).sum()
        assert among_read(mqar) == pytest.approx(1 / pairs)
        assert n / asked == pytest.approx(1 / pairs, rel=0.05)  # a value named throughout a row is right once
    hops = create_task("k_hop", seq_len=16, n_names=10, max_hops=3, n_questions=2)
    drawn = hops.sample(rng, 1)
    nodes = set(drawn["inputs"][0, :12])
    answers = zip(drawn["inputs"][0], drawn["labels"][0], strict=True)
    assert all(label in nodes - {asked} for asked, label in answers if label != IGNORED)
    assert among_read(hops) == pytest.approx(1 / (len(nodes) - 1))
    for name, options, tokens in (("induction_heads", {}, 15), ("selective_copying", {"n_copied": 6}, 14)):
        task = create_task(name, seq_len=32, **options)
        rows = [Counter(row[row < tokens].tolist()) for row in task.sample(rng, n)["inputs"]]
        counted = np.mean([max(row.values()) / row.total() for row in rows])
        assert among_read(task) == pytest.approx(counted, rel=0.03)


def test_only_what_is_more_than_chance_and_less_than_all_has_to_be_left() -> None:
    def config(line: str) -> dict[str, Any]:
        return parse(shlex.split(line)).config

    assert to_be_left(config("--task mqar --task.n_pairs 4 --task.seq_len 32")) == 0.25
    assert to_be_left(config("--task mqar --task.n_pairs 1 --task.seq_len 32")) is None  # one value was read
    assert to_be_left(config("--task needle")) is None
    assert to_be_left({"task": {"name": "./mqar.npz"}}) is None  # data of one's own


def test_a_guess_without_order_is_not_made_up() -> None:
    mqar = {"name": "mqar", "n_pairs": 4, "seq_len": 32}
    assert score_without_order({"task": mqar}) == 0.25
    assert score_without_order({"task": mqar | {"mixture": [{"seq_len": 64}]}}) is None
    assert score_without_order({"task": mqar | {"n_pairs": 40}}) is None  # no such task can be made
    assert score_without_order({"task": {"name": "text", "path": "/nowhere"}}) is None
    assert score_without_order({"task": {"name": "./mqar.npz"}}) is None
    assert to_be_left({"task": {"name": "mqar", "mixture": [{}]}}) is None

    class Mine(MQAR):
        """May ask for anything."""

    assert among_read(Mine(seq_len=32)) is None


@pytest.mark.parametrize("task", ["mqar", "needle", "parity", "k_hop", "selective_copying", "induction_heads"])
def test_no_guess_without_order_is_worse_than_one_without_input(task: str) -> None:
    guess = without_order(create_task(task))
    assert guess is not None
    assert create_task(task).spec.chance < guess <= 1
