"""`run_packed` and `run_left_padded`: each sequence gives the outputs it gives alone, for every mixer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests import holding, refused
from tests.cases import D_MODEL, KINDS, Case, assert_rows_alone, cases, draw, trained_by_outputs
from tests.tolerances import assert_close
from zoo import Bidirectional, run_left_padded, run_packed

LENGTHS = [4, 0, 1, 7, 3]


def boundaries_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


@cases(variants="slow", by_default=KINDS)
def test_packed_sequences_equal_the_separate_ones(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x = draw(sum(LENGTHS), D_MODEL, generator=generator).requires_grad_()
    y = run_packed(mixer, x, boundaries_of(LENGTHS))
    expected = torch.cat([mixer(part.unsqueeze(0))[0] for part in x.split(LENGTHS) if len(part)])
    assert_close(y, expected)
    weights, inputs = draw(*y.shape, generator=generator), [x, *trained_by_outputs(mixer)]
    assert_close(*(torch.autograd.grad((each * weights).sum(), inputs) for each in (y, expected)))


@cases(variants="slow", by_default=KINDS)
def test_left_padding_affects_no_output_and_no_gradient(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x = draw(len(LENGTHS), 7, D_MODEL, generator=generator)
    spans = [slice(7 - length, 7) for length in LENGTHS]
    for row, span in enumerate(spans):
        x[row, : span.start] = torch.nan
    assert_rows_alone(lambda x: run_left_padded(mixer, x, torch.tensor(LENGTHS)), mixer, x, spans, generator)


def test_bidirectional_runs_packed_and_left_padded(generator: torch.Generator) -> None:
    both = Bidirectional(*(Case(name, {}).create(generator) for name in ("gru", "linear_attention")))
    x = draw(sum(LENGTHS), D_MODEL, generator=generator)
    parts = [both(part.unsqueeze(0))[0] for part in x.split(LENGTHS) if len(part)]
    assert_close(run_packed(both, x, boundaries_of(LENGTHS)), torch.cat(parts))
    padded = torch.stack([torch.nn.functional.pad(part, (0, 0, 7 - len(part), 0)) for part in x.split(LENGTHS)])
    y = run_left_padded(both, padded, torch.tensor(LENGTHS))
    assert_close(torch.cat([row[7 - length :] for row, length in zip(y, LENGTHS, strict=True)]), torch.cat(parts))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [3], [0, 2, 0]])
def test_empty_sequences_and_empty_batches_pass(lengths: list[int], generator: torch.Generator) -> None:
    mixer, x = Case("lstm", {}).create(generator), draw(sum(lengths), D_MODEL, generator=generator)
    y = run_packed(mixer, x, boundaries_of(lengths))
    assert y.shape == x.shape
    if len(x):
        assert_close(y, mixer(x.unsqueeze(0))[0])


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_narrow_integers_do_not_wrap_around(dtype: torch.dtype, generator: torch.Generator) -> None:
    mixer, x = Case("conv", {}).create(generator), draw(120, D_MODEL, generator=generator)
    boundaries = torch.tensor([0, 100, 120])
    assert_close(run_packed(mixer, x, boundaries.to(dtype)), run_packed(mixer, x, boundaries))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("boundaries", "words"),
    [
        (torch.tensor([0.0, 6.0]), "integers float32"),
        (torch.tensor([False, True]), "integers bool"),
        (torch.tensor([[0, 6]]), "vector (1,"),
        (torch.tensor([], dtype=torch.int64), "vector (0,)"),
        (torch.tensor([1, 6]), "total=6 1"),
        (torch.tensor([0, 7]), "total=6 7"),
        (torch.tensor([0, 4, 2, 6]), "decrease 4 2"),
        (torch.tensor([0, 6], device="meta"), "meta cpu"),
        ([0, 6], "tensor [0, 6]"),
    ],
)
def test_wrong_boundaries_are_refused(boundaries: Tensor, words: str) -> None:
    mixer = Case("identity", {}).create(torch.Generator())
    with refused(holding("boundaries", *words.split())):
        run_packed(mixer, torch.zeros(6, D_MODEL, dtype=torch.float64), boundaries)


@pytest.mark.usefixtures("unchecked_shapes")
def test_wrong_input_is_refused() -> None:
    mixer, x = Case("identity", {}).create(torch.Generator()), torch.zeros(2, 3, D_MODEL, dtype=torch.float64)
    with refused(holding("x must be", "(2, 3, 8)")):
        run_packed(mixer, x, torch.tensor([0, 2]))
    with refused(holding("x must be", "(3, 8)")):
        run_left_padded(mixer, x[0], torch.tensor([3]))
    for lengths, words in (([3], "(1,)"), ([3, 4], "0..3"), ([-1, 2], "-1..2"), ([1.0, 2.0], "float32")):
        with refused(holding("lengths", words)):
            run_left_padded(mixer, x, torch.tensor(lengths))
