"""Gradient profiles against Jacobians and closed forms; decay rates against data with a known rate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests import slow
from tests.tolerances import assert_close
from zoo.backbone import Backbone
from zoo.blocks import RMSNorm, ShortConv
from zoo.contract import SequenceMixer
from zoo.registry import create_mixer
from zoo.theory.gradients import (
    GradientProfile,
    OffersHighway,
    decay_rate,
    draw_seeds,
    fitted,
    gradient_profile,
    highway_profile,
)

WIDTH, SEQ = 8, 96


def lti(rho: float, poles: int = 8) -> SequenceMixer:
    """A diagonal SSM with real poles, the slowest of which is rho, and no skip connection."""
    layer = create_mixer("diagonal_ssm", WIDTH, d_state=poles, init="real_log").double()
    spread = torch.linspace(1, 0.2, poles, dtype=torch.float64) * rho
    with torch.no_grad():
        layer.log_rate.copy_((-spread.log()).log())
        layer.log_dt.zero_()
        layer.D.zero_()
    return layer


def jacobian_norms(layer: nn.Module, x: Tensor) -> np.ndarray:
    """J(tau), the norms of the blocks of the whole Jacobian."""
    full = torch.autograd.functional.jacobian(lambda v: layer(v[None])[0, -1], x)  # (d_out, seq, d_in)
    return full.square().sum((0, 2)).sqrt().flip(0).numpy()


@pytest.mark.parametrize("name", ["attention", "hybrid"])
def test_profile_is_the_jacobian(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.theory.operator.POSITIONS_AT_ONCE", 3 * 10 * WIDTH)
    layer = create_mixer(name, WIDTH).double()

    def make_input(generator: torch.Generator, tau: int) -> Tensor:
        x = torch.randn(10, WIDTH, generator=generator, dtype=torch.float64)
        x[9 - tau] *= 3
        return x

    moving = gradient_profile(layer, make_input, distances=[0, 1, 2, 5, 9], seeds=[4, 7], seq_len=10)
    assert moving.values.shape == (2, 5)
    for row, seed in enumerate((4, 7)):
        for column, tau in enumerate((0, 1, 2, 5, 9)):
            expected = jacobian_norms(layer, make_input(torch.Generator().manual_seed(seed), tau))[tau]
            assert moving.values[row, column].item() == pytest.approx(expected, rel=1e-9)
    plain = gradient_profile(layer, seeds=[4], seq_len=10)
    still = gradient_profile(
        layer, lambda g, _: torch.randn(10, WIDTH, generator=g, dtype=torch.float64), range(10), [4], seq_len=10
    )
    assert plain.distances.tolist() == list(range(10))
    assert_close(plain.values, still.values)


def test_a_sketch_approximates_the_profile_and_block_size_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = lti(0.9)
    exact = gradient_profile(layer, seeds=2, seq_len=SEQ).values
    assert not torch.equal(near := gradient_profile(layer, seeds=2, seq_len=SEQ, sketch=2).values, exact)
    assert (near / exact).log().abs().median() < 0.7
    monkeypatch.setattr("zoo.theory.operator.POSITIONS_AT_ONCE", 1)
    assert_close(gradient_profile(layer, seeds=2, seq_len=SEQ).values, exact)


def test_a_layer_is_built_per_seed_without_using_the_global_generator() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = gradient_profile(lambda _: create_mixer("lstm", WIDTH), seeds=[3, 3, 4], seq_len=8)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found.values[0], found.values[1])
    assert not torch.allclose(found.values[0], found.values[2])


def test_backbones_take_embeddings() -> None:
    model = Backbone({"name": "hybrid"}, d_model=WIDTH, n_layers=2, vocab_size=5, n_outputs=3).double()
    found = gradient_profile(model, seeds=1, seq_len=6)
    x = torch.randn(1, 6, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[0]
    full = torch.autograd.functional.jacobian(lambda v: model.from_embeddings(v[None])[0, -1], x)
    assert_close(found.values[0], full.square().sum((0, 2)).sqrt().flip(0))
    assert model.training


HIGHWAYS = [
    ("attention", {}),
    slow("attention", {"n_kv_heads": 1, "position": "alibi", "sink": "bos"}),
    slow("attention", {"position": "relative", "sink": "position", "max_seq_len": SEQ}),
    ("selective_ssm", {"dt_min": 0.1, "dt_max": 0.5, "d_conv": 2}),
]


@pytest.mark.parametrize(("name", "options"), HIGHWAYS)
def test_highways_are_flat(name: str, options: dict[str, Any]) -> None:
    """On the constructed input the rate's interval lies within 0.1/n of zero, and J does not vanish."""
    distances = range(15, SEQ, 20)
    profile = highway_profile(lambda _: create_mixer(name, 16, **options).double(), distances, seeds=5, seq_len=SEQ)
    assert profile is not None
    found = decay_rate(profile)
    assert -0.1 / SEQ < found.interval[0] <= found.interval[1] < 0.1 / SEQ
    assert profile.values[:, -1].min() > 1e-3


@pytest.mark.parametrize("name", ["attention", "selective_ssm"])
def test_a_highway_input_is_drawn_by_its_generator_with_seed_zero_by_default(name: str) -> None:
    mixer = create_mixer(name, WIDTH)
    drawn = [mixer.highway_input(16, 4, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    assert torch.equal(drawn[0], mixer.highway_input(16, 4))
    assert not torch.equal(*drawn)


def test_mixers_without_a_highway_give_none() -> None:
    assert highway_profile(create_mixer("lstm", WIDTH), seq_len=16) is None
    assert not isinstance(create_mixer("lstm", WIDTH), OffersHighway)
    assert create_mixer("attention", WIDTH, d_conv=3).highway_input(16, 4) is None
    assert create_mixer("attention", 4, n_heads=5, d_head=2).highway_input(16, 4) is None
    assert highway_profile(create_mixer("attention", WIDTH, d_conv=3), seq_len=16) is None
    stuck = create_mixer("selective_ssm", WIDTH)
    with torch.no_grad():
        stuck.dt_proj.weight.zero_()  # no token moves dt
    assert stuck.highway_input(16, 4) is None
    flat = create_mixer("attention", WIDTH)
    with torch.no_grad():
        flat.qkv_proj.weight[: 2 * WIDTH] = 0  # queries and keys are zero
    assert flat.highway_input(16, 4) is None


def synthetic(rate: float, rng: np.random.Generator, noise: float = 0.3) -> GradientProfile:
    """log J = rate * tau at 200 distances, with a random offset and slope for each of 12 seeds."""
    tau = np.arange(200)
    own = rng.normal(size=(12, 1)) + noise / 200 * rng.normal(size=(12, 1)) * tau
    return GradientProfile(torch.from_numpy(np.exp(rate * tau + own)), torch.arange(200), 200)


def test_rate_is_the_slope_of_the_median(rng: np.random.Generator) -> None:
    profile = synthetic(-0.02, rng)
    curved = (profile.distances.double() / 100).square().exp()  # makes the fit depend on its window
    profile = profile._replace(values=profile.values * curved)
    found = decay_rate(profile)
    median = np.log(np.median(profile.values.numpy(), axis=0))
    assert found.rate == pytest.approx(np.polyfit(np.arange(50, 200), median[50:], 1)[0], rel=1e-9)
    tau = np.arange(50, 200)
    for axis, r2 in ((tau, found.r2_exponential), (np.log(tau), found.r2_power)):
        assert r2 == pytest.approx(np.corrcoef(axis, median[50:])[0, 1] ** 2, rel=1e-9)


def test_the_interval_is_a_bootstrap_over_seeds(rng: np.random.Generator) -> None:
    """Its ends are the 2.5th and 97.5th percentiles of slopes for resampled seeds."""
    profile = synthetic(-0.02, rng)
    found = decay_rate(profile, torch.Generator().manual_seed(7), n_resamples=400)
    picks = torch.randint(12, (400, 12), generator=torch.Generator().manual_seed(7)).numpy()
    medians = np.log(np.median(profile.values.numpy()[picks], axis=1))[:, 50:]
    slopes = np.polyfit(np.arange(50, 200), medians.T, 1)[0]
    low, high = np.quantile(slopes, (0.025, 0.975))
    assert found.interval == pytest.approx((low, high), rel=1e-6)
    assert low < np.quantile(slopes, 0.05) < np.quantile(slopes, 0.95) < high


def test_a_half_distance_needs_an_interval_below_zero(rng: np.random.Generator) -> None:
    found = decay_rate(synthetic(-0.02, rng))
    assert found.half_distance == pytest.approx(math.log(2) / -found.rate)
    for rate, noise in ((0.0, 0.3), (0.02, 0.3), (-0.02, 20.0)):
        assert decay_rate(synthetic(rate, rng, noise=noise)).half_distance is None
    low, high = decay_rate(profile := synthetic(-0.02, rng)).interval
    narrow = decay_rate(profile, confidence=0.5).interval
    assert low < narrow[0] < narrow[1] < high


def test_exactly_flat_profiles_have_no_half_distance() -> None:
    flat = GradientProfile(torch.full((5, 50), 0.3), torch.arange(50), 50)
    found = decay_rate(flat)
    assert abs(found.rate) < 1e-15
    assert found.half_distance is None
    assert found.r2_exponential == 1.0


def test_power_laws_are_distinguished_from_exponentials() -> None:
    tau = torch.arange(256, dtype=torch.float64)
    power = GradientProfile((1 / (1 + tau)).expand(5, -1), tau.long(), 256)
    found = decay_rate(power)
    assert found.r2_power > 0.99 > found.r2_exponential
    assert found.interval[1] < 0
    assert found.half_distance is None  # a power law has none


def test_a_floor_of_roundoff_is_excluded_from_the_fit() -> None:
    """In float32, values near 1e-9 or a few roundoffs of the largest are excluded; in float64 they count."""
    tau = torch.arange(400, dtype=torch.float64)
    clean, eps = (-0.1 * tau).exp(), torch.finfo(torch.float32).eps
    for values in (clean + 1e-9, torch.where(clean > 16 * eps, clean, 4 * eps)):
        floored = GradientProfile(values.float().expand(5, -1), tau.long(), 400)
        assert decay_rate(floored).rate == pytest.approx(-0.1, rel=0.01)
        assert decay_rate(floored._replace(values=floored.values.double())).rate > -0.05


def test_a_gradient_that_underflows_has_a_rate_and_no_reach() -> None:
    """J(tau) = 0.01^tau, whose square is zero in float64 from tau = 82 on."""
    taus = torch.arange(100)
    values = torch.where(taus < 82, 0.01 ** taus.double(), 0.0).expand(5, -1)
    found = fitted(GradientProfile(values, taus, 100))
    assert found.reach is None
    assert found.decay is not None
    assert found.decay.rate == pytest.approx(math.log(0.01))


def test_different_seeds_draw_disjoint_seeds() -> None:
    drawn = [set(draw_seeds(seed, 1000)) for seed in (0, 1, 2)]
    assert sum(map(len, drawn)) == len(set().union(*drawn)) == 3000


class Constant(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model, self.value = d_model, nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand_as(x)


class Centred(Constant):
    """Centred over the batch, which holds copies of one input; gradients through it are not the layer's Jacobian."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


RAMP = GradientProfile(torch.rand(5, 40, generator=torch.Generator().manual_seed(0)), torch.arange(40), 40)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_profile(ShortConv(2, 2), seq_len=0), "seq_len"),
        (lambda: gradient_profile(ShortConv(2, 2), seeds=[]), "at least one seed"),
        (lambda: gradient_profile(ShortConv(2, 2), distances=[2, 1]), "ascending"),
        (lambda: gradient_profile(ShortConv(2, 2), distances=[0, 256]), r"0\.\.255, got 0\.\.256"),
        (lambda: gradient_profile(RMSNorm(2)), "give make_input"),
        (lambda: gradient_profile(ShortConv(2, 2), lambda g, tau: torch.ones(3, 2), seq_len=4), "make_input must give"),
        (lambda: gradient_profile(ShortConv(2, 2), lambda g, tau: torch.ones(4, 2) / 0, seq_len=4), "finite"),
        (lambda: gradient_profile(ShortConv(2, 2), lambda g, tau: torch.ones(4, 3), seq_len=4), "d_model=2"),
        (lambda: gradient_profile(Constant(2)), "no path from the input of Constant to its output"),
        (lambda: gradient_profile(Centred(2)), "rows of the batch are coupled"),
        (lambda: create_mixer("attention", WIDTH).highway_input(16, 16), r"distance must lie in 1\.\.15"),
        (lambda: create_mixer("selective_ssm", WIDTH).highway_input(16, 0), r"distance must lie in 1\.\.15"),
        (lambda: decay_rate(RAMP._replace(values=RAMP.values[:4])), "at least 5 seeds, got 4"),
        (lambda: decay_rate(RAMP._replace(values=-RAMP.values)), "non-negative"),
        (lambda: decay_rate(RAMP._replace(values=RAMP.values[:, 1:])), "finite, non-negative values"),
        (lambda: decay_rate(RAMP, confidence=1.0), "confidence"),
        (lambda: decay_rate(RAMP, n_resamples=0), "n_resamples"),
        (lambda: decay_rate(RAMP._replace(values=RAMP.values[:, :2], distances=torch.tensor([20, 30]))), "at least 3"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str, unchecked_shapes: None) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["attention", "selective_ssm"])
def test_profiles_on_a_gpu_equal_the_cpus(name: str) -> None:
    layer = create_mixer(name, 16).double()
    plain = gradient_profile(layer, seeds=2, seq_len=32)
    highway = highway_profile(layer, [5, 20], seeds=2, seq_len=32)
    layer.cuda()
    assert_close(gradient_profile(layer, seeds=2, seq_len=32).values, plain.values)
    torch.testing.assert_close(
        highway_profile(layer, [5, 20], seeds=2, seq_len=32).values, highway.values, rtol=1e-6, atol=0
    )
