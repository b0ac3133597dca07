"""Cases of copying tasks: compression, copying, selective copying."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.tasks.case import Answers, Options, TaskCase


def solve_compression(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Each token after the marker is a position; answer with the token there."""
    marker, answers = inputs.index(options["vocab_size"] - 1), {}
    for i in range(marker + 1, len(inputs)):
        place = inputs[i] - options["vocab_size"]
        answers[i] = inputs[place], i - place
    return answers


@st.composite
def compression_options(draw: st.DrawFn) -> Options:
    n_tokens = draw(st.integers(1, 30))
    return {
        "vocab_size": draw(st.integers(3, 20)),
        "seq_len": 2 * n_tokens + 1,
        "max_seq_len": draw(st.none() | st.integers(2 * n_tokens + 1, 100)),
    }


def solve_copying(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Repeat the first tokens, none of which is blank or marker, in order."""
    tokens = inputs[: options["n_copied"]]
    assert all(0 < token < options["vocab_size"] - 1 for token in tokens)
    return {i: (token, i - place) for i, (place, token) in zip(asked, enumerate(tokens), strict=True)}


@st.composite
def copying_options(draw: st.DrawFn) -> Options:
    n_copied = draw(st.integers(1, 12))
    return {
        "vocab_size": draw(st.integers(4, 20)),
        "seq_len": 2 * n_copied + draw(st.integers(0, 40)),
        "n_copied": n_copied,
    }


def solve_selective(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """After the marker, repeat the tokens that are not blank or marker, in order."""
    start, answers = inputs.index(options["vocab_size"] - 1) + 1, {}
    for place, token in enumerate(inputs):
        if token < options["vocab_size"] - 2:
            i = start + len(answers)
            answers[i] = token, i - place
    return answers


@st.composite
def selective_copying_options(draw: st.DrawFn) -> Options:
    options = draw(copying_options())
    return options | {"seq_len": options["seq_len"] + 1, "as_published": draw(st.booleans())}


CASES = {
    "compression": TaskCase(
        options=compression_options(),
        solve=solve_compression,
        least={"vocab_size": 3},
        refused=[
            ({"seq_len": 64}, "seq_len must be odd"),
            ({"max_seq_len": 31}, "seq_len must be <= max_seq_len"),
        ],
        published=[{}],
        other_length=31,
    ),
    "copying": TaskCase(
        options=st.builds(lambda options, echo: options | {"echo": echo}, copying_options(), st.booleans()),
        solve=solve_copying,
        least={"vocab_size": 4, "n_copied": 1},
        refused=[({"n_copied": 61}, "2 * n_copied must be <= seq_len")],
        published=[{}, {"seq_len": 1020}],
    ),
    "selective_copying": TaskCase(
        options=selective_copying_options(),
        solve=solve_selective,
        least={"vocab_size": 4},
        refused=[({"seq_len": 32}, "2 * n_copied must be < seq_len")],
        published=[{"as_published": True}, {"seq_len": 4096}, {"n_copied": 96, "as_published": True}],
    ),
}
