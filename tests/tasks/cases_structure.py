"""Long memory, state tracking, structure."""

from __future__ import annotations

from hypothesis import strategies as st

import tasks
from tests.tasks import solvers_structure as solvers
from tests.tasks.case import Options, TaskCase


@st.composite
def delay_options(draw: st.DrawFn) -> Options:
    seq_len = draw(st.integers(5, 80))
    return {
        "seq_len": seq_len,
        "lag": draw(st.integers(1, seq_len - 1)),
        "cutoff": draw(st.sampled_from([0.25, 0.37, 0.5])),
    }


@st.composite
def bracket_options(draw: st.DrawFn) -> Options:
    return {
        "n_types": draw(st.integers(1, 6)),
        "max_depth": draw(st.integers(1, 12)),
        "seq_len": 2 * draw(st.integers(1, 30)),
    }


# Few shapes: the chance level of each is counted.
LISTOPS_SHAPES = [
    {"seq_len": 16, "min_length": 3, "max_length": 16, "max_depth": 3, "max_args": 4},
    {"seq_len": 60, "min_length": 10, "max_length": 40, "max_depth": 6, "max_args": 5},
    {"seq_len": 200, "min_length": 60, "max_length": 200, "max_depth": 10, "max_args": 10},
    {"seq_len": 8, "min_length": 1, "max_length": 8, "max_depth": 2, "max_args": 6},
]


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


def is_a_grammar(options: Options) -> bool:
    """Whether enough of its sentences fit."""
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

NO_GENERATORS = (
    r"generators must be two or more of 12345 12453 12534 13254 13425 13542 ..., each once, joined by \+, "
    r"got generators="
)
NO_GROUP = (
    r"the group must be Z<m> \(cyclic\), S<n> \(all permutations\), A<n> \(the even ones\), or several joined by x, "
    "such as A4xZ5, got group="
)

CASES = {
    "adding": TaskCase(
        options=st.fixed_dictionaries({"seq_len": st.integers(2, 80)}),
        solve=solvers.solve_adding,
        least={"seq_len": 2},
        base={"seq_len": 100},
        published=[{}],
    ),
    "bracket": TaskCase(
        options=bracket_options(),
        solve=solvers.solve_bracket,
        least={"n_types": 1, "max_depth": 1, "seq_len": 2},
        refused=[
            ({"seq_len": 5}, "seq_len must be even, got seq_len=5"),
        ],
        published=[{"seq_len": 700}],
    ),
    "cycle_navigation": TaskCase(
        options=st.fixed_dictionaries(
            {"seq_len": st.integers(1, 40), "cycle_length": st.integers(3, 9), "every_position": st.booleans()}
        ),
        solve=solvers.solve_cycle_navigation,
        least={"seq_len": 1, "cycle_length": 3},
        base={"seq_len": 24, "every_position": True},
        published=[{}],
    ),
    "delay": TaskCase(
        options=delay_options(),
        solve=solvers.solve_delay,
        least={"lag": 1},
        refused=[
            ({"lag": 4000}, "lag must be < seq_len, got lag=4000, seq_len=4000"),
            ({"cutoff": 0.6}, r"cutoff must lie in \[1 / seq_len, 0.5\], got cutoff=0.6, seq_len=4000"),
            ({"cutoff": 0.0002}, r"cutoff must lie in \[1 / seq_len, 0.5\], got cutoff=0.0002, seq_len=4000"),
            ({"cutoff": float("nan")}, r"cutoff must lie in \[1 / seq_len, 0.5\], got cutoff=nan, seq_len=4000"),
        ],
        base={"seq_len": 128, "lag": 32},
        published=[{}],
    ),
    "even_pairs": TaskCase(
        options=st.fixed_dictionaries({"seq_len": st.integers(2, 80), "every_position": st.booleans()}),
        solve=solvers.solve_even_pairs,
        least={"seq_len": 2},
        base={"seq_len": 40, "every_position": True},
        published=[{}],
    ),
    "group_words": TaskCase(
        options=st.fixed_dictionaries(
            {
                "group": st.sampled_from(["Z2", "Z7", "S2", "S3", "S4", "A3", "A4", "A5", "S5", "Z2xZ2", "A4xZ5"]),
                "seq_len": st.integers(1, 40),
            }
        )
        | st.sampled_from(
            [{"group": "A5", "generators": "23451+12453"}, {"group": "S3xZ2", "generators": "213,1+132,0"}]
        ).map(lambda generated: generated | {"seq_len": 12}),
        solve=solvers.solve_group_words,
        least={"seq_len": 1},
        refused=[
            ({"generators": "54321+12345+54321"}, NO_GENERATORS + r"'54321\+12345\+54321'"),
            ({"generators": "23451 12453"}, NO_GENERATORS + "'23451 12453'"),
            (
                {"group": "Z2", "generators": ""},
                r"generators must be two or more of 0 1, each once, joined by \+, got generators=''",
            ),
            ({"generators": "23451"}, NO_GENERATORS + "'23451'"),
            ({"group": "D4"}, NO_GROUP + "'D4'"),
            ({"group": "S3x"}, NO_GROUP + "'S3x'"),
            ({"group": "S7"}, "the group must have 2 ... 1000 elements, got group='S7'"),
            ({"group": "Z1"}, "the group must have 2 ... 1000 elements, got group='Z1'"),
        ],
        published=[{"group": group} for group in ("Z60", "A4xZ5", "A5", "S3", "S5")],
    ),
    "listops": TaskCase(
        options=st.sampled_from(LISTOPS_SHAPES),
        solve=solvers.solve_listops,
        least={"max_depth": 2, "max_args": 2},
        refused=[
            ({"max_length": 2049}, "max_length must be <= seq_len, got max_length=2049, seq_len=2048"),
            (
                {"max_depth": 3},
                "less than one in 10,000 expressions has such a length, "
                "got min_length=500, max_length=2000, max_depth=3, max_args=10",
            ),
            ({"tsv": "no/such/file.tsv"}, "cannot read no/such/file.tsv: No such file or directory"),
        ],
        base={"seq_len": 128, "min_length": 60, "max_length": 128},
        published=[{}],
    ),
    "modular_arithmetic": TaskCase(
        options=st.fixed_dictionaries(
            {
                "seq_len": st.integers(0, 20).map(lambda half: 2 * half + 1),
                "modulus": st.integers(2, 12),
                "operators": st.sampled_from(["+", "-", "*", "+-", "*-", "+-*"]),
                "every_position": st.booleans(),
            }
        ),
        solve=solvers.solve_modular_arithmetic,
        least={"seq_len": 1, "modulus": 2},
        refused=[
            ({"seq_len": 40}, "seq_len must be odd, got seq_len=40"),
            ({"operators": ""}, r"operators must be some of \+-\*, each once, got operators=''"),
            ({"operators": "+/"}, r"operators must be some of \+-\*, each once, got operators='\+/'"),
            ({"operators": "++"}, r"operators must be some of \+-\*, each once, got operators='\+\+'"),
        ],
        base={"seq_len": 23, "every_position": True},
        published=[{}],
        other_length=47,
    ),
    "parity": TaskCase(
        options=st.fixed_dictionaries({"seq_len": st.integers(1, 80)}),
        solve=solvers.solve_parity,
        least={"seq_len": 1},
        published=[{}, {"seq_len": 256}],
    ),
    "pathfinder": TaskCase(
        options=pathfinder_options(),
        solve=solvers.solve_pathfinder,
        least={"image_size": 9, "path_length": 1, "n_distractors": 0},
        refused=[
            (
                {"path_length": 21},
                r"lengths must be distractor_length <= path_length <= 2 \* \(image_size // 3\), "
                "got distractor_length=4, path_length=21, image_size=32",
            ),
            (
                {"n_distractors": 8},
                r"paths of 70 points must fit two thirds of the lattice of \(image_size // 3\)\^2, "
                "got image_size=32, path_length=14, distractor_length=4, n_distractors=8",
            ),
        ],
        published=[{}, {"path_length": 6, "distractor_length": 2, "n_distractors": 10}],
        other_length=48**2,
        examples=2048,
    ),
    "treecall": TaskCase(
        options=TREECALL_OPTIONS,
        solve=solvers.solve_treecall,
        facts={"distance": solvers.treecall_distance, "depth": solvers.treecall_depth},
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
            (
                {"seq_len": 12},
                "of the sentences 5% at least must have 3 to seq_len - 3 tokens: take another grammar, "
                "got seq_len=12, grammar_seed=13",
            ),
        ],
        published=[{"seq_len": 256}, {"seq_len": 256, "max_rhs": 9}, {"seq_len": 256, "n_terminals": 8192}],
    ),
}
