"""Channelwise weights against the whole operator; spectra and truncation by them against the exact method."""

from __future__ import annotations

import pytest
import torch

from tests import slow
from tests.cases import draw, randomise
from tests.tolerances import assert_close
from zoo import create_mixer
from zoo.coefficient import coefficient
from zoo.theory import channels, interaction, span_basis, span_spectrum, truncate, truncation
from zoo.theory.channels import channel_spectrum, channelwise
from zoo.theory.spectra import spectrum_at

GROUPS = {"differential_attention": 8, "hyena": 8, "kda": 8, "rg_lru": 8, "selective_ssm": 16}


@pytest.mark.parametrize("name", [*GROUPS, "grouped"])
def test_groups_make_the_operator_and_its_spectrum(name: str, generator: torch.Generator) -> None:
    options = {"n_heads": 4, "n_kv_heads": 2, "position": "rope"} if name == "grouped" else {}
    layer = randomise(create_mixer("attention" if options else name, 8, **options), generator).double()
    x = draw(2, 7, 8, generator=generator)
    true, offset = interaction(layer, x)
    operator = torch.zeros_like(true)
    with channelwise(layer, x) as found:
        assert found is not None
        assert found.n_groups == GROUPS.get(name, 4)
        maps = found.operators(torch.eye(found.n_groups, dtype=torch.float64))
        for sources, weights in found.columns():
            operator[:, :, sources] = torch.einsum("bjig,gpd->bijpd", weights, maps)
        assert_close(found.products(maps), torch.einsum("hpd,gpd->hg", maps, maps))
        assert_close(found.offset, offset)
    assert_close(operator, true)
    with channelwise(layer, x[:1]) as found:
        assert found is not None
        spectrum, n_sources = channel_spectrum(found, generator)
    assert n_sources == 7
    assert_close(spectrum, span_spectrum(layer, x[0])[: len(spectrum)])


def test_the_rank_of_a_layer_with_a_silent_head_is_not_a_lower_bound(generator: torch.Generator) -> None:
    layer = randomise(create_mixer("attention", 40, n_heads=4), generator).double()
    layer.get_parameter("out_proj.weight").data[:, :10] = 0.0  # the first head writes nothing
    read = spectrum_at(layer, draw(1, 5, 40, generator=generator))
    assert (read.rank, read.limit, read.sources) == (3, None, None)


def test_a_wide_layer_may_have_the_operator_zero(generator: torch.Generator) -> None:
    layer, x = (
        randomise(create_mixer("attention", 40, n_heads=4), generator).double(),
        draw(1, 5, 40, generator=generator),
    )
    assert not truncate(layer, span_basis(layer, x, 2), 0)(x).any()
    layer.get_parameter("out_proj.weight").data.zero_()
    assert (spectrum_at(layer, x).rank, spectrum_at(layer, x).limit) == (0, None)
    basis = span_basis(layer, x, 2)
    assert (len(basis.operators), basis.norm) == (0, 0.0)
    assert not truncate(layer, basis)(x).any()


def test_the_rank_of_few_positions_is_not_a_lower_bound(generator: torch.Generator) -> None:
    layer = randomise(create_mixer("selective_ssm", 40), generator).double()
    read = spectrum_at(layer, draw(1, 3, 40, generator=generator))
    assert (read.rank, read.limit, read.sources) == (6, None, None)


class Choosing(torch.nn.Module):
    """The shape of its coefficient depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.out_proj = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.in_proj(x)
        coefficient(v[v > 0])
        return self.out_proj(v.cumsum(1))


class Normed(Choosing):
    """Its coefficient is infinite at zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out_proj(coefficient(1 / x.norm(dim=2, keepdim=True)) * self.in_proj(x).cumsum(1))


@pytest.mark.parametrize("name", ["lstm", "rwkv7", "identity", "choosing", "normed"])
def test_a_layer_without_channelwise_weights_gives_none(name: str, generator: torch.Generator) -> None:
    make = {"choosing": Choosing, "normed": Normed}.get(name, lambda: create_mixer(name, 8))
    layer = randomise(make(), generator).double()
    with channelwise(layer, draw(1, 5, 8, generator=generator)) as found:
        assert found is None


@pytest.mark.parametrize("name", ["attention", slow("ssd")])
def test_a_wide_layer_is_truncated_as_by_the_exact_method(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, (x, other) = randomise(create_mixer(name, 8), generator).double(), draw(2, 2, 7, 8, generator=generator)
    exact = span_basis(layer, x, 3)
    expected = truncate(layer, exact)(other)
    monkeypatch.setattr(truncation, "EXACT_SIZE", 0)
    found = span_basis(layer, x, 3)
    assert_close(found.spectrum, exact.spectrum)
    assert found.norm == pytest.approx(exact.norm)
    assert_close(truncate(layer, found)(other), expected)


@pytest.mark.slow
def test_a_sample_of_positions_estimates_the_spectrum(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 of 48 source positions find every direction, and the leading singular values within 20 %."""
    layer, x = randomise(create_mixer("ssd", 8), generator).double(), draw(1, 48, 8, generator=generator)
    every = span_spectrum(layer, x[0])
    monkeypatch.setattr(channels, "PASSES", 24)
    with channelwise(layer, x) as found:
        assert found is not None
        some, n_sources = channel_spectrum(found, torch.Generator().manual_seed(0))
    assert n_sources == 24
    assert len(some) == 16
    assert torch.allclose(some[:4], every[:4], rtol=0.2)
