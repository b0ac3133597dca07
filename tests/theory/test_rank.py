"""Interaction ranks and spectra: streaming QR and sketches agree with brute force in NumPy; known ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tolerances import assert_close
from zoo.blocks import ShortConv
from zoo.contract import SequenceMixer
from zoo.registry import create_mixer
from zoo.theory.operator import interaction
from zoo.theory.rank import (
    effective_rank,
    heads_needed,
    interaction_rank,
    operator_spectrum,
    span_spectrum,
    spectrum_rank,
    stable_rank,
)

SEQ, WIDTH = 20, 6


def brute_force(operator: Tensor) -> np.ndarray:
    """Singular values of the stack of vec(W_ij), by NumPy in float64."""
    seq, _, d_out, d_in = operator.shape
    rows = np.array([operator[i, j].double().numpy().ravel() for i in range(seq) for j in range(seq)])
    assert rows.shape == (seq * seq, d_out * d_in)
    return np.linalg.svd(rows, compute_uv=False)


class Residual(nn.Module):
    def __init__(self, mixer: SequenceMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(x)


def free_heads(n_heads: int) -> SequenceMixer:
    return create_mixer("factorized", WIDTH, n_heads=n_heads, kernel="bilinear", d_head=2)


# {layer: (constructor, theoretical rank on WIDTH channels and SEQ positions)}; test_predicted_rank.py has the mixers.
RANKS: dict[str, tuple[Any, int]] = {
    "grouped queries": (lambda: create_mixer("attention", WIDTH, n_heads=4, d_head=3, n_kv_heads=1), 4),
    "SSM and D": (lambda: create_mixer("diagonal_ssm", WIDTH, d_state=6, init="ring"), 7),
    "mamba": (lambda: create_mixer("selective_ssm", WIDTH, expand=2), 2 * WIDTH),
    "lstm": (lambda: create_mixer("lstm", 4), 16),
    "two layers, residual": (lambda: nn.Sequential(Residual(free_heads(2)), Residual(free_heads(2))), 9),
}


@pytest.mark.parametrize("name", RANKS)
def test_rank_table(name: str, generator: torch.Generator) -> None:
    make, rank = RANKS[name]
    layer = make().double()
    x = torch.randn(SEQ, 4 if name == "lstm" else WIDTH, generator=generator, dtype=torch.float64)
    W = interaction(layer, x[None]).operator[0]
    assert interaction_rank(W) == rank
    assert spectrum_rank(torch.from_numpy(brute_force(W))) == rank
    assert spectrum_rank(span_spectrum(layer, x)) == rank
    assert spectrum_rank(span_spectrum(layer, x, sketch=max(4, rank), generator=generator)) == rank
    if name != "lstm":  # its singular values decay smoothly to 1e-7, which float32 cannot tell from roundoff
        assert spectrum_rank(span_spectrum(layer.float(), x.float())) == rank


@pytest.mark.parametrize("at_once", [40, 10_000])
def test_streaming_equals_brute_force(
    at_once: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To roundoff of the largest value, for any block size. A Gram matrix would reach only 1e-8."""
    monkeypatch.setattr("zoo.theory.operator.POSITIONS_AT_ONCE", at_once * SEQ)
    for name in ("mamba", "SSM and D"):
        layer = RANKS[name][0]().double()
        x = torch.randn(SEQ, WIDTH, generator=generator, dtype=torch.float64)
        expected = brute_force(interaction(layer, x[None]).operator[0])
        np.testing.assert_allclose(span_spectrum(layer, x).numpy(), expected, rtol=0, atol=1e-14 * expected[0])


def test_more_columns_than_rows(generator: torch.Generator) -> None:
    """Three positions have nine operators of 36 entries, hence nine singular values."""
    layer = create_mixer("lstm", WIDTH).double()
    x = torch.randn(1, 3, WIDTH, generator=generator, dtype=torch.float64)
    expected = brute_force(interaction(layer, x).operator[0])
    found = span_spectrum(layer, x)
    assert found.shape == (1, 9)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=0, atol=1e-14 * expected[0])
    assert spectrum_rank(found[0]) == 6  # causal: six operators are not zero


def test_a_batch_gives_one_spectrum_per_sequence(generator: torch.Generator) -> None:
    layer = create_mixer("selective_ssm", WIDTH).double()
    x = torch.randn(3, SEQ, WIDTH, generator=generator, dtype=torch.float64)
    together = span_spectrum(layer, x)
    operator = interaction(layer, x).operator
    assert together.shape == (3, WIDTH**2)
    assert_close(together[1], span_spectrum(layer, x[1]))
    assert_close(operator_spectrum(operator), together)
    ranks = interaction_rank(operator)
    assert isinstance(ranks, Tensor)
    assert ranks.tolist() == [2 * WIDTH] * 3
    assert isinstance(heads_needed(together, 0.1), Tensor)
    assert heads_needed(together, 0.1)[2] == heads_needed(together[2], 0.1)
    assert effective_rank(together)[2] == effective_rank(together[2])
    assert stable_rank(together)[2] == stable_rank(together[2])


def test_a_sketch_approaches_the_spectrum_and_repeats_with_its_generator(generator: torch.Generator) -> None:
    layer = create_mixer("attention", WIDTH, n_heads=3).double()
    x = torch.randn(SEQ, WIDTH, generator=generator, dtype=torch.float64)
    exact = span_spectrum(layer, x)[:3]
    found = span_spectrum(layer, x, sketch=1000, generator=generator)[:3]
    assert ((found - exact).abs() < 0.07 * exact[0]).all()
    other = span_spectrum(layer, x, sketch=2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(span_spectrum(layer, x, sketch=2), first := span_spectrum(layer, x, sketch=2))
    assert not torch.allclose(first, other)


def test_a_sketch_bounds_the_memory_for_large_layers(generator: torch.Generator) -> None:
    """With 512 positions and width 64 the operator would have 10^9 entries."""
    layer = create_mixer("linear_attention", 64, n_heads=4)
    x = torch.randn(512, 64, generator=generator)
    spectrum = span_spectrum(layer, x, sketch=4, channels=4)
    assert spectrum.shape == (4 * 64,)  # channels times d_in, the largest rank that the sketch can find
    assert spectrum_rank(spectrum) == 4


class Whole(nn.Module):
    """A linear map given by its blocks W_ij."""

    def __init__(self, operator: Tensor) -> None:
        super().__init__()
        self.shape = operator.shape[0], operator.shape[2]
        self.weight = nn.Parameter(operator.transpose(1, 2).flatten(2).flatten(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.weight.T).unflatten(1, self.shape)


def orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(rows, columns, generator=generator, dtype=torch.float64)).Q


def test_small_singular_values_of_many_float32_rows_are_precise(generator: torch.Generator) -> None:
    """10,000 rows with singular values over five decades are merged in float64, so float32 inputs lose nothing."""
    n, scales = 100, torch.logspace(0, -5, 4, dtype=torch.float64)
    rows = orthonormal(n * n, 4, generator) * scales @ orthonormal(4, 4, generator)
    narrow = Whole(rows.float().view(n, n, 2, 2))
    x = torch.randn(n, 2, generator=generator)
    found, expected = span_spectrum(narrow, x), span_spectrum(narrow.double(), x.double())
    assert found.dtype == torch.float32
    np.testing.assert_allclose(expected.numpy(), scales.numpy(), rtol=1e-2)
    np.testing.assert_allclose(found.double().numpy(), expected.numpy(), rtol=1e-6)


def test_heads_needed_by_hand() -> None:
    spectrum = torch.tensor([3.0, 4.0, 0.0, 12.0])  # any order; energies 144, 16, 9, 0 of 169
    assert heads_needed(spectrum, 0.99) == 1
    assert heads_needed(spectrum, 5.0001 / 13) == 1
    assert heads_needed(spectrum, 4.9999 / 13) == 2
    assert heads_needed(spectrum, 3.0001 / 13) == 2
    assert heads_needed(spectrum, 2.9999 / 13) == 3
    assert heads_needed(spectrum, 1e-6) == 3
    assert spectrum_rank(spectrum) == 3
    assert spectrum_rank(spectrum, rtol=0.3) == 2
    assert stable_rank(spectrum) == pytest.approx(169 / 144)
    p = np.array([144, 16, 9]) / 169
    assert effective_rank(spectrum) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert heads_needed(torch.ones(4), 0.5) == 3  # an error equal to the bound is allowed


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scale_does_not_matter(scale: float) -> None:
    spectrum = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    assert heads_needed(spectrum * scale, 0.3) == heads_needed(spectrum, 0.3) == 2
    assert effective_rank(spectrum * scale) == pytest.approx(effective_rank(spectrum))
    assert spectrum_rank(spectrum * scale) == 3


def test_flat_and_zero_spectra() -> None:
    flat, zero = torch.full((7,), 0.3, dtype=torch.float64), torch.zeros(5)
    assert effective_rank(flat) == pytest.approx(7)
    assert stable_rank(flat) == pytest.approx(7)
    assert heads_needed(flat, 0.5) == 6  # six heads leave sqrt(1/7) = .38, five sqrt(2/7) = .53
    assert spectrum_rank(zero) == heads_needed(zero, 0.1) == effective_rank(zero) == stable_rank(zero) == 0


def test_thresholds_follow_the_dtype() -> None:
    spectrum = torch.tensor([1.0, 1e-3, 3e-5, 3e-6, 3e-10, 3e-11], dtype=torch.float64)
    assert spectrum_rank(spectrum) == 5
    assert spectrum_rank(spectrum.float()) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interaction_rank(ShortConv(2, 2)), "interaction.* got ShortConv"),  # type: ignore[arg-type]
        (lambda: heads_needed(ShortConv(2, 2), 0.1), "span_spectrum.* got ShortConv"),  # type: ignore[arg-type]
        (lambda: span_spectrum(ShortConv(2, 2), [1.0]), "x must be a tensor"),  # type: ignore[arg-type]
        (lambda: interaction_rank(torch.ones(3, 4, 2, 2)), "must be"),
        (lambda: interaction_rank(torch.ones(2, 2, 2, 2), rtol=1.0), "rtol"),
        (lambda: spectrum_rank(torch.ones(3), rtol=-1e-3), "rtol"),
        (lambda: spectrum_rank(torch.tensor([1.0, -1.0])), "negative"),
        (lambda: heads_needed(torch.ones(3), 0.0), "rel_error"),
        (lambda: heads_needed(torch.ones(4), 1e-9), "below the roundoff of a torch.float32 spectrum, 2.4e-07"),
        (lambda: span_spectrum(ShortConv(2, 2), torch.ones(3, 2), sketch=2, channels=0), "channels"),
        (lambda: span_spectrum(ShortConv(2, 2), torch.ones(3, 2), channels=2), "an option of a sketch"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str, unchecked_shapes: None) -> None:
    with pytest.raises(ValueError, match=message):
        call()
