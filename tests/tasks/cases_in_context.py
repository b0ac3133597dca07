"""Rules that are new in every sequence."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.tasks import solvers_in_context as solvers
from tests.tasks.case import Options, TaskCase


@st.composite
def automata_options(draw: st.DrawFn) -> Options:
    max_edges, max_word = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    return {
        "seq_len": max(2, max_word + draw(st.integers(1, 40))),
        "n_symbols": max_edges + draw(st.integers(1, 6)),
        "max_states": max_edges + draw(st.integers(1, 6)),
        "max_edges": max_edges,
        "max_word": max_word,
    }


@st.composite
def k_hop_options(draw: st.DrawFn) -> Options:
    n_nodes = draw(st.integers(2, 12))
    n_questions = draw(st.integers(1, n_nodes))
    return {
        "seq_len": 2 * (n_nodes + n_questions),
        "n_names": n_nodes + draw(st.integers(0, 20)),
        "max_hops": draw(st.integers(1, n_nodes - 1)),
        "n_questions": n_questions,
    }


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


FEWER_EDGES = "max_edges must be < n_symbols and < max_states, got max_edges=3, n_symbols=%d, max_states=%d"

CASES = {
    "automata": TaskCase(
        options=automata_options(),
        solve=solvers.solve_automata,
        facts={"depth": solvers.symbols_read},
        least={"seq_len": 2, "n_symbols": 2, "max_states": 2, "max_edges": 1, "max_word": 1},
        refused=[
            ({"n_symbols": 3}, FEWER_EDGES % (3, 8)),
            ({"max_states": 3}, FEWER_EDGES % (18, 3)),
            ({"max_word": 128}, "max_word must be < seq_len, got max_word=128, seq_len=128"),
        ],
        published=[{"seq_len": 512, "n_symbols": 18, "max_states": 12, "max_edges": 3, "max_word": 49}],
    ),
    "in_context_regression": TaskCase(
        options=st.fixed_dictionaries(
            {"seq_len": st.integers(1, 20).map(lambda pairs: 2 * pairs), "d_x": st.integers(1, 8)}
        ),
        solve=solvers.solve_in_context_regression,
        facts={"pairs": solvers.pairs_before},
        least={"seq_len": 2, "d_x": 1},
        refused=[
            ({"seq_len": 41}, "seq_len must be even, got seq_len=41"),
        ],
        published=[{"seq_len": 82, "d_x": 20}],
    ),
    "k_hop": TaskCase(
        options=k_hop_options(),
        solve=solvers.solve_k_hop,
        facts={"hops": solvers.k_hop_hops},
        least={"n_questions": 1, "max_hops": 1},
        refused=[
            ({"seq_len": 63}, "seq_len must be even, got seq_len=63"),
            ({"n_questions": 17}, r"4 \* n_questions must be <= seq_len, got n_questions=17, seq_len=64"),
            (
                {"max_hops": 24},
                "max_hops must be < seq_len / 2 - n_questions, got max_hops=24, seq_len=64, n_questions=8",
            ),
            (
                {"n_names": 23},
                "n_names must be >= seq_len / 2 - n_questions, got n_names=23, seq_len=64, n_questions=8",
            ),
        ],
    ),
    "stacked_mqar": TaskCase(
        options=stacked_mqar_options(),
        solve=solvers.solve_stacked_mqar,
        facts={"distance": solvers.stacked_mqar_distance},
        least={"seq_len": 1, "n_passes": 1, "d_key": 1},
        refused=[
            ({"seq_len": 31}, r"seq_len must be a multiple of n_passes \+ 1, got seq_len=31, n_passes=1"),
            (
                {"n_symbols": 15},
                r"n_symbols must be >= seq_len / \(n_passes \+ 1\), got n_symbols=15, seq_len=32, n_passes=1",
            ),
        ],
    ),
}
