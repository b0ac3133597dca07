"""Statistics that compare our tasks with the published generators: integers, one per example.

With one number per example, the numbers are independent, and two histograms can be compared by a chi-square test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

IGNORED = -100
BINS = 16

Numbers = dict[str, np.ndarray]
"""Name of a statistic -> integers (rows,)."""

Summary = Callable[[np.ndarray, np.ndarray], Numbers]
"""Function of inputs and labels, each (rows, positions, ...)."""


def binned(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Sort tokens into `BINS` bins; unchanged if the vocabulary has no more than that."""
    return tokens if vocab_size <= BINS else tokens * BINS // vocab_size


def asked(labels: np.ndarray) -> Numbers:
    """Return the number of labels, the positions of the first and the last one, and the mean position."""
    known = labels != IGNORED
    first, last = known.argmax(axis=1), known.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    place = np.arange(labels.shape[1])
    mean = (known * place).sum(axis=1) // known.sum(axis=1)
    return {"labels": known.sum(axis=1), "first label": first, "last label": last, "mean place": mean}


def mqar(inputs: np.ndarray, labels: np.ndarray, vocab_size: int, n_pairs: int, width: int = 2) -> Numbers:
    """Summarise look-ups of zoology: a pair takes `width` tokens of the context; filler has no labels."""
    rows, context = np.arange(len(inputs)), width * n_pairs
    known = labels != IGNORED
    # Position that asks for the first value of the context; -1 if none does, because its key was re-assigned.
    first = inputs[:, width - 1]
    of_first = np.where((labels == first[:, None]).any(axis=1), (labels == first[:, None]).argmax(axis=1), -1)
    filler = ~known
    filler[:, :context] = False
    if width == 3:  # the first token of a question is not filler either
        filler[:, :-1] &= ~known[:, 1:]
    last_filler = inputs.shape[1] - 1 - filler[:, ::-1].argmax(axis=1)
    return asked(labels) | {
        "where the first answer is asked for": of_first,
        "first token": binned(inputs[:, 0], vocab_size),
        "last token of the first pair": binned(first, vocab_size),
        "least token of the first places": binned(inputs[:, 0:context:width].min(axis=1), vocab_size),
        "greatest answer": binned(labels.max(axis=1), vocab_size),
        "last filler": binned(inputs[rows, last_filler], vocab_size),
        "zeros": (inputs == 0).sum(axis=1),
    }


def recall(inputs: np.ndarray, labels: np.ndarray, n_keys: int, noise: int) -> Numbers:
    """Summarise MAD's recall with keys and values of one token; `noise` is the first token of noise."""
    keys = inputs[:, 0::2]
    is_key = keys < n_keys
    distinct = sum((keys == key).any(axis=1).astype(int) for key in range(n_keys))
    last = keys[:, -1:]
    return asked(labels) | {
        "first key": np.where(is_key.any(axis=1), keys[np.arange(len(keys)), is_key.argmax(axis=1)], -1),
        "second token": inputs[:, 1],
        "different keys": distinct,
        "times the last key was shown": (keys[:, :-1] == last).sum(axis=1),
        "where the last key was shown first": (keys == last).argmax(axis=1),
        "last answer": labels[np.arange(len(labels)), asked(labels)["last label"]],
        "noise tokens": (inputs >= noise).sum(axis=1),
    }


def words(inputs: np.ndarray, n_keys: int, padding: int) -> list[tuple[tuple[int, ...], int, int]]:
    """Parse a row of fuzzy recall into pairs: tokens of the key, their position, number of tokens of the value."""
    pairs: list[tuple[tuple[int, ...], int, int]] = []
    for i, token in enumerate(inputs.tolist()):
        if token == padding:
            continue
        if token >= n_keys:
            key, start, size = pairs[-1]
            pairs[-1] = key, start, size + 1
        elif pairs and not pairs[-1][2]:
            key, start, _ = pairs[-1]
            pairs[-1] = (*key, token), start, 0
        else:
            pairs.append(((token,), i, 0))
    return pairs


def fuzzy(inputs: np.ndarray, labels: np.ndarray, n_keys: int, padding: int) -> Numbers:
    """Summarise rows of fuzzy recall whose last key was shown before."""
    read = [words(row, n_keys, padding) for row in inputs]
    last = [pairs[-1] for pairs in read]
    before = [next(pair for pair in pairs if pair[0] == pairs[-1][0]) for pairs in read]
    return asked(labels) | {
        "padding": (inputs == padding).sum(axis=1),
        "pairs": np.array([len(pairs) for pairs in read]),
        "size of the last key": np.array([len(key) for key, _, _ in last]),
        "size of its value": np.array([size for _, _, size in before]),
        "back to where it was shown first": np.array(
            [there - here for (_, there, _), (_, here, _) in zip(last, before, strict=True)]
        ),
        "times it was shown": np.array([sum(pair[0] == pairs[-1][0] for pair in pairs[:-1]) for pairs in read]),
        "size of the first key": np.array([len(pairs[0][0]) for pairs in read]),
        "size of the first value": np.array([pairs[0][2] for pairs in read]),
        "first token of the first key": np.array([pairs[0][0][0] for pairs in read]),
        "last answer": labels[:, -1],
    }


def is_answerable(inputs: np.ndarray, n_keys: int, padding: int) -> np.ndarray:
    """Mask the rows of fuzzy recall whose last key was shown before."""
    read = (words(row, n_keys, padding) for row in inputs)
    return np.array([any(pair[0] == pairs[-1][0] for pair in pairs[:-1]) for pairs in read])


def memorization(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Count keys and answers."""
    keys = inputs[:, 0::2]
    different = np.array([len(set(row)) for row in keys.tolist()])
    return asked(labels) | {"first key": keys[:, 0] // 8, "largest key": keys.max(axis=1), "different keys": different}


def compression(inputs: np.ndarray, labels: np.ndarray, n_tokens: int) -> Numbers:
    """Summarise the tokens to compress, with the marker; the questions after it exist only in ours."""
    read = inputs[:, : n_tokens + 1]
    return {
        "first token": read[:, 0],
        "last token": read[:, -2],
        "marker": read[:, -1],
        "different tokens": np.array([len(set(row)) for row in read.tolist()]),
        "labels of the first token's class": (labels == read[:, :1]).sum(axis=1),
    }


def selective(inputs: np.ndarray, labels: np.ndarray, blank: int, n_copied: int) -> Numbers:
    """Summarise the gaps: blanks before each token, and after the last one up to the marker."""
    row, place = np.nonzero(inputs < blank)
    places = place.reshape(len(inputs), n_copied)
    assert (row.reshape(len(inputs), n_copied) == np.arange(len(inputs))[:, None]).all()
    gaps = np.diff(places, axis=1, prepend=-1) - 1
    marker = (inputs > blank).argmax(axis=1)
    return asked(labels) | {
        "first gap": gaps[:, 0],
        "middle gap": gaps[:, n_copied // 2],
        "last gap": gaps[:, -1],
        "greatest gap": gaps.max(axis=1),
        "standard deviation of the gaps": gaps.std(axis=1).round().astype(int),
        "blanks behind the last token": marker - places[:, -1] - 1,
        "first token": inputs[np.arange(len(inputs)), places[:, 0]],
        "last answer": labels[:, -1],
    }


def capo(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Summarise biographies; a token is the index of a value within its field, or -1 for a word of the sentence."""
    kinds = ["first", "middle", "last", "", "month", "day", "year", "", "city", "", "university", "", "field", ""]
    sizes = [400, 400, 1000, 1, 12, 28, 200, 1, 200, 1, 300, 1, 100, 1, 263]
    columns = zip([*kinds, "employer"], sizes, inputs.T, strict=True)
    words = (inputs == -1) * 2 ** np.arange(inputs.shape[1])
    return asked(labels) | {
        **{kind: binned(column, size) for kind, size, column in columns if kind},
        "places of the words": words.sum(axis=1),
    }


def copying(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Count tokens, blanks and markers."""
    marker = inputs.max(axis=1)
    return asked(labels) | {
        "first token": inputs[:, 0],
        "last answer": labels[:, -1],
        "different tokens": np.array([len(set(row)) for row in inputs.tolist()]),
        "blanks": (inputs == 0).sum(axis=1),
        "marker": marker,
        "markers": (inputs == marker[:, None]).sum(axis=1),
    }


def adding(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Summarise marks and sums; `labels` are the sums, (rows,)."""
    rows, marks = np.arange(len(inputs)), inputs[:, :, 1] == 1
    first, last = marks.argmax(axis=1), marks.shape[1] - 1 - marks[:, ::-1].argmax(axis=1)
    error = labels - inputs[rows, first, 0] - inputs[rows, last, 0]
    return {
        "marks": marks.sum(axis=1),
        "first mark": first // 25,
        "second mark": last // 25,
        "first number": np.floor(inputs[rows, first, 0] * BINS).astype(int),
        "number between": np.floor(inputs[:, len(inputs[0]) // 2, 0] * BINS).astype(int),
        "sum": np.floor(labels * BINS).astype(int),
        "wrong sums": (np.abs(error) > 1e-6).astype(int),
    }


def delay(inputs: np.ndarray, labels: np.ndarray, lag: int) -> Numbers:
    """Summarise values in sixteenths, and the power in the lower half of the band in hundredths."""
    length = inputs.shape[1]
    power = np.square(np.abs(np.fft.rfft(inputs, axis=1)[:, 1:]))
    band = length // 4
    shifted = np.abs(labels[:, lag:] - inputs[:, :-lag]).max(axis=1) + np.abs(labels[:, :lag]).max(axis=1)
    return {
        "first value": np.floor(BINS * inputs[:, 0]).astype(int),
        "value in the middle": np.floor(BINS / 2 * inputs[:, length // 2]).astype(int),
        "step": np.floor(BINS * (inputs[:, length // 2] - inputs[:, length // 2 - 1])).astype(int),
        "standard deviation": np.round(100 * inputs.std(axis=1)).astype(int),
        "power in the lower half of the band": np.round(
            100 * power[:, : band // 2].sum(axis=1) / power.sum(axis=1)
        ).astype(int),
        "power beyond the band": np.round(100 * power[:, band:].sum(axis=1) / power.sum(axis=1)).astype(int),
        "labels that are not the delayed input": (shifted > 1e-6).astype(int),
    }


def even_pairs(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Summarise bits and answers, (rows,); the right answer is whether the first and last bit differ."""
    return {
        "ones": inputs.sum(axis=1),
        "first bit": inputs[:, 0],
        "answer": labels,
        "wrong answers": ((inputs[:, 0] != inputs[:, -1]) != labels).astype(int),
    }


def cycle_navigation(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Summarise steps and answers, (rows,)."""
    return {
        "steps back": (inputs == 0).sum(axis=1),
        "steps on": (inputs == 2).sum(axis=1),
        "first step": inputs[:, 0],
        "answer": labels,
        "wrong answers": ((inputs - 1).sum(axis=1) % 5 != labels).astype(int),
    }


def brevo(inputs: np.ndarray, labels: np.ndarray, n_names: int) -> Numbers:
    """Summarise graphs, and the topological orders that are the training labels."""
    numbers = []
    for row, label in zip(inputs.tolist(), labels.tolist(), strict=True):
        question, blanks = row.index(n_names), row.count(n_names + 2)
        goal, listed = row[question + 1], [*row[question + 3 :], label[-1]]
        written = list(zip(row[blanks:question:2], row[blanks + 1 : question : 2], strict=True))
        parents: dict[int, list[int]] = {node: [] for edge in written for node in edge}
        for parent, child in written:
            parents[child].append(parent)
        depth: dict[int, int] = {}
        for node in listed:
            depth[node] = 1 + min(depth[parent] for parent in parents[node]) if parents[node] else 0
        leaves = [node for node in listed if not parents[node]]
        first, last = written[0], max(at for at, edge in enumerate(written) if edge[1] == goal)
        numbers.append(
            {
                "edges": len(written),
                "nodes with edges": len(parents),
                "nodes without parents": sum(not found for found in parents.values()),
                "nodes to be listed": len(listed),
                "labels": sum(each != IGNORED for each in label),
                "of them without parents": len(leaves),
                "depth": depth[goal],
                "greatest depth": max(depth.values()),
                "parents of the one asked about": len(parents[goal]),
                "most children": max(sum(edge[0] == node for edge in written) for node in parents),
                "edges with the first parent": sum(edge[0] == first[0] for edge in written),
                "place of the last edge to the one asked about": len(written) - last,
                "nodes between the first and its first child": next(
                    at for at, node in enumerate(listed) if listed[0] in parents[node]
                ),
                "depth of the second": depth[listed[1]],
                "the one asked about": binned(np.array(goal), n_names),
                "first edge's parent": binned(np.array(first[0]), n_names),
                "last that is listed before": binned(np.array(listed[-2]), n_names),
            }
        )
    return {what: np.array([found[what] for found in numbers]) for what in numbers[0]}


def lano(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Summarise the first sentence of each row: tokens 0, 1 and 2 between two tokens 3."""
    sentences = [row[1 : row.index(3, 1)] for row in inputs.tolist()]
    texts = ["".join(map(str, sentence)) for sentence in sentences]
    numbers = {
        "tokens": [len(text) // 16 for text in texts],
        "first four tokens": [int(text[:4], 3) for text in texts],
        "last four tokens": [int(text[-4:], 3) for text in texts],
        "four tokens in the middle": [int(text[len(text) // 2 :][:4], 3) for text in texts],
        "zeros in a thousand tokens": [1000 * text.count("0") // len(text) // 20 for text in texts],
        "ones in a thousand tokens": [1000 * text.count("1") // len(text) // 20 for text in texts],
        "different words of four tokens": [len({text[i : i + 4] for i in range(len(text) - 3)}) for text in texts],
        "longest run": [max(len(run) for run in re.findall("0+|1+|2+", text)) for text in texts],
        "times that the first six tokens come": [text.count(text[:6]) for text in texts],
    }
    return {what: np.array(found) for what, found in numbers.items()}


def mano(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Summarise expressions in prefix notation modulo 23 and answers, (rows,)."""
    operators = (inputs >= 23) & (inputs < 26)
    begin = (inputs == 27).sum(axis=1)
    second = np.take_along_axis(operators, begin[:, None] + 1, axis=1)[:, 0]
    return {
        "operators": operators.sum(axis=1),
        "products": (inputs == 25).sum(axis=1),
        "differences": (inputs == 24).sum(axis=1),
        "zeros": (inputs == 0).sum(axis=1),
        "first argument is a number": (~second).astype(int),
        "trailing numbers": np.logical_and.accumulate(~operators[:, -2::-1], axis=1).sum(axis=1),
        "answer": labels,
    }


def selectivbench(inputs: np.ndarray, labels: np.ndarray, n_symbols: int, n_states: int) -> Numbers:
    """Summarise rows, each with its own grammar; distractors after the end of a string are ignored."""
    end, blank = n_symbols * n_states, n_symbols + 1
    numbers = []
    for tokens, states in zip(inputs.tolist(), labels.tolist(), strict=True):
        moves = [(a, b) for a, b in pairwise(states) if a != b]
        letters = [state // n_states for state in states]
        wrong = [i for i, token in enumerate(tokens) if token not in (blank, letters[i]) and states[i] != end]
        runs = [len(run) for run in "".join("_" if token == blank else " " for token in tokens).split()]
        numbers.append(
            {
                "first letter": tokens[0],
                "different states": len(set(states)),
                "different moves": len(set(moves)),
                "positions of the commonest state": max(map(states.count, states)),
                "positions of the commonest letter": max(map(letters.count, letters)) // 2,
                "moves to the end": sum(b == end for _, b in moves),
                "first end": states.index(end) // 4 if end in states else -1,
                "blanks": len(tokens) - sum(token != blank for token in tokens),
                "first blank": tokens.index(blank) if blank in tokens else -1,
                "longest gap of blanks": max(runs, default=0),
                "wrong letters": len(wrong),
                "first wrong letter": wrong[0] // 4 if wrong else -1,
                "wrong ends": sum(tokens[i] == n_symbols for i in wrong),
                "different letters behind the first state": len({b // n_states for a, b in moves if a == states[0]}),
            }
        )
    return {what: np.array([found[what] for found in numbers]) for what in numbers[0]}


def modular_arithmetic(inputs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Summarise expressions and answers, (rows,); Python computes the right answers."""
    values = [eval("".join("01234+-*"[token] for token in row)) % 5 for row in inputs.tolist()]
    operators = inputs[:, 1::2]
    return {
        "positions": np.full(len(inputs), inputs.shape[1]),
        "first number": inputs[:, 0],
        "last number": inputs[:, -1],
        "zeros": (inputs == 0).sum(axis=1),
        "sums": (operators == 5).sum(axis=1),
        "differences": (operators == 6).sum(axis=1),
        "products": (operators == 7).sum(axis=1),
        "answer": labels,
        "wrong answers": (np.array(values) != labels).astype(int),
    }


def regression(x: np.ndarray, y: np.ndarray) -> Numbers:
    """Summarise vectors (rows, pairs, 20) and their function values (rows, pairs)."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    weights = (np.linalg.pinv(x) @ y[:, :, None])[:, :, 0]
    error = np.abs((x @ weights[:, :, None])[:, :, 0] - y).max(axis=1)
    return {
        "first channel": np.floor(4 * x[:, 0, 0]).astype(int),
        "last channel": np.floor(4 * x[:, -1, -1]).astype(int),
        "squared length of a vector": np.floor(np.square(x[:, 7]).sum(axis=1)).astype(int),
        "squared length of the weights": np.floor(np.square(weights).sum(axis=1)).astype(int),
        "first weight": np.floor(4 * weights[:, 0]).astype(int),
        "first value": np.floor(y[:, 0]).astype(int),
        "last value": np.floor(y[:, -1]).astype(int),
        "values that no linear function gives": (error > 1e-3).astype(int),
    }


def stacked(inputs: np.ndarray, labels: np.ndarray, n_pairs: int, n_passes: int) -> Numbers:
    """Summarise pairs of key and value indices, (rows, positions, 2); a query has no value."""
    rows, keys, values = np.arange(len(inputs)), inputs[:, :, 0], inputs[:, :, 1]
    context = n_pairs * n_passes
    passes = keys[:, :context].reshape(len(keys), n_passes, n_pairs)
    last = (passes[:, -1] == keys[:, -1:]).argmax(axis=1)
    place = (passes[:, 0] == keys[:, -1:]).argmax(axis=1)
    return asked(labels) | {
        "first key": keys[:, 0],
        "first value": values[:, 0],
        "greatest key": keys.max(axis=1),
        "where the last query stands in the first pass": place,
        "where it stands in the last pass": last,
        "last answer": labels[:, -1],
        "wrong answers": (values[rows, place] != labels[:, -1]).astype(int),
        "different keys": np.array([len(set(row)) for row in keys.tolist()]),
    }


def automata(inputs: np.ndarray, labels: np.ndarray, separator: int) -> Numbers:
    """Summarise words, and the labels that our task has too."""
    ends = inputs == separator
    starts = np.concatenate([np.ones((len(inputs), 1), dtype=bool), ends[:, :-1]], axis=1) & ~ends
    first_end = ends.argmax(axis=1)
    after = np.array([len({row[i + 1] for i in range(len(row) - 1) if row[i] == row[0]}) for row in inputs.tolist()])
    return {
        "labels": (labels != IGNORED).sum(axis=1),
        "labels behind a separator": ((labels != IGNORED) & ends).sum(axis=1),
        "first label": (labels != IGNORED).argmax(axis=1) // 8,
        "greatest answer": labels.max(axis=1),
        "words": ends.sum(axis=1),
        "symbols of the first word": first_end,
        "first symbol": inputs[:, 0],
        "different symbols": np.array([len(set(row)) for row in inputs.tolist()]),
        "different first symbols": np.array(
            [len(set(np.array(row)[where])) for row, where in zip(inputs.tolist(), starts, strict=True)]
        ),
        "what follows the first symbol": after,
    }


SUMMARIES: dict[str, Summary] = {
    "mqar-basic": partial(mqar, vocab_size=256, n_pairs=4),
    "mqar-figure2": partial(mqar, vocab_size=8192, n_pairs=64),
    "forgetting": partial(mqar, vocab_size=256, n_pairs=8 + 4),
    "compositional": partial(mqar, vocab_size=256, n_pairs=4, width=3),
    "in_context_recall": partial(recall, n_keys=8, noise=16),
    "noisy_recall": partial(recall, n_keys=8, noise=16),
    "fuzzy_recall": partial(fuzzy, n_keys=7, padding=15),
    "fuzzy_recall-train": partial(fuzzy, n_keys=7, padding=15),
    "capo": capo,
    "memorization": memorization,
    "compression": partial(compression, n_tokens=31),
    "selective_copying": partial(selective, blank=14, n_copied=16),
    "copying": copying,
    "adding": adding,
    "delay": partial(delay, lag=1000),
    "even_pairs": even_pairs,
    "cycle_navigation": cycle_navigation,
    "modular_arithmetic": modular_arithmetic,
    "brevo": partial(brevo, n_names=70),
    "lano-cfg3f": lano,
    "lano-cfg3k": lano,
    "mano": mano,
    "in_context_regression": regression,
    "selectivbench-blanks": partial(selectivbench, n_symbols=8, n_states=4),
    "selectivbench-distractors": partial(selectivbench, n_symbols=8, n_states=4),
    "stacked_mqar": partial(stacked, n_pairs=16, n_passes=2),
    "automata": partial(automata, separator=18),
}
"""The statistics of each record."""

ROWS = {
    "brevo": 4096,
    "lano-cfg3k": 1024,
    "selectivbench-blanks": 1024,
    "selectivbench-distractors": 1024,
    "mqar-figure2": 2048,
    "delay": 2048,
    "in_context_regression": 2048,
    "automata": 2048,
}
USUAL_ROWS = 8192
"""Number of examples of each generator, upstream's and ours."""


def counts(numbers: np.ndarray) -> dict[int, int]:
    """Return the histogram of the numbers."""
    return {int(value): int(count) for value, count in zip(*np.unique(numbers, return_counts=True), strict=True)}
