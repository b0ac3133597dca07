"""Cases of structure tasks: expressions, grammars, graphs and images."""

from __future__ import annotations

import json
import statistics
from functools import cache

import numpy as np
from hypothesis import strategies as st

import tasks
from tests.tasks.case import Answers, Options, TaskCase
from tools.record_tasks import RECORDS


def solve_listops(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Evaluate the expression with a stack of unfinished lists, and check that it fits the definition."""
    blanks = inputs.count(15)
    assert inputs[:blanks] == [15] * blanks
    expression = inputs[blanks:]
    assert options["min_length"] < len(expression) < options["max_length"]
    unfinished: list[list[int]] = [[]]
    for token in expression:
        if 10 <= token <= 13:
            unfinished.append([token])
            assert len(unfinished) <= options["max_depth"]
            continue
        value = token
        if token == 14:
            operator, *values = unfinished.pop()
            assert 2 <= len(values) <= options["max_args"]
            value = outcome(operator, values)
        unfinished[-1].append(value)
    [[value]] = unfinished
    return dict.fromkeys(asked, value)


def outcome(operator: int, values: list[int]) -> int:
    if operator == 10:
        return min(values)
    if operator == 11:
        return max(values)
    if operator == 12:
        return int(statistics.median(values))
    return sum(values) % 10


def solve_brevo(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Collect ancestors in a plain loop; where several nodes are allowed, as in training, accept the sequence's own."""
    v, most = options["n_names"], options["seq_len"] // 9 + 2
    question, equals = inputs.index(v), inputs.index(v + 1)
    blanks = inputs.count(v + 2)
    written, goal, listed = inputs[blanks:question], inputs[question + 1], inputs[equals + 1 :]
    assert inputs == [v + 2] * blanks + written + [v, goal, v + 1, *listed]
    edges = set(zip(written[::2], written[1::2], strict=True))
    assert 2 * len(edges) == len(written)
    assert len(set(written)) <= most
    for end in (0, 1):
        assert max([edge[end] for edge in edges].count(node) for node in set(written)) <= 4
    parents = {node: {parent for parent, child in edges if child == node} for node in set(written)}
    needed, found = {goal}, {goal}
    while found:
        found = {parent for node in found for parent in parents[node]} - needed
        needed |= found
    assert {goal, *listed} == needed
    assert len(listed) == len(needed) - 1

    def depth(node: int) -> int:
        return 1 + min(depth(parent) for parent in parents[node]) if parents[node] else 0

    ready = [
        {node for node in needed.difference(listed[:at]) if parents[node] <= set(listed[:at])}
        for at in range(len(needed))
    ]
    certain = [equals + at for at, nodes in enumerate(ready[:-1]) if len(nodes) == 1]
    assert asked in (certain, [*range(equals, len(inputs))])
    answers = {}
    for position in asked:
        at = position - equals
        answer = min(ready[at]) if len(ready[at]) == 1 else listed[at]
        assert answer in ready[at]
        answers[position] = (answer, depth(goal), len(needed), at + 1)
    return answers


def solve_lano(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Parse each sentence by upstream's rules; the last one may be cut off."""
    record = RECORDS / f"lano-{options['grammar']}.json"
    rules = json.loads(record.read_text(encoding="utf-8"))["rules"][-options["n_levels"] :]
    assert inputs[0] == 3
    *whole, cut = "".join(map(str, inputs[1:])).split("3")
    unfinished = -1

    @cache
    def ends(text: str, level: int, symbol: int, at: int) -> set[int]:
        """Positions where the symbol that starts at `at` may end."""
        if at in (unfinished, len(text)):
            return {unfinished}
        if level == len(rules):
            return {at + 1} if text[at] == str(symbol) else set()
        found = set()
        for rule in rules[level][symbol]:
            places = {at}
            for each in rule:
                places = {end for place in places for end in ends(text, level + 1, each, place)}
            found |= places
        return found

    assert all(len(text) in ends(text, 0, 0, 0) for text in whole)
    assert ends(cut, 0, 0, 0) & {unfinished, len(cut)}
    assert asked == [*range(len(inputs) - 1)]
    return {position: inputs[position + 1] for position in asked}


def solve_mano(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Evaluate the prefix expression recursively."""
    m = options["modulus"]
    blanks = inputs.count(m + 4)
    assert inputs == [m + 4] * blanks + inputs[blanks:-1] + [m + 3]
    symbols = iter(inputs[blanks:-1])

    def value() -> int:
        symbol = next(symbols)
        if symbol < m:
            return symbol
        a, b = value(), value()
        return (a + b, a - b, a * b)[symbol - m] % m

    answer = value()
    assert not list(symbols)
    assert asked == [len(inputs) - 1]
    return {asked[0]: (answer, (len(inputs) - 2 - blanks) // 2)}


# Only a few shapes, because the chance level of each takes long to count.
LISTOPS_SHAPES = [
    {"seq_len": 16, "min_length": 3, "max_length": 16, "max_depth": 3, "max_args": 4},
    {"seq_len": 60, "min_length": 10, "max_length": 40, "max_depth": 6, "max_args": 5},
    {"seq_len": 200, "min_length": 60, "max_length": 200, "max_depth": 10, "max_args": 10},
    {"seq_len": 8, "min_length": 1, "max_length": 8, "max_depth": 2, "max_args": 6},
]


def solve_pathfinder(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Flood-fill the paths across gaps of one pixel, and see whether both dots are on the same path."""
    size = options["image_size"]
    lit = {divmod(place, size) for place, token in enumerate(inputs) if token > 0}
    dots = [divmod(place, size) for place, token in enumerate(inputs) if token == 2]
    assert len(dots) == 2
    paths = []
    while lit:
        path, shore = set(), {min(lit)}
        while shore:
            row, column = shore.pop()
            path.add((row, column))
            lit.discard((row, column))
            shore |= {(r, c) for r in range(row - 2, row + 3) for c in range(column - 2, column + 3)} & lit
        paths.append(path)
    dashes = sorted(sum(pixel not in dots for pixel in path) // 2 for path in paths)
    expected = 2 * [options["path_length"]] + options["n_distractors"] * [options["distractor_length"]]
    assert dashes == sorted(expected)
    together = any(set(dots) <= path for path in paths)
    for path in paths:
        assert not path & set(dots) or len(path) >= 2 * options["path_length"]
    return dict.fromkeys(asked, int(together))


@st.composite
def pathfinder_options(draw: st.DrawFn) -> Options:
    image_size = draw(st.integers(9, 40))
    points = (image_size // 3) ** 2
    path_length = draw(st.integers(1, min(2 * (image_size // 3), points // 3 - 1)))
    distractor_length = draw(st.integers(1, path_length))
    room = (2 * points // 3 - 2 * (path_length + 1)) // (distractor_length + 1)
    return {
        "image_size": image_size,
        "path_length": path_length,
        "distractor_length": distractor_length,
        "n_distractors": draw(st.integers(0, min(room, 6))),
    }


@cache
def treecall_rules(text: str) -> dict[tuple[int, int], list[int]]:
    """{(nonterminal, head): the items after the head}; items from n_terminals on are nonterminals."""
    options = dict(json.loads(text))
    rng, v, n = np.random.default_rng(options["grammar_seed"]), options["n_terminals"], options["n_nonterminals"]
    levels = [int(level) for level in rng.integers(1, options["n_levels"] + 1, size=n)]
    levels[0] = 1
    rules = {}
    for nonterminal in range(n):
        items = [*range(v), *(v + other for other in range(n) if levels[other] > levels[nonterminal])]
        own = []
        for _ in range(int(rng.integers(1, options["max_rules"] + 1))):
            size = int(rng.integers(1, options["max_rhs"] + 1))
            own.append([items[i] for i in rng.integers(len(items), size=size)])
        for head, rule in enumerate(rng.integers(len(own), size=v)):
            rules[nonterminal, head] = own[rule]
    return rules


def treecall_tree(options: Options, inputs: list[int]) -> tuple[list[int], list[int], int]:
    """The sentence, the position of each token's parent (-1 for the first), and the queried token's last position."""
    v, end = options["n_terminals"], inputs.index(options["n_terminals"] + 1)
    sentence = inputs[1:end]
    assert inputs[0] == v
    assert len(sentence) >= 3
    assert set(inputs[end + 2 :]) <= {v + 2}
    rules = treecall_rules(json.dumps({key: value for key, value in options.items() if key != "seq_len"}))
    parents: list[int] = []

    def read(item: int, parent: int) -> None:
        place = len(parents)
        parents.append(parent)
        if item < v:
            assert sentence[place] == item
        else:
            for each in rules[item - v, sentence[place]]:
                read(each, place)

    read(v, -1)
    assert len(parents) == len(sentence)
    return sentence, parents, max(i for i, each in enumerate(sentence) if each == inputs[end + 1])


def solve_treecall(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Find the queried token's last occurrence, its parent and its depth; token i of the sentence is input i + 1."""
    sentence, parents, place = treecall_tree(options, inputs)
    assert asked == [len(sentence) + 2]
    parent, depth = parents[place], 0
    while place > 0:
        place, depth = parents[place], depth + 1
    return {asked[0]: (sentence[parent], asked[0] - (1 + parent), depth)}


def is_a_grammar(options: Options) -> bool:
    """Whether enough sentences of the grammar fit into the sequence."""
    try:
        tasks.create_task("treecall", **options)
    except ValueError:
        return False
    return True


TREECALL_OPTIONS = st.fixed_dictionaries(
    {
        "seq_len": st.integers(20, 60),
        "n_terminals": st.integers(2, 12),
        "n_nonterminals": st.integers(1, 12),
        "n_levels": st.integers(1, 6),
        "max_rules": st.integers(1, 4),
        "max_rhs": st.integers(2, 4),
        "grammar_seed": st.integers(0, 100),
    }
).filter(is_a_grammar)


CASES = {
    "brevo": TaskCase(
        options=st.integers(18, 110).flatmap(
            lambda length: st.fixed_dictionaries(
                {"seq_len": st.just(length), "n_names": st.integers(length // 9 + 2, 40)}
            )
        ),
        solve=solve_brevo,
        least={"seq_len": 18, "n_names": 4},
        refused=[({"n_names": 15}, "n_names must be >= seq_len // 9 + 2")],
        published=[{"seq_len": 9 * (nodes - 2), "n_names": nodes} for nodes in (70, 90, 110)],
    ),
    "listops": TaskCase(
        options=st.sampled_from(LISTOPS_SHAPES),
        solve=solve_listops,
        least={"max_depth": 2, "max_args": 2},
        refused=[
            ({"max_length": 2049}, "max_length must be <= seq_len"),
            ({"max_depth": 3}, "less than one in 10,000 expressions has such a length"),
            ({"tsv": "no/such/file.tsv"}, "cannot read no/such/file.tsv: No such file or directory"),
        ],
        base={"seq_len": 128, "min_length": 60, "max_length": 128},
        published=[{}],
    ),
    "lano": TaskCase(
        options=st.fixed_dictionaries(
            {
                "seq_len": st.integers(2, 150),
                "grammar": st.sampled_from(["cfg3f", "cfg3k"]),
                "n_levels": st.integers(1, 5),  # sentences of six and seven levels have hundreds of tokens
            }
        ),
        solve=solve_lano,
        least={"seq_len": 2, "n_levels": 1},
        refused=[
            ({"grammar": "cfg3z"}, "grammar must be one of cfg3f, cfg3k"),
            ({"n_levels": 7}, "n_levels must be <= 6, the levels of the grammar"),
        ],
        published=[
            {"n_levels": 6, "seq_len": 512},
            {"grammar": "cfg3k", "n_levels": 7, "seq_len": 512},
        ],
    ),
    "mano": TaskCase(
        options=st.fixed_dictionaries(
            {"seq_len": st.integers(2, 20).map(lambda half: 2 * half), "modulus": st.integers(2, 30)}
        ),
        solve=solve_mano,
        least={"seq_len": 4, "modulus": 2},
        refused=[({"seq_len": 23}, "seq_len must be even")],
        overlap="there are 1,587 expressions with one operator",
        published=[{}, {"seq_len": 28}, {"seq_len": 34}],
    ),
    "pathfinder": TaskCase(
        options=pathfinder_options(),
        solve=solve_pathfinder,
        least={"image_size": 9, "path_length": 1, "n_distractors": 0},
        refused=[
            ({"path_length": 21}, "lengths must be distractor_length <= path_length <= 2 * (image_size // 3)"),
            ({"n_distractors": 8}, "paths of 70 points must fit two thirds of the lattice of (image_size // 3)^2"),
        ],
        published=[{}, {"path_length": 6, "distractor_length": 2, "n_distractors": 10}],
        other_length=48**2,
        examples=2048,
    ),
    "treecall": TaskCase(
        options=TREECALL_OPTIONS,
        solve=solve_treecall,
        least={
            "seq_len": 6,
            "n_terminals": 2,
            "n_nonterminals": 1,
            "n_levels": 1,
            "max_rules": 1,
            "max_rhs": 1,
            "grammar_seed": 0,
        },
        refused=[
            ({"seq_len": 12}, "at least 5% of the sentences must have 3 to seq_len - 3 tokens: use another grammar")
        ],
        published=[{"seq_len": 256}, {"seq_len": 256, "max_rhs": 9}, {"seq_len": 256, "n_terminals": 8192}],
    ),
}
