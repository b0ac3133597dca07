"""Recall and copying: MAD's tasks, MQAR's variants, copying and induction."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.tasks import solvers_recall as solvers
from tests.tasks.case import Options, TaskCase

TRAIN_TARGETS = st.sampled_from(["every_token", "answers"])


def lookup_options(draw: st.DrawFn, n_pairs: int, seq_len: int) -> Options:
    return {
        "vocab_size": seq_len + draw(st.integers(1, 300)),
        "seq_len": seq_len,
        "n_pairs": n_pairs,
        "power_a": draw(st.sampled_from([0.01, 0.5, 1.0, 3.0])),
        "random_non_queries": draw(st.booleans()),
    }


@st.composite
def forgetting_options(draw: st.DrawFn) -> Options:
    n_pairs = draw(st.integers(1, 10))
    n_updates = draw(st.integers(0, n_pairs))
    seq_len = 4 * n_pairs + 2 * n_updates + 2 * draw(st.integers(0, 20))
    return lookup_options(draw, n_pairs, seq_len) | {"n_updates": n_updates}


@st.composite
def compositional_options(draw: st.DrawFn) -> Options:
    n_pairs = draw(st.integers(1, 4)) ** 2
    return lookup_options(draw, n_pairs, 6 * n_pairs + draw(st.integers(0, 20)))


@st.composite
def in_context_recall_options(draw: st.DrawFn) -> Options:
    return {
        "vocab_size": draw(st.integers(4, 40)),
        "seq_len": 2 * draw(st.integers(2, 40)),
        "train_targets": draw(TRAIN_TARGETS),
    }


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


@st.composite
def copying_options(draw: st.DrawFn) -> Options:
    n_copied = draw(st.integers(1, 12))
    return {
        "vocab_size": draw(st.integers(4, 20)),
        "seq_len": 2 * n_copied + draw(st.integers(0, 40)),
        "n_copied": n_copied,
    }


@st.composite
def selective_copying_options(draw: st.DrawFn) -> Options:
    options = draw(copying_options())
    return options | {"seq_len": options["seq_len"] + 1, "as_published": draw(st.booleans())}


@st.composite
def compression_options(draw: st.DrawFn) -> Options:
    n_tokens = draw(st.integers(1, 30))
    return {
        "vocab_size": draw(st.integers(3, 20)),
        "seq_len": 2 * n_tokens + 1,
        "max_seq_len": draw(st.none() | st.integers(2 * n_tokens + 1, 100)),
    }


CASES = {
    "compositional": TaskCase(
        options=compositional_options(),
        solve=solvers.solve_compositional,
        facts={"distance": solvers.compositional_distance, "pairs": solvers.all_pairs},
        least={"n_pairs": 1},
        refused=[
            ({"n_pairs": 8}, "n_pairs must be a square number, got n_pairs=8"),
            ({"n_pairs": 16}, r"6 \* n_pairs must be <= seq_len, got n_pairs=16, seq_len=64"),
            ({"vocab_size": 64}, "vocab_size must be > seq_len, got vocab_size=64, seq_len=64"),
            ({"power_a": -1}, "power_a must be positive, got power_a=-1.0"),
        ],
        published=[{"vocab_size": 8192, "seq_len": seq, "n_pairs": k} for seq, k in [(64, 4), (256, 36), (2048, 256)]],
    ),
    "compression": TaskCase(
        options=compression_options(),
        solve=solvers.solve_compression,
        facts={"distance": solvers.compression_distance},
        least={"vocab_size": 3},
        refused=[
            ({"seq_len": 64}, "seq_len must be odd, got seq_len=64"),
            ({"max_seq_len": 31}, "seq_len must be <= max_seq_len, got seq_len=63, max_seq_len=31"),
        ],
        published=[{}],
        other_length=31,
    ),
    "copying": TaskCase(
        options=st.builds(lambda options, echo: options | {"echo": echo}, copying_options(), st.booleans()),
        solve=solvers.solve_copying,
        facts={"distance": solvers.copying_distance},
        least={"vocab_size": 4, "n_copied": 1},
        refused=[
            ({"n_copied": 61}, r"2 \* n_copied must be <= seq_len, got n_copied=61, seq_len=120"),
        ],
        published=[{}, {"seq_len": 1020}],
    ),
    "forgetting": TaskCase(
        options=forgetting_options(),
        solve=solvers.solve_forgetting,
        facts={
            "distance": solvers.forgetting_distance,
            "pairs": solvers.all_pairs,
            "assignments": solvers.forgetting_assignments,
        },
        least={"n_updates": 0},
        refused=[
            ({"n_updates": 9}, "n_updates must be <= n_pairs, got n_updates=9, n_pairs=8"),
            (
                {"n_pairs": 14, "n_updates": 5},
                r"4 \* n_pairs \+ 2 \* n_updates must be <= seq_len, got n_pairs=14, n_updates=5, seq_len=64",
            ),
            ({"seq_len": 63}, "seq_len must be even, got seq_len=63"),
            ({"vocab_size": 64}, "vocab_size must be > seq_len, got vocab_size=64, seq_len=64"),
        ],
        published=[{"vocab_size": 8192, "seq_len": seq, "n_pairs": k} for seq, k in [(64, 4), (256, 36), (2048, 256)]],
    ),
    "fuzzy_recall": TaskCase(
        options=fuzzy_recall_options(),
        solve=solvers.solve_fuzzy,
        facts={"distance": solvers.fuzzy_distance},
        refused=[
            (
                {"seq_len": 12},
                r"seq_len must be > 2 \* \(k_motif_size \+ v_motif_size\), "
                "got seq_len=12, k_motif_size=3, v_motif_size=3",
            ),
            (
                {"k_motif_size": 8},
                r"k_motif_size must be <= \(vocab_size - 1\) // 2, the tokens of keys, "
                "got k_motif_size=8, vocab_size=16",
            ),
            (
                {"v_motif_size": 9},
                "v_motif_size must be <= vocab_size // 2, the tokens of values, got v_motif_size=9, vocab_size=16",
            ),
            (
                {"vocab_size": 128, "k_motif_size": 7, "seq_len": 200},
                r"keys must be at most 2\^40 words, got k_motif_size=7, vocab_size=128",
            ),
            ({"train_targets": "all"}, "train_targets must be one of every_token, answers, got train_targets='all'"),
        ],
        published=[{"as_published": True} | more for more in ({}, {"vocab_size": 128}, {"seq_len": 1024})],
    ),
    "in_context_recall": TaskCase(
        options=in_context_recall_options(),
        solve=solvers.solve_recall,
        facts={"distance": solvers.recall_distance},
        least={"vocab_size": 4},
        refused=[
            ({"seq_len": 127}, "seq_len must be even, got seq_len=127"),
            ({"train_targets": "all"}, "train_targets must be one of every_token, answers, got train_targets='all'"),
        ],
        published=[{}, {"vocab_size": 128}, {"seq_len": 1024}],
    ),
    "induction_heads": TaskCase(
        options=st.fixed_dictionaries({"vocab_size": st.integers(3, 30), "seq_len": st.integers(3, 80)}),
        solve=solvers.solve_induction,
        facts={"distance": solvers.induction_distance},
        least={"seq_len": 3, "vocab_size": 3},
        published=[{}, {"seq_len": 2**20}],
    ),
    "memorization": TaskCase(
        options=st.fixed_dictionaries(
            {
                "vocab_size": st.integers(5, 60),
                "seq_len": st.integers(1, 20).map(lambda n: 2 * n),
                "map_seed": st.integers(0, 3),
            }
        ),
        solve=solvers.solve_memorization,
        least={"vocab_size": 5, "map_seed": 0},
        refused=[
            ({"seq_len": 31}, "seq_len must be even, got seq_len=31"),
        ],
        published=[{}, {"vocab_size": 8192}],
    ),
    "noisy_recall": TaskCase(
        options=noisy_recall_options(),
        solve=solvers.solve_recall,
        facts={"distance": solvers.recall_distance},
        refused=[
            ({"seq_len": 127}, "seq_len must be even, got seq_len=127"),
            (
                {"noise_vocab_size": 29},
                "noise_vocab_size must be <= vocab_size - 4, got noise_vocab_size=29, vocab_size=32",
            ),
            ({"frac_noise": 1.0}, r"frac_noise must lie in \[0, 1\), got frac_noise=1.0"),
            ({"frac_noise": float("nan")}, r"frac_noise must lie in \[0, 1\), got frac_noise=nan"),
            ({"train_targets": "all"}, "train_targets must be one of every_token, answers, got train_targets='all'"),
        ],
        published=[{}, {"frac_noise": 0.8}, {"seq_len": 1024}],
    ),
    "selective_copying": TaskCase(
        options=selective_copying_options(),
        solve=solvers.solve_selective,
        facts={"distance": solvers.selective_distance},
        least={"vocab_size": 4},
        refused=[
            ({"seq_len": 32}, r"2 \* n_copied must be < seq_len, got n_copied=16, seq_len=32"),
        ],
        published=[{"as_published": True}, {"seq_len": 4096}, {"n_copied": 96, "as_published": True}],
    ),
}
