"""Rules that are new in every sequence."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.tasks import solvers_in_context as solvers
from tests.tasks.case import Options, TaskCase


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


CASES = {
    "k_hop": TaskCase(
        options=k_hop_options(),
        solve=solvers.solve_k_hop,
        facts={"hops": solvers.k_hop_hops},
        refused=[
            ({"seq_len": 63}, "seq_len must be even, got seq_len=63"),
            ({"n_questions": 17}, r"4 \* n_questions must be <= seq_len, got n_questions=17, seq_len=64"),
            ({"n_questions": 0}, "n_questions must be an integer >= 1, got n_questions=0"),
            ({"max_hops": 0}, "max_hops must be an integer >= 1, got max_hops=0"),
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
}
