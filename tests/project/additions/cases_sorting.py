"""Case of the task sorting."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.tasks.case import Answers, Options, TaskCase


def solve_sorting(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Remove the smallest number again and again."""
    left, answers = [number for number in inputs if number], {}
    for position in asked:
        answers[position] = min(left)
        left.remove(answers[position])
    return answers


CASES = {
    "sorting": TaskCase(
        options=st.fixed_dictionaries(
            {"vocab_size": st.integers(3, 9), "seq_len": st.integers(1, 9).map(lambda n: 2 * n)}
        ),
        solve=solve_sorting,
        least={"vocab_size": 3, "seq_len": 2},
        refused=[({"seq_len": 7}, "seq_len must be even")],
    )
}
