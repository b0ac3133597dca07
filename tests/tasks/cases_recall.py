"""Cases of recall tasks, which look up values by key."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tests.tasks.case import Answers, Options, TaskCase


def solve_compositional(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look up the two tokens in the list of triples at the start."""
    n_pairs, answers = options["n_pairs"], {}
    keys = [tuple(inputs[3 * j : 3 * j + 2]) for j in range(n_pairs)]
    for i in asked:
        place = 3 * keys.index((inputs[i - 1], inputs[i])) + 2
        answers[i] = inputs[place], i - place, n_pairs
    return answers


def lookup_options(draw: st.DrawFn, n_pairs: int, seq_len: int) -> Options:
    return {
        "vocab_size": seq_len + draw(st.integers(1, 300)),
        "seq_len": seq_len,
        "n_pairs": n_pairs,
        "power_a": draw(st.sampled_from([0.01, 0.5, 1.0, 3.0])),
        "random_non_queries": draw(st.booleans()),
    }


@st.composite
def compositional_options(draw: st.DrawFn) -> Options:
    n_pairs = draw(st.integers(1, 4)) ** 2
    return lookup_options(draw, n_pairs, 6 * n_pairs + draw(st.integers(0, 20)))


def solve_forgetting(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Find the last assignment to the key in the list at the start, and count the assignments."""
    listed, answers = 2 * (options["n_pairs"] + options["n_updates"]), {}
    for i in asked:
        places = [j + 1 for j in range(0, listed, 2) if inputs[j] == inputs[i]]
        answers[i] = inputs[places[-1]], i - places[-1], options["n_pairs"], len(places)
    return answers


@st.composite
def forgetting_options(draw: st.DrawFn) -> Options:
    n_pairs = draw(st.integers(1, 10))
    n_updates = draw(st.integers(0, n_pairs))
    seq_len = 4 * n_pairs + 2 * n_updates + 2 * draw(st.integers(0, 20))
    return lookup_options(draw, n_pairs, seq_len) | {"n_updates": n_updates}


def every_token_asked(options: Options, asked: list[int], n_next: int) -> bool:
    """Whether this is the training form, which labels each position with its next token."""
    return options["train_targets"] == "every_token" and asked == list(range(n_next))


def _fuzzy_pairs(options: Options, inputs: list[int]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Parse the sequence into (key, positions of its value's tokens).

    Keys and values have different alphabets and alternate, so the parse is unique.
    """
    pairs: list[tuple[tuple[int, ...], list[int]]] = []
    key: list[int] = []
    n_keys = (options["vocab_size"] - 1) // 2
    for i, token in enumerate(inputs):
        if token == options["vocab_size"] - 1:
            continue
        if token < n_keys:
            if i == 0 or inputs[i - 1] >= n_keys:
                key = []
                pairs.append(((), []))
            key.append(token)
            pairs[-1] = (tuple(key), [])
        else:
            pairs[-1][1].append(i)
    return pairs


def _fuzzy_answers(options: Options, inputs: list[int]) -> list[tuple[int, int, int]]:
    """(position of a label, the token, position of this token in the value's previous occurrence) for repeated keys."""
    answers = []
    given: dict[tuple[int, ...], list[int]] = {}
    value: dict[tuple[int, ...], list[int]] = {}
    pairs = _fuzzy_pairs(options, inputs)
    for number, (key, positions) in enumerate(pairs):
        if key not in given:
            given[key], value[key] = positions, [inputs[i] for i in positions]
            continue
        start = positions[0] if positions else len(inputs)
        # The last token of the last value is only a label, so the value's size comes from its first occurrence.
        size = len(value[key])
        assert len(positions) == size - (number == len(pairs) - 1)
        answers += [(start + w - 1, value[key][w], given[key][w]) for w in range(size)]
        given[key] = [start + w for w in range(size)]
    return answers


def solve_fuzzy(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Spell the value of each repeated key; in training also predict every next token."""
    answers = {}
    if every_token_asked(options, asked, len(inputs)):
        answers = {i: (inputs[i + 1], -1) for i in asked[:-1]}
    return answers | {i: (token, i - before) for i, token, before in _fuzzy_answers(options, inputs)}


TRAIN_TARGETS = st.sampled_from(["every_token", "answers"])


@st.composite
def fuzzy_recall_options(draw: st.DrawFn) -> Options:
    k, v = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return {
        "vocab_size": draw(st.integers(max(5, 2 * max(k, v) + 1), 20)),
        "seq_len": 2 * (k + v) + draw(st.integers(1, 60)),
        "k_motif_size": k,
        "v_motif_size": v,
        "train_targets": draw(TRAIN_TARGETS),
        "as_published": draw(st.booleans()),
    }


def _key_positions(options: Options, inputs: list[int]) -> dict[int, list[int]]:
    """{key: its positions}; noise tokens have numbers above keys and values."""
    positions: dict[int, list[int]] = {}
    n_keys = (options["vocab_size"] - options.get("noise_vocab_size", 0)) // 2
    for i in range(0, len(inputs), 2):
        if inputs[i] < n_keys:
            positions.setdefault(inputs[i], []).append(i)
    return positions


def solve_recall(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """At each repeat of a key, answer with the value after its first occurrence; in training predict every token.

    The distance is to the value after the key's previous occurrence.
    """
    answers = {}
    if every_token_asked(options, asked, len(inputs) - 1):
        answers = {i: (inputs[i + 1], -1) for i in asked}
    if options.get("final_query"):  # pairs, a marker, a key
        marker, key = inputs[-2:]
        assert marker == options["vocab_size"] - 1
        places = [i for i in range(0, len(inputs) - 2, 2) if inputs[i] == key]
        last = len(inputs) - 1
        return answers | {last: (inputs[places[0] + 1], last - places[-1] - 1)}
    for first, *later in _key_positions(options, inputs).values():
        for before, i in pairwise([first, *later]):
            answers[i] = inputs[first + 1], i - (before + 1)
    return answers


@st.composite
def in_context_recall_options(draw: st.DrawFn) -> Options:
    return {
        "vocab_size": draw(st.integers(5, 40)),
        "seq_len": 2 * draw(st.integers(2, 40)),
        "train_targets": draw(TRAIN_TARGETS),
        "final_query": draw(st.booleans()),
    }


def solve_mqar(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look up each key in the list of pairs at the start; each pair is asked for once."""
    most = options["n_pairs"] or options["seq_len"] // 4
    assert (options["min_pairs"] or most) <= len(asked) <= most
    keys, answers = inputs[0 : 2 * len(asked) : 2], {}
    assert len(set(keys)) == len(keys)
    for i in asked:
        place = 2 * keys.index(inputs[i]) + 1
        answers[i] = inputs[place], i - place, len(asked)
    return answers


@st.composite
def mqar_options(draw: st.DrawFn) -> Options:
    n_pairs = draw(st.integers(1, 12))
    seq_len = 4 * n_pairs + 2 * draw(st.integers(0, 30))
    options = lookup_options(draw, n_pairs, seq_len) | {"min_pairs": draw(st.none() | st.integers(1, n_pairs))}
    return options | draw(st.sampled_from([{}, {"n_pairs": None}]))


@st.composite
def noisy_recall_options(draw: st.DrawFn) -> Options:
    noise = draw(st.integers(1, 20))
    return {
        "vocab_size": noise + draw(st.integers(4, 40)),
        "seq_len": 2 * draw(st.integers(2, 40)),
        "noise_vocab_size": noise,
        "frac_noise": draw(st.sampled_from([0.0, 0.2, 0.8, 0.99])),
        "train_targets": draw(TRAIN_TARGETS),
    }


def solve_stacked_mqar(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Look up the key in every pass, and answer with the number of its value among all values.

    Values are drawn after all keys. The distance is to the key's last occurrence among the pairs.
    """
    m, d, n_passes = options["n_symbols"], options["d_key"], options["n_passes"]
    n_pairs = len(inputs) // (n_passes + 1)
    assert asked == list(range(n_passes * n_pairs, len(inputs)))
    drawn = np.random.default_rng(options["vector_seed"]).standard_normal(2 * m * d).astype(np.float32).tolist()
    numbers = [drawn[d * i : d * (i + 1)] for i in range(2 * m)]
    answers = {}
    for i in asked:
        assert inputs[i][d:] == [0.0] * d
        assert inputs[i][:d] in numbers[:m]
        places = [j for j in range(asked[0]) if inputs[j][:d] == inputs[i][:d]]
        [value] = {tuple(inputs[j][d:]) for j in places}
        answers[i] = numbers[m:].index(list(value)), i - places[-1]
    assert len({value for value, _ in answers.values()}) == n_pairs
    return answers


@st.composite
def stacked_mqar_options(draw: st.DrawFn) -> Options:
    n_pairs, n_passes = draw(st.integers(1, 10)), draw(st.integers(1, 3))
    return {
        "seq_len": n_pairs * (n_passes + 1),
        "n_symbols": n_pairs + draw(st.integers(0, 20)),
        "d_key": draw(st.integers(1, 6)),
        "n_passes": n_passes,
        "vector_seed": draw(st.integers(0, 3)),
    }


def solve_planted_heads(options: Options, inputs: list[list[float]], asked: list[int]) -> Answers:
    """Look up the queried key's value, and apply the relation's map, a product of three matrices."""
    assert asked == [len(inputs) - 1]
    d_value, n_keys = options["d_value"], options["n_keys"]
    first = int(options["bos"])
    assert [x[-1] for x in inputs] == [1.0] * first + [0.0] * (len(inputs) - first)
    keys = [x[d_value : d_value + n_keys].index(1) for x in inputs[first:]]
    assert len(set(keys[:-1])) == len(keys) - 1
    value = inputs[first + keys.index(keys[-1])][:d_value]
    u, v = np.random.default_rng(options["map_seed"]).standard_normal((2, d_value, d_value))
    shift = np.zeros((d_value, d_value))
    for channel in range(d_value):
        shift[channel, (channel + 1) % d_value] = 1
    relation = inputs[-1][d_value + n_keys : -1].index(1)
    left, right = np.linalg.qr(u)[0], np.linalg.qr(v)[0]
    return {asked[0]: (left @ np.linalg.matrix_power(shift, relation) @ right @ np.array(value)).tolist()}


@st.composite
def planted_heads_options(draw: st.DrawFn) -> Options:
    d_value, n_pairs, bos = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.booleans())
    return {
        "k": draw(st.integers(1, d_value)),
        "seq_len": n_pairs + 1 + bos,
        "n_keys": n_pairs + draw(st.integers(0, 4)),
        "d_value": d_value,
        "bos": bos,
        "map_seed": draw(st.integers(0, 3)),
    }


CASES = {
    "compositional": TaskCase(
        options=compositional_options(),
        solve=solve_compositional,
        least={"n_pairs": 1},
        refused=[
            ({"n_pairs": 8}, "n_pairs must be a square number"),
            ({"n_pairs": 16}, "6 * n_pairs must be <= seq_len"),
            ({"vocab_size": 64}, "vocab_size must be > seq_len"),
            ({"power_a": -1}, "power_a must be positive"),
        ],
        published=[{"vocab_size": 8192, "seq_len": seq, "n_pairs": k} for seq, k in [(64, 4), (256, 36), (2048, 256)]],
    ),
    "forgetting": TaskCase(
        options=forgetting_options(),
        solve=solve_forgetting,
        least={"n_updates": 0},
        refused=[
            ({"n_updates": 9}, "n_updates must be <= n_pairs"),
            ({"n_pairs": 14, "n_updates": 5}, "4 * n_pairs + 2 * n_updates must be <= seq_len"),
            ({"seq_len": 63}, "seq_len must be even"),
            ({"vocab_size": 64}, "vocab_size must be > seq_len"),
        ],
        published=[{"vocab_size": 8192, "seq_len": seq, "n_pairs": k} for seq, k in [(64, 4), (256, 36), (2048, 256)]],
    ),
    "fuzzy_recall": TaskCase(
        options=fuzzy_recall_options(),
        solve=solve_fuzzy,
        refused=[
            ({"seq_len": 12}, "seq_len must be > 2 * (k_motif_size + v_motif_size)"),
            ({"k_motif_size": 8}, "k_motif_size must be <= (vocab_size - 1) // 2, the tokens of keys"),
            ({"v_motif_size": 9}, "v_motif_size must be <= vocab_size // 2, the tokens of values"),
            ({"vocab_size": 128, "k_motif_size": 7, "seq_len": 200}, "keys must be at most 2^40 words"),
            ({"train_targets": "all"}, "every_token, answers"),
        ],
        published=[{"as_published": True} | more for more in ({}, {"vocab_size": 128}, {"seq_len": 1024})],
    ),
    "in_context_recall": TaskCase(
        options=in_context_recall_options(),
        solve=solve_recall,
        least={"vocab_size": 4},
        refused=[
            ({"seq_len": 127}, "seq_len must be even"),
            ({"train_targets": "all"}, "every_token, answers"),
            ({"vocab_size": 4, "final_query": True}, "vocab_size must be an integer >= 5"),
        ],
        published=[{}, {"vocab_size": 128}, {"seq_len": 1024}, {"vocab_size": 19, "seq_len": 42, "final_query": True}],
    ),
    "mqar": TaskCase(
        options=mqar_options(),
        solve=solve_mqar,
        least={"n_pairs": 1, "min_pairs": 1},
        refused=[
            ({"n_pairs": 20, "seq_len": 64}, "4 * n_pairs must be <= seq_len"),
            ({"vocab_size": 64}, "vocab_size must be > seq_len"),
            ({"seq_len": 63}, "seq_len must be even"),
            ({"n_pairs": 2.5}, "n_pairs must be an integer >= 1"),
            ({"n_pairs": True}, "n_pairs must be an integer >= 1"),
            ({"n_pairs": None, "seq_len": 2}, "4 * n_pairs must be <= seq_len"),
            ({"min_pairs": 5}, "min_pairs must be <= n_pairs"),
            ({"power_a": 0.0}, "power_a must be positive"),
            ({"power_a": float("nan")}, "power_a must be positive"),
        ],
        published=[
            {},
            {"vocab_size": 8192, "seq_len": 512, "n_pairs": 64},
            {"vocab_size": 8192, "seq_len": 1024, "n_pairs": None},
            {"vocab_size": 8192, "seq_len": 1024, "n_pairs": None, "min_pairs": 4},
        ],
    ),
    "noisy_recall": TaskCase(
        options=noisy_recall_options(),
        solve=solve_recall,
        refused=[
            ({"seq_len": 127}, "seq_len must be even"),
            ({"noise_vocab_size": 29}, "noise_vocab_size must be <= vocab_size - 4"),
            ({"frac_noise": 1.0}, "frac_noise must lie in [0, 1)"),
            ({"frac_noise": float("nan")}, "frac_noise must lie in [0, 1)"),
            ({"train_targets": "all"}, "every_token, answers"),
        ],
        published=[{}, {"frac_noise": 0.8}, {"seq_len": 1024}],
    ),
    "planted_heads": TaskCase(
        options=planted_heads_options(),
        solve=solve_planted_heads,
        least={"k": 1, "seq_len": 3, "n_keys": 1, "d_value": 1, "map_seed": 0},
        refused=[
            ({"k": 9}, "k must be <= d_value"),
            ({"seq_len": 11}, "the number of pairs, must be <= n_keys"),
        ],
        other_length=9,
    ),
    "stacked_mqar": TaskCase(
        options=stacked_mqar_options(),
        solve=solve_stacked_mqar,
        least={"seq_len": 1, "n_passes": 1, "d_key": 1},
        refused=[
            ({"seq_len": 31}, "seq_len must be a multiple of n_passes + 1"),
            ({"n_symbols": 15}, "n_symbols must be >= seq_len / (n_passes + 1)"),
        ],
    ),
}
