"""mqar, needle, ssm_teacher."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.tasks import solvers
from tests.tasks.case import Options, TaskCase
from tests.tasks.cases_recall import lookup_options


@st.composite
def mqar_options(draw: st.DrawFn) -> Options:
    n_pairs = draw(st.integers(1, 12))
    seq_len = 4 * n_pairs + 2 * draw(st.integers(0, 30))
    options = lookup_options(draw, n_pairs, seq_len) | {"min_pairs": draw(st.none() | st.integers(1, n_pairs))}
    return options | draw(st.sampled_from([{}, {"n_pairs": None}]))


@st.composite
def needle_options(draw: st.DrawFn) -> Options:
    distance, n_distractors = draw(st.integers(1, 60)), draw(st.sampled_from([0, 1, 2, 20]))
    fewest = max(distance + 2, n_distractors + 3) if n_distractors else distance + 1
    lengths = st.integers(fewest, fewest + 20)
    return {
        "distance": distance,
        "n_classes": draw(st.integers(2, 20)),
        "n_noise": draw(st.integers(1, 20)),
        "seq_len": draw(lengths if n_distractors >= distance else st.none() | lengths),
        "n_distractors": n_distractors,
    }


@st.composite
def ssm_teacher_options(draw: st.DrawFn) -> Options:
    d_input, d_output = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    seq_len = draw(st.integers(1, 24))
    options: dict[str, Any] = {
        "k": draw(st.integers(1, min(seq_len, d_input * d_output))),
        "seq_len": seq_len,
        "d_input": d_input,
        "d_output": d_output,
        "rho": draw(st.sampled_from([0.1, 0.98, 1.0])),
        "teacher_seed": draw(st.integers(0, 3)),
    }
    return options


CASES = {
    "mqar": TaskCase(
        options=mqar_options(),
        solve=solvers.solve_mqar,
        facts={"distance": solvers.mqar_distance, "pairs": solvers.mqar_pairs},
        least={"n_pairs": 1, "min_pairs": 1},
        refused=[
            ({"n_pairs": 20, "seq_len": 64}, r"4 \* n_pairs must be <= seq_len, got n_pairs=20, seq_len=64"),
            ({"vocab_size": 64}, "vocab_size must be > seq_len, got vocab_size=64, seq_len=64"),
            ({"seq_len": 63}, "seq_len must be even, got seq_len=63"),
            ({"n_pairs": 2.5}, "n_pairs must be an integer >= 1, got n_pairs=2.5"),
            ({"n_pairs": True}, "n_pairs must be an integer >= 1, got n_pairs=True"),
            ({"n_pairs": None, "seq_len": 2}, r"4 \* n_pairs must be <= seq_len, got n_pairs=None, seq_len=2"),
            ({"min_pairs": 5}, "min_pairs must be <= n_pairs, got min_pairs=5, n_pairs=4, seq_len=64"),
            ({"power_a": 0.0}, "power_a must be positive, got power_a=0.0"),
            ({"power_a": float("nan")}, "power_a must be positive, got power_a=nan"),
        ],
        published=[
            {},
            {"vocab_size": 8192, "seq_len": 512, "n_pairs": 64},
            {"vocab_size": 8192, "seq_len": 1024, "n_pairs": None},
            {"vocab_size": 8192, "seq_len": 1024, "n_pairs": None, "min_pairs": 4},
        ],
    ),
    "needle": TaskCase(
        options=needle_options(),
        solve=solvers.solve_needle,
        facts={"distance": solvers.needle_distance},
        least={"distance": 1, "n_classes": 2, "n_noise": 1, "n_distractors": 0},
        refused=[
            ({"seq_len": 128}, "seq_len must be > distance, got seq_len=128, distance=128"),
            (
                {"n_distractors": 1, "seq_len": 129},
                r"with distractors seq_len must be > distance \+ 1, got seq_len=129, distance=128",
            ),
            ({"n_distractors": 128}, "n_distractors must be <= seq_len - 3, got n_distractors=128, seq_len=130"),
        ],
    ),
    "ssm_teacher": TaskCase(
        options=ssm_teacher_options(),
        solve=solvers.solve_ssm_teacher,
        least={"teacher_seed": 0, "period": 1},
        refused=[
            ({"k": 33}, "k must be <= period, got k=33, period=32"),
            (
                {"k": 5, "d_input": 2, "d_output": 2},
                r"k must be <= d_input \* d_output, got k=5, d_input=2, d_output=2",
            ),
            ({"rho": 1.01}, r"rho must lie in \(0, 1\], got rho=1.01"),
        ],
    ),
}
