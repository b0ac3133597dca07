"""Cases of the tasks from real data: text and images."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from tests.tasks.case import Answers, Options, TaskCase


@cache
def digit_classes() -> dict[tuple[int, ...], int]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pictures = [tuple(map(int, picture)) for picture in digits.data]
    return dict(zip(pictures, map(int, digits.target), strict=True))


def solve_images(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Look up the image in scikit-learn's digits."""
    return {position: digit_classes()[tuple(inputs)] for position in asked}


LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"


def solve_text(options: Options, inputs: list[int], asked: list[int]) -> Answers:
    """Find the window in the file, where it occurs once; answer with the next symbol, and the length of its repeat."""
    symbols: list[int] = list(LICENSE.read_bytes())
    if options["unit"] == "characters":
        text = LICENSE.read_text(encoding="utf-8")
        alphabet = sorted(set(text))
        symbols = [alphabet.index(character) for character in text]
    places = [i for i in range(len(symbols) - len(inputs)) if symbols[i : i + len(inputs)] == inputs]
    assert len(places) == 1
    window = symbols[places[0] : places[0] + len(inputs) + 1]

    def repeated(position: int) -> int:
        def again(n: int) -> bool:
            tail = window[position + 1 - n : position + 2]
            return any(window[i : i + n + 1] == tail for i in range(position + 1 - n))

        return next((n for n in range(min(position + 1, 16), 0, -1) if again(n)), 0)

    return {position: (window[position + 1], repeated(position)) for position in asked}


CASES = {
    "images": TaskCase(
        options=st.fixed_dictionaries({"validation": st.sampled_from([0.1, 0.2])}),
        solve=solve_images,
        refused=[
            ({"colour": "cmyk"}, "colour must be one of grey, rgb"),
            ({"colour": "rgb"}, "colour rgb needs a dataset, because the digits are grey"),
            ({"test": 0.0}, "validation and test must be positive shares with a sum below 1"),
        ],
        fixed_length="the length is the number of pixels",
    ),
    "text": TaskCase(
        options=st.fixed_dictionaries(
            {
                "path": st.just(str(LICENSE)),
                "unit": st.sampled_from(["bytes", "characters"]),
                "seq_len": st.integers(200, 240),  # every window of 200 occurs only once in the file
                "test": st.sampled_from([0.05, 0.2]),
            }
        ),
        solve=solve_text,
        least={"seq_len": 1},
        refused=[
            ({"unit": "words"}, "unit must be one of bytes, characters"),
            ({"path": "a", "dataset": "b"}, "give path or dataset, not both"),
            ({"path": "no/such/file"}, "cannot read no/such/file: No such file or directory"),
            ({"validation": 0.6, "test": 0.4}, "validation and test must be positive shares with a sum below 1"),
            ({"path": str(LICENSE), "seq_len": 5000}, "part has 568 symbols, fewer than seq_len + 1"),
            ({"dataset": "/no/such/folder"}, "cannot load data set"),
        ],
        published=[{"seq_len": 1024}],
        other_length=100,
    ),
}
