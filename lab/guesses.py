"""Trivial baselines of a task: the best guesses from which tokens have been read, whatever their order."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from lab.build import build_task
from tasks.base import Task
from tasks.generators.copying.selective_copying import SelectiveCopying
from tasks.generators.in_context.induction_heads import InductionHeads
from tasks.generators.in_context.k_hop import KHop
from tasks.generators.memory.needle import Needle
from tasks.generators.real.text import Text
from tasks.generators.recall.mqar import MQAR
from tasks.generators.tracking.group_words import GroupWords
from tasks.generators.tracking.groups import multiplication_table
from tasks.generators.tracking.parity import Parity

_EXAMPLES = 2000
_MOST_BAGS = 10**5


def without_order(task: Task) -> float | None:
    """Return what the best guess that ignores order scores; None where it is not known.

    An accuracy; of text the perplexity of the frequencies of its symbols.
    """
    match task:
        case Text():
            return _perplexity(task)
        case Needle():
            return None if task.n_distractors else 1.0
        case Parity():
            return 1.0
        case GroupWords():
            return _of_words(task.group, task.alphabet, task.seq_len)
        case _:
            return among_read(task)


def among_read(task: Task) -> float | None:
    """Return the accuracy of naming one of the tokens that were read and may be asked for; None where it is not known.

    Of MQAR it is that of one of the values that were given, since the filler can only make it harder.
    """
    known = _AMONG_READ.get(type(task))
    return known(task) if known else None


def score_without_order(config: Mapping[str, Any]) -> float | None:
    """Return `without_order` of a configuration's task; None for mixtures, data of one's own and what is gone.

    Args:
        config: complete, nested as in config.yaml.
    """
    task = config.get("task", {})
    if task.get("name") not in _KNOWN or task.get("mixture"):
        return None
    return _score_without_order(json.dumps(task, sort_keys=True, default=str))


@cache
def _score_without_order(task: str) -> float | None:
    try:
        return without_order(build_task({"task": json.loads(task)}))
    except (ValueError, OSError):  # an option that there was once, a file that is gone
        return None


def to_be_left(config: Mapping[str, Any]) -> float | None:
    """Return the accuracy from which a configuration's models have to come away, if it is more than chance.

    It is that of `among_read`; None where that is not known, where one token alone can be named, and for mixtures.
    """
    if config["task"]["name"] not in {kind.name for kind in _AMONG_READ} or config["task"].get("mixture"):
        return None
    guess = among_read(build_task(config))
    return guess if guess is not None and guess < 1 else None


def _most_frequent(task: Task, n_tokens: int) -> float:
    """Return the mean share of the most frequent among the first `n_tokens` tokens of a sequence."""
    inputs = task.sample(np.random.default_rng(0), _EXAMPLES)["inputs"]
    rows, at = np.nonzero(inputs < n_tokens)
    counts = np.bincount(rows * n_tokens + inputs[rows, at], minlength=_EXAMPLES * n_tokens)
    counts = counts.reshape(_EXAMPLES, n_tokens)
    return float((counts.max(1) / counts.sum(1)).mean())


_AMONG_READ: Mapping[type[Task], Callable[[Any], float]] = {
    # As many questions as pairs are asked: the mean over questions is one over the mean number of pairs.
    MQAR: lambda task: 2 / (task.most_pairs + (task.min_pairs or task.most_pairs)),
    KHop: lambda task: 1 / (task.n_nodes - 1),
    SelectiveCopying: lambda task: _most_frequent(task, task.vocab_size - 2),
    InductionHeads: lambda task: _most_frequent(task, task.vocab_size - 1),
}
"""Of the very class: one that is derived from it may ask for something else."""
_KNOWN = {kind.name for kind in (Needle, Parity, GroupWords, Text, *_AMONG_READ)}


def _perplexity(task: Text) -> float:
    """Return the perplexity on test windows of the frequencies in training windows; no symbol has none."""
    rng = np.random.default_rng(0)
    seen = task.of_split("train").sample(rng, _EXAMPLES)["inputs"]
    asked = task.of_split("test").sample(rng, _EXAMPLES)["labels"]
    counts = 1 + np.bincount(seen.ravel(), minlength=task.spec.vocab_size or 0)
    return float(np.exp(-np.log(counts / counts.sum())[asked].mean()))


@cache
def _of_words(group: str, alphabet: tuple[int, ...], length: int) -> float | None:
    """Count the words of each product by what they are made of, and take the commonest product."""
    table = multiplication_table(group)
    order, n = len(table), len(alphabet)
    if math.comb(n + length - 1, length) > _MOST_BAGS:
        return None
    ways = {(0,) * n: np.eye(order)[0]}
    right = []
    for at in range(1, length + 1):
        longer: dict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros(order))
        for bag, by_product in ways.items():
            for x, element in enumerate(alphabet):
                longer[*bag[:x], bag[x] + 1, *bag[x + 1 :]][table[:, element]] += by_product
        ways = dict(longer)
        right.append(sum(found.max() for found in ways.values()) / n**at)
    return float(np.mean(right))
