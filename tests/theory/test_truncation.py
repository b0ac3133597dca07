"""Truncating a layer to its leading operators, against the whole operator and the Eckart-Young error."""

from __future__ import annotations

import pytest
import torch

from tests import slow
from tests.cases import draw, randomise
from tests.tolerances import assert_close
from zoo import create_mixer
from zoo.blocks import ResidualBlock
from zoo.theory import interaction, span_basis, span_spectrum, truncate, truncation

NAMES = ("attention", "selective_ssm", slow("lstm"))


def layer_of(name: str, generator: torch.Generator, d_model: int = 4) -> torch.nn.Module:
    return randomise(create_mixer(name, d_model), generator).double()


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_basis_spans_the_operators_and_keeps_the_layer(name: str, generator: torch.Generator) -> None:
    """The weights of these layers determine the span, so twelve positions are enough for any input."""
    layer, x, other = layer_of(name, generator), *draw(2, 1, 12, 4, generator=generator)
    basis = span_basis(layer, x)
    spectrum = span_spectrum(layer, x[0])
    count = len(basis.spectrum)
    assert_close(basis.spectrum, spectrum[:count])
    assert basis.norm == pytest.approx(float(spectrum.norm()))
    flat = basis.operators.flatten(1)
    assert_close(flat @ flat.t(), torch.eye(count, dtype=torch.float64))
    whole = truncate(layer, basis)
    for v in (x, other):
        assert_close(whole(v), layer(v))
    block = ResidualBlock(layer).double()
    expected = block(other)
    block.mixer = whole
    y, state = block.stream(other)
    assert_close(y, expected)
    with pytest.raises(ValueError, match="whole sequences"):
        block.stream(other, state)


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_extreme_scales_do_not_overflow(scale: float, generator: torch.Generator) -> None:
    layer, x = layer_of("attention", generator), draw(1, 12, 4, generator=generator)
    usual = span_basis(layer, x)
    with torch.no_grad():
        layer.get_submodule("out_proj").weight.mul_(scale)
    found = span_basis(layer, x)
    assert found.norm == pytest.approx(scale * usual.norm)
    assert_close(found.spectrum / scale, usual.spectrum)


@pytest.mark.parametrize("n_heads", [0, 1, 3])
def test_the_error_of_few_heads_is_the_tail_of_the_spectrum(n_heads: int, generator: torch.Generator) -> None:
    layer, x = layer_of("selective_ssm", generator), draw(2, 7, 4, generator=generator)
    basis, (operator, offset) = span_basis(layer, x), interaction(layer, x)
    kept = basis.operators[:n_heads].flatten(1)
    projected = (operator.flatten(3) @ kept.t() @ kept).view_as(operator)
    assert float((operator - projected).square().sum()) == pytest.approx(
        basis.norm**2 - float(basis.spectrum[:n_heads].square().sum())
    )
    expected = torch.einsum("bijpd,bjd->bip", projected, x) + offset
    assert_close(truncate(layer, basis, n_heads)(x), expected)


@pytest.mark.parametrize("by_channels", [True, slow(False)])
def test_a_limit_keeps_the_leading_operators(
    by_channels: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer spans 68 operators: 72 random vectors find all, 16 the leading ones approximately."""
    if not by_channels:  # read in several passes
        monkeypatch.setattr(truncation, "_wide_basis", lambda *_: None)
    layer, x = layer_of("selective_ssm", generator, 34), draw(1, 16, 34, generator=generator)
    every = span_basis(layer, x)
    assert len(every.operators) == 68
    for n_heads, rtol in ((18, 1e-9), (4, 0.05)):
        some = span_basis(layer, x, n_heads)
        assert len(some.operators) == n_heads
        assert some.norm == pytest.approx(every.norm)
        assert torch.allclose(some.spectrum, every.spectrum[:n_heads], rtol=rtol)
        assert (some.spectrum <= every.spectrum[:n_heads] * (1 + 1e-9)).all()


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_a_one_line_error(generator: torch.Generator) -> None:
    layer, x = layer_of("attention", generator), draw(1, 5, 4, generator=generator)
    basis = span_basis(layer, x)
    with pytest.raises(ValueError, match="n_heads must lie between 0 and"):
        truncate(layer, basis, len(basis.operators) + 1)
    with pytest.raises(ValueError, match="n_heads must be"):
        span_basis(layer, x, 0)
    with pytest.raises(ValueError, match="give the basis of this layer"):
        truncate(layer_of("attention", generator, 8), basis)(draw(1, 5, 8, generator=generator))
