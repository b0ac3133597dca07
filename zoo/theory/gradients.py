"""Gradient against distance: J(tau) = ||d y_n / d x_{n - tau}||_F at the last position n, and its rate of decay.

J is the norm of the true Jacobian, by reverse-mode differentiation; the operator W differs from it, because it holds
coefficients fixed. The decay rate is the slope of log J over the far three quarters of the distances, with a bootstrap
interval over seeds. A half distance is reported only if the interval lies below zero and an exponential fits better
than a power law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from zoo.evidence.interval import FEWEST_SEEDS
from zoo.seeds import seeded
from zoo.theory.operator import (
    Map,
    check_input,
    draw_input,
    evaluated,
    like,
    positions_at_once,
    require_autograd,
    separate_rows,
)
from zoo.validate import require_positive

MakeInput: TypeAlias = Callable[[torch.Generator, int], Tensor]
"""(generator, distance) -> input (seq, d_in). Each distance gets a generator with the same seed, so that inputs differ
only in the parts that depend on the distance."""

Layer: TypeAlias = nn.Module | Callable[[int], nn.Module]
"""A layer, or a function seed -> layer, called with torch's global generators seeded."""

M = TypeVar("M", bound=nn.Module)

GRADIENT_SKETCH = 4
"""Gaussian cotangents per seed that sketch the gradient profile of a wide layer."""

WIDE = 128
"""Output channels above which `profile_at` uses a sketch."""

_FEWEST_DISTANCES = 3  # fewest points of a line fit
_TAIL = 0.25  # the fit starts at this fraction of the range
_FLOOR = 8.0  # smallest J in the fit, in eps of the dtype times the largest J; below, float32 decays are wrong


class GradientProfile(NamedTuple):
    """J by seed and distance, on the CPU, in the layer's dtype, whose eps limits how small a J is reliable."""

    values: Float[Tensor, "seeds distances"]
    distances: Int[Tensor, " distances"]  # ascending
    seq_len: int

    @property
    def median(self) -> Float[Tensor, " distances"]:
        """Median over seeds, in float64; the mean of the middle two for an even number of seeds."""
        return self.values.double().quantile(0.5, dim=0)


class DecayRate(NamedTuple):
    """Rate at which J falls with distance, its interval, and the quality of the fit."""

    rate: float  # slope of log J per token; negative when gradients vanish
    interval: tuple[float, float]  # confidence interval of the rate
    half_distance: float | None  # ln 2 / -rate; None unless J decays exponentially, see `decay_rate`
    r2_exponential: float  # variance of log J explained by a line in tau
    r2_power: float  # ... and by a line in log tau


@dataclass(frozen=True)
class Gradient:
    """A gradient profile with its decay rate.

    The rate is None if the gradient is zero beyond some distance (`reach`), if too few distances lie above roundoff, or
    if there are too few draws for an interval.
    """

    profile: GradientProfile
    decay: DecayRate | None

    @property
    def reach(self) -> int | None:
        """The largest distance with a nonzero gradient; None if that is the largest distance measured.

        Also None if the gradient there is below the floor of `decay_rate`: then it decays until its square underflows.
        """
        values, distances, _ = self.profile
        arrives = (values > 0).any(0).nonzero()
        if not len(arrives):
            return 0
        last = int(arrives[-1])
        if last == len(distances) - 1 or bool(values[:, last].max() < _floor(self.profile)):
            return None
        return int(distances[last])


@runtime_checkable
class OffersHighway(Protocol):
    """A mixer that can construct an input on which its gradient does not decay with distance."""

    def highway_input(
        self, seq_len: int, distance: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "seq d_model"] | None:
        """Return a sequence that preserves the gradient over `distance` positions to the end; None if none is known."""


def draw_seeds(seed: int, n: int) -> list[int]:
    """Return seeds for the layers and inputs of a profile: up to 1,000, distinct for different `seed`."""
    return [seed * 1000 + repeat for repeat in range(n)]


def gradient_profile(
    layer: Layer,
    make_input: MakeInput | None = None,
    distances: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 8,
    *,
    seq_len: int = 256,
    sketch: int | None = None,
) -> GradientProfile:
    """Measure J(tau) = ||d y_n / d x_{n - tau}||_F for the last position n, for each seed.

    J is exact; with a sketch of a few Gaussian cotangents, redrawn for each seed, J^2 is unbiased. float32 recurrences
    that accumulate log-decays have a false gradient floor near 1e-9: measure those in float64.

    Args:
        layer: a layer, evaluated in its own dtype and on its device (a backbone on embeddings), or a function
            seed -> layer.
        make_input: see `MakeInput`; default standard normal vectors.
        distances: the taus, ascending, within 0..seq_len - 1. Default: all of them for random input, which serves
            every distance at once; with make_input, 16 evenly spaced ones, the largest a sixteenth short of the start,
            so that a convolution or state has some past.
        seeds: number of seeds, or the seeds.
        seq_len: length of the input.
        sketch: number of Gaussian cotangents; default one per output channel, which is exact.

    Raises:
        ValueError: distances outside the sequence or not ascending, no seeds, an input that is not (seq_len, d_in),
            finite and of the layer's width, a layer without d_model and no make_input, or a layer whose output does not
            depend on its input.
        OperatorError: the layer is not deterministic, or mixes rows of the batch (inputs are stacked there).
    """
    taus = _distances(distances, seq_len, every=make_input is None)

    def inputs(made: nn.Module, seed: int) -> Tensor:
        if make_input is None:
            return draw_input(made, 1, seq_len, torch.Generator().manual_seed(seed), "make_input")
        given = [make_input(torch.Generator().manual_seed(seed), int(tau)) for tau in taus]
        return _stacked(made, given, seq_len)

    found = _profile(layer, inputs, taus, seeds, seq_len, sketch)
    assert found is not None
    return found


def highway_profile(
    layer: Layer, distances: Sequence[int] | None = None, seeds: int | Sequence[int] = 8, *, seq_len: int = 256
) -> GradientProfile | None:
    """Measure `gradient_profile` on the mixer's `highway_input`; None if it has none.

    Raises:
        ValueError: see `gradient_profile`.
    """
    taus = _distances(distances, seq_len, every=False)

    def inputs(made: nn.Module, seed: int) -> Tensor | None:
        if not isinstance(made, OffersHighway):
            return None
        given = [made.highway_input(seq_len, int(tau), torch.Generator().manual_seed(seed)) for tau in taus]
        known = [x for x in given if x is not None]
        return _stacked(made, known, seq_len) if len(known) == len(given) else None

    return _profile(layer, inputs, taus, seeds, seq_len)


def _profile(
    layer: Layer,
    inputs: Callable[[nn.Module, int], Float[Tensor, "inputs seq d_in"] | None],
    taus: Int[Tensor, " distances"],
    seeds: int | Sequence[int],
    seq_len: int,
    sketch: int | None = None,
) -> GradientProfile | None:
    """Measure J for each seed at `inputs(layer, seed)`: one per distance, or one for all. None if there are none."""
    require_positive(sketch=sketch)
    if isinstance(seeds, int):
        require_positive(seeds=seeds)
        seeds = range(seeds)
    if len(seeds) == 0:
        raise ValueError("seeds must contain at least one seed")
    rows, sketched_by = [], torch.Generator().manual_seed(0)
    for seed in seeds:
        made = layer if isinstance(layer, nn.Module) else drawn_from(seed, layer)
        x = inputs(made, seed)
        if x is None:
            return None
        with evaluated(made) as f:
            norms = _last_row_norms(f, x, _width_out(f, x), type(made).__name__, sketch, sketched_by).cpu()
            rows.append(norms.expand(len(taus), -1).gather(1, taus[:, None]).squeeze(1))
    return GradientProfile(torch.stack(rows), taus, seq_len)


def spaced(seq_len: int, count: int = 16) -> Int[Tensor, " distances"]:
    """Return evenly spaced distances; the largest stops a sixteenth of the sequence short of its start."""
    return torch.linspace(1, max(1, seq_len - 1 - seq_len // 16), count).round().long().unique()


def drawn_from(seed: int, make: Callable[[int], M]) -> M:
    """Return `make(seed)`, with torch's global generators seeded by `seed` and restored afterwards."""
    with seeded(seed):
        return make(seed)


def _distances(given: Sequence[int] | None, seq_len: int, every: bool) -> Int[Tensor, " distances"]:
    """Check the given distances; by default return every distance, or 16 spaced ones."""
    require_positive(seq_len=seq_len)
    if given is None:
        return torch.arange(seq_len) if every else spaced(seq_len)
    taus = torch.as_tensor(list(given))
    if taus.ndim != 1 or len(taus) == 0 or taus.is_floating_point() or bool((taus.diff() <= 0).any()):
        raise ValueError(f"distances must be ascending integers, at least one, got {list(given)}")
    if taus[0] < 0 or taus[-1] >= seq_len:
        raise ValueError(f"distances must lie in 0..{seq_len - 1}, got {int(taus[0])}..{int(taus[-1])}")
    return taus


def _stacked(layer: nn.Module, inputs: Sequence[Tensor], seq_len: int) -> Float[Tensor, "inputs seq d_in"]:
    for x in inputs:
        if x.ndim != 2 or len(x) != seq_len or not x.is_floating_point() or x.shape != inputs[0].shape:
            raise ValueError(f"make_input must give (seq_len={seq_len}, d_in), got {x.dtype} {tuple(x.shape)}")
    stacked = torch.stack([x.detach().to(like(layer)) for x in inputs])
    check_input(layer, stacked)
    return stacked


def profile_at(layer: nn.Module, x: Float[Tensor, "seeds seq d_in"]) -> GradientProfile:
    """Measure the gradient profile at given inputs, one per seed, over every distance; see `gradient_profile`.

    Layers wider than `WIDE` use a sketch of `GRADIENT_SKETCH` cotangents.
    """
    check_input(layer, x)
    source = torch.Generator().manual_seed(0)
    with evaluated(layer) as f:
        d_out, name = _width_out(f, x), type(layer).__name__
        sketch = GRADIENT_SKETCH if d_out > WIDE else None
        rows = [_last_row_norms(f, row, d_out, name, sketch, source).cpu() for row in x.split(1)]
    return GradientProfile(torch.cat(rows), torch.arange(x.shape[1]), x.shape[1])


def _width_out(f: Map, x: Float[Tensor, "inputs seq d_in"]) -> int:
    """Return d_out; OperatorError if the layer is not deterministic or mixes sequences of the batch."""
    return separate_rows(f, x[:1])[0].shape[-1]


def _last_row_norms(
    f: Map,
    x: Float[Tensor, "inputs seq d_in"],
    d_out: int,
    name: str,
    sketch: int | None,
    generator: torch.Generator,
) -> Float[Tensor, "inputs seq"]:
    """Return J(tau) for every input and tau: one backward pass per cotangent, several at once as memory allows."""
    require_autograd()
    if sketch is None or sketch >= d_out:
        cotangents = torch.eye(d_out)
    else:
        cotangents = torch.randn(sketch, d_out, generator=generator) / sketch**0.5
    at_once = max(1, positions_at_once(x.shape[2]) // x.shape[1])
    few = cotangents.split(at_once)
    norms = [_row_norms(f, some, few, name) for some in x.split(max(1, at_once // len(cotangents)))]
    return torch.cat(norms).flip(1).to(x.dtype)


def _row_norms(
    f: Map, x: Float[Tensor, "inputs seq d_in"], cotangents: Sequence[Float[Tensor, "rows d_out"]], name: str
) -> Float[Tensor, "inputs seq"]:
    """Return the norm over the cotangents' gradients from the last output, at each source position.

    One forward pass on as many copies of x as the first of `cotangents` has rows, then a backward pass for each chunk.
    """
    copies = len(cotangents[0])
    point = x.repeat_interleave(copies, 0).requires_grad_()
    with torch.enable_grad():
        y = f(point)[:, -1].unflatten(0, (len(x), copies))
    energy = x.new_zeros(x.shape[:2], dtype=torch.float64)
    for some in cotangents:
        given = nn.functional.pad(some, (0, 0, 0, copies - len(some))).to(y).expand_as(y)
        grad = (
            torch.autograd.grad(y, point, given, retain_graph=True, allow_unused=True)[0] if y.requires_grad else None
        )
        if grad is None:
            raise ValueError(f"no gradient: autograd finds no path from the input of {name} to its output")
        energy += grad.double().unflatten(0, (len(x), copies)).square().sum((1, 3))
    return energy.sqrt()


def decay_rate(
    profile: GradientProfile,
    generator: torch.Generator | None = None,
    *,
    n_resamples: int = 1000,
    confidence: float = 0.95,
) -> DecayRate:
    """Fit the decay rate of J: the least-squares slope of log(median of J over seeds) for tau in [n/4, n).

    n is seq_len, or the first distance at which J falls to the dtype's floor (8 eps of the largest J). The interval is
    a percentile bootstrap over whole seeds, because values at neighbouring distances are not independent. Both R^2 use
    the same medians and distances. A half distance is reported if the interval lies below zero by more than roundoff
    and the exponential explains more than the power law.

    Args:
        profile: at least five seeds, and three distances in the range of the fit.
        generator: generator of the resamples, on the CPU; default seed 0.
        n_resamples: bootstrap samples.
        confidence: nominal coverage of the interval.

    Raises:
        ValueError: too few seeds or distances, values that are negative or not finite, a confidence outside (0, 1).
    """
    require_positive(n_resamples=n_resamples)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
    values, taus = profile.values.double(), profile.distances
    if values.ndim != 2 or values.shape[1] != len(taus) or not values.isfinite().all() or bool((values < 0).any()):
        raise ValueError(f"a profile needs finite, non-negative values (seed, {len(taus)}), got {tuple(values.shape)}")
    if len(values) < FEWEST_SEEDS:  # resampled from four, nominal 95 % cover 86 to 91 %, from two about half
        raise ValueError(f"an interval needs at least {FEWEST_SEEDS} seeds, got {len(values)}")
    window, n = fit_window(profile)
    if int(window.sum()) < _FEWEST_DISTANCES:
        raise ValueError(
            f"only {int(window.sum())} distances between {_TAIL * n:.0f} and {n}, where J falls to the floor or the "
            f"sequence ends: a rate needs at least {_FEWEST_DISTANCES}"
        )
    source = torch.Generator().manual_seed(0) if generator is None else generator
    picks = torch.randint(len(values), (n_resamples, len(values)), generator=source)
    taus, values = taus[window].double(), values[:, window]
    rates = _slope(taus, _log_median(values[picks], 1))
    edge = (1 - confidence) / 2
    low, high = (float(rates.quantile(q)) for q in (edge, 1 - edge))
    log_j = _log_median(values, 0)
    rate = float(_slope(taus, log_j))
    roundoff = torch.finfo(profile.values.dtype).eps / n
    r2_exponential, r2_power = _explained(taus, log_j), _explained(taus.log(), log_j)
    falls = max(rate, high) < -roundoff and r2_exponential > r2_power
    return DecayRate(rate, (low, high), -math.log(2) / rate if falls else None, r2_exponential, r2_power)


def fitted(profile: GradientProfile) -> Gradient:
    """Return the profile with its decay rate, if one can be fitted."""
    gradient = Gradient(profile, None)
    if gradient.reach is not None:
        return gradient
    try:
        return Gradient(profile, decay_rate(profile))
    except ValueError:  # too few distances above roundoff, or too few draws
        return gradient


def fit_window(profile: GradientProfile) -> tuple[Bool[Tensor, " distances"], int]:
    """Return a mask of the distances that `decay_rate` fits, and n: the first distance below the floor, or seq_len."""
    median = profile.median
    above = median > _floor(profile)
    reached = above.long().cumprod(0).bool()
    n = profile.seq_len if bool(reached.all()) else int(profile.distances[int(reached.sum())])
    return reached & (profile.distances >= max(1.0, _TAIL * n)), n


def _floor(profile: GradientProfile) -> Float[Tensor, ""]:
    """Return the smallest J that is reliable."""
    return _FLOOR * torch.finfo(profile.values.dtype).eps * profile.median.max()


def _log_median(values: Tensor, axis: int) -> Tensor:
    """Return the log of the median, which unlike the median of logs is not dominated by seeds with J = 0."""
    return values.quantile(0.5, dim=axis).clamp(min=torch.finfo(torch.float64).tiny).log()


def _slope(x: Float[Tensor, " points"], y: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch"]:
    centred = x - x.mean()
    return ((y - y.mean(-1, keepdim=True)) * centred).sum(-1) / centred.square().sum()


def _explained(x: Float[Tensor, " points"], y: Float[Tensor, " points"]) -> float:
    """Return R^2 of the least-squares line; 1 if y is constant."""
    centred, total = x - x.mean(), y - y.mean()
    left = total - _slope(x, y) * centred
    size = total.square().sum()
    return 1.0 if size <= len(y) * torch.finfo(y.dtype).eps ** 2 else float(1 - left.square().sum() / size)
