"""The paper's comparison table, measured: one row per mixer, or per layer of a trained model.

Rank, heads for an error, gradient decay on random and on highway input, cost against length, input dependence, sizes;
next to the rank stands what the algebra of the mixer predicts (Ghodsi 2512.15115). Every number is measured on the
layer itself by the functions of `zoo.theory`; this module chooses inputs and sizes and keeps the results together.
"""

from __future__ import annotations

import bisect
import copy
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from zoo.backbone import Backbone
from zoo.blocks import ResidualBlock, Stack
from zoo.contract import SequenceMixer
from zoo.mixers.hybrid import DEFAULT_PATTERN, Hybrid, member_options
from zoo.mixers.parallel_hybrid import ParallelHybrid
from zoo.registry import MIXERS, create_mixer, mixer_class
from zoo.targets import short
from zoo.theory.channels import channel_spectrum, channelwise
from zoo.theory.costs import Complexity, check_lengths, complexity, input_dependence
from zoo.theory.gradients import (
    FEWEST_SEEDS,
    DecayRate,
    GradientProfile,
    Layer,
    decay_rate,
    draw_seeds,
    drawn_from,
    gradient_profile,
    highway_profile,
    profile_at,
    spaced,
)
from zoo.theory.operator import OperatorError, offset_share, replayed
from zoo.theory.rank import effective_rank, heads_needed, span_spectrum, spectrum_rank
from zoo.validate import require_positive

REL_ERRORS = (0.1, 0.01, 0.001)
"""Relative errors (in norm) for which heads are counted."""

STATE_LENGTHS = (1024, 65536)
"""Lengths at which the bytes of the state are given."""

Progress = Callable[[str, str], None]
"""Called with the row and the quantity that is measured next."""

QUANTITIES = ("spectrum", "offset", "gradient", "highway", "cost", "input dependence")
"""What is measured for a row, in this order."""

EXACT_WIDTH = 1024
"""d_out * d_in up to which the spectrum is exact: a second or two on one core."""

SKETCH = 16
"""Gaussian vectors over time with which the spectrum of a wider layer is sketched."""

GRADIENT_SKETCH = 4
"""Gaussian vectors for each seed with which the gradient profile of a wide layer is sketched."""

WIDE = 128
"""Channels beyond which it is."""

_NORM_PROBES = 8
_HIGHWAY_DISTANCES = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements.

    Args:
        d_model: width of the fresh mixers; a trained model has its own.
        seq_len: positions of the operator: rank, heads and input dependence.
        n_heads: for the mixers that have heads; their own number when None.
        gradient_len: positions of the gradient profiles.
        lengths: at which time and memory are measured.
        repeats: timed runs per length.
        seed: of every draw.
        n_seeds: draws of weights and input for the gradient's interval, five or more.
        device: where layers and inputs live.
        cut_to: the longest sequence that the model takes, where that made the sizes smaller; see `sizes_within`.

    Raises:
        ValueError: a size that is not positive, fewer than five seeds, gradient_len below 16, lengths that
            `complexity` refuses.
    """

    d_model: int = 16
    seq_len: int = 64
    n_heads: int | None = 4
    gradient_len: int = 256
    lengths: tuple[int, ...] = (512, 1024, 2048)
    repeats: int = 3
    seed: int = 0
    n_seeds: int = 8
    device: str = "cpu"
    cut_to: int | None = None

    def __post_init__(self) -> None:
        require_positive(
            d_model=self.d_model,
            seq_len=self.seq_len,
            n_heads=self.n_heads,
            gradient_len=self.gradient_len,
            repeats=self.repeats,
            n_seeds=self.n_seeds,
        )
        for name, value, least in (("n_seeds", self.n_seeds, FEWEST_SEEDS), ("gradient_len", self.gradient_len, 16)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        check_lengths(self.lengths)
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")


@dataclass(frozen=True)
class Gradient:
    """A gradient profile with its rate.

    The rate is None where the gradient ends (`reach`), or too few distances lie above roundoff to fit one, or there are
    too few draws for an interval.
    """

    profile: GradientProfile
    decay: DecayRate | None

    @property
    def reach(self) -> int | None:
        """The farthest distance from which a gradient arrives at all; None if that is the farthest measured."""
        arrives = self.profile.distances[(self.profile.values > 0).any(0)]
        reach = int(arrives.max()) if len(arrives) else 0
        return None if reach == int(self.profile.distances[-1]) else reach


@dataclass(frozen=True)
class Measurement:
    """One row of the table.

    Attributes:
        name: mixer, or layer of a trained model.
        spectrum: singular values of the operator span, largest first. Empty where no operator can be read, as of a
            module that marks no coefficients; then there are no heads, and rank, effective rank and so on are None.
        rank: values above the threshold of `spectrum_rank`.
        rank_limit: the largest rank that a sketch could have seen; None for an exact spectrum.
        predicted_rank: see `SequenceMixer.predicted_rank`; None where no law is known.
        heads: relative error -> heads needed for it.
        effective_rank: exp of the entropy of the spectrum's energies.
        offset_share: |c| / |y| where the spectrum is read: the part of the output that is not in W.
        noise: gradient on random input; for a layer of a model, on what reaches it.
        highway: gradient on the mixer's own highway input; None where it knows none.
        cost: time and memory of a training pass.
        input_dependence: 0 for a fixed operator, sqrt(2) where operators of two inputs are orthogonal.
        n_params: trainable numbers.
        state_bytes: length -> bytes of the streaming state in float32; None where the mixer takes no sequence so long
            or does not stream.
        seconds: what the row took, wall clock.
        sources: source positions that the spectrum is estimated from; None where it is exact or a sketch of all.
    """

    name: str
    spectrum: tuple[float, ...]
    rank: int | None
    rank_limit: int | None
    predicted_rank: int | None
    heads: Mapping[float, int]
    effective_rank: float | None
    offset_share: float | None
    noise: Gradient
    highway: Gradient | None
    cost: Complexity
    input_dependence: float | None
    n_params: int
    state_bytes: Mapping[int, int | None]
    seconds: float
    sources: int | None = None

    @property
    def as_predicted(self) -> bool | None:
        """Whether the measured rank is the predicted one, as far as it could be seen; None without prediction."""
        if self.predicted_rank is None or self.rank is None:
            return None
        return self.rank == min(self.predicted_rank, self.rank_limit or self.predicted_rank)


class LayerInput(NamedTuple):
    """A mixer inside a backbone, and what reaches it."""

    name: str
    mixer: SequenceMixer
    x: Tensor  # (batch, seq, d_model)


def measure_mixers(
    names: Iterable[str] | None = None, sizes: Sizes | None = None, progress: Progress | None = None
) -> list[Measurement]:
    """Return one row per mixer, freshly drawn, in float64.

    Args:
        names: which; default all that are registered.
        sizes: default `Sizes()`.
        progress: see `Progress`.

    Raises:
        ValueError: an unknown name, or sizes that a mixer refuses; before anything is measured.
    """
    sizes = sizes or Sizes()
    rows = []
    for name, make in _makers(names, sizes).items():
        # The first of the draws is read as an operator, the gradient is over all of them.
        layer = drawn_from(draw_seeds(sizes.seed, 1)[0], make)
        generator = torch.Generator().manual_seed(sizes.seed)
        x = torch.randn(2, sizes.seq_len, layer.d_model, generator=generator, dtype=torch.float64).to(sizes.device)
        rows.append(_measure(name, layer, x, make, functools.partial(_profile, make, sizes), sizes, progress))
    return rows


def measure_gradients(
    names: Iterable[str] | None = None, sizes: Sizes | None = None, progress: Progress | None = None
) -> dict[str, tuple[Gradient, Gradient | None]]:
    """Measure only the gradients of `measure_mixers`: name -> (on random input, on highway input or None).

    Raises:
        ValueError: see `measure_mixers`.
    """
    sizes = sizes or Sizes()
    found = {}
    for name, make in _makers(names, sizes).items():
        if progress is not None:
            progress(name, "gradient")
        found[name] = (fitted(_profile(make, sizes)), _highway(make, sizes))
    return found


def _makers(names: Iterable[str] | None, sizes: Sizes) -> dict[str, Callable[[int], SequenceMixer]]:
    """Return a maker for each name, each tried once: what a mixer refuses is refused before anything is measured."""
    chosen = list(MIXERS) if names is None else [MIXERS.check(name) for name in names]
    makers = {short(name): _maker(name, sizes) for name in chosen}
    for make in makers.values():
        drawn_from(sizes.seed, make)
    return makers


def _profile(layer: Layer, sizes: Sizes) -> GradientProfile:
    return gradient_profile(layer, seeds=draw_seeds(sizes.seed, sizes.n_seeds), seq_len=sizes.gradient_len)


def _maker(name: str, sizes: Sizes) -> Callable[[int], SequenceMixer]:
    cls = mixer_class(name)
    declared = set(inspect.signature(cls).parameters)
    if cls in (Hybrid, ParallelHybrid):
        declared |= {option for member in DEFAULT_PATTERN for option in member_options(member)}
    longest = max(*sizes.lengths, sizes.gradient_len, sizes.seq_len)
    offered = {"n_heads": sizes.n_heads, "max_seq_len": longest}
    options = {key: value for key, value in offered.items() if key in declared and value is not None}
    return lambda _: create_mixer(name, sizes.d_model, **options).double().to(sizes.device)


def sizes_within(backbone: Backbone, sizes: Sizes) -> Sizes:
    """Return the sizes, or where they are longer than a sequence that every layer takes, smaller ones that are not.

    Lengths of costs keep their proportions.

    Raises:
        ValueError: the sequences are too short to measure.
    """
    wanted = max(*sizes.lengths, sizes.gradient_len, sizes.seq_len)
    longest = min(_longest(layer, wanted) for layer in backbone.layers.chain())
    if longest == wanted:
        return sizes
    most = max(sizes.lengths)
    lengths = sizes.lengths if most <= longest else tuple(length * longest // most for length in sizes.lengths)
    try:
        return replace(
            sizes,
            lengths=lengths,
            gradient_len=min(sizes.gradient_len, longest),
            seq_len=min(sizes.seq_len, longest),
            cut_to=longest,
        )
    except ValueError as error:
        raise ValueError(f"the model takes sequences of up to {longest} positions: {error}") from None


def _longest(layer: SequenceMixer, wanted: int) -> int:
    """Return the longest sequence up to `wanted` that the layer takes."""

    def refuses(length: int) -> bool:
        return layer.streams and _state_bytes(layer, length) is None

    return bisect.bisect_left(range(1, wanted), True, key=refuses) if refuses(wanted) else wanted


def measure_backbone(
    backbone: Backbone,
    sizes: Sizes | None = None,
    inputs: Shaped[Tensor, "batch seq *d_input"] | None = None,
    progress: Progress | None = None,
) -> list[Measurement]:
    """Return one row per layer of a (trained) model: its mixer, at what reaches it there.

    The noise of the gradient profile is what reaches the layer from random inputs of the model, whose weights are the
    same for all seeds. The model itself is left as it is.

    Args:
        backbone: the model.
        sizes: d_model and n_heads are the model's own; made smaller for a model that takes no sequences so long, see
            `sizes_within`.
        inputs: at least two sequences for rank, heads and input dependence; default `random_inputs`.
        progress: see `Progress`.

    Raises:
        ValueError: inputs that the model does not take, or fewer than two; see `sizes_within`.
    """
    sizes = sizes_within(backbone, sizes or Sizes())
    model = copy.deepcopy(backbone).double().to(sizes.device).eval()
    if inputs is None:
        inputs = random_inputs(model, 2, sizes.seq_len, torch.Generator().manual_seed(sizes.seed))
    if len(inputs) < 2:
        raise ValueError(f"measure_backbone needs at least two inputs, got {len(inputs)}")
    inputs = inputs.to(sizes.device)
    noise = random_inputs(model, sizes.n_seeds, sizes.gradient_len, torch.Generator().manual_seed(sizes.seed + 1))
    rows = []
    for (name, layer, x), (*_, at) in zip(layer_inputs(model, inputs), layer_inputs(model, noise), strict=True):
        profile = functools.partial(layer_profile, layer, at)
        rows.append(_measure(name, layer, x, layer, profile, sizes, progress))
    return rows


def layer_inputs(backbone: Backbone, inputs: Shaped[Tensor, "batch seq *d_input"]) -> list[LayerInput]:
    """Return each layer's mixer with what reaches it, first layer first; in a residual block often the normed stream.

    Args:
        backbone: run as it is, without gradients.
        inputs: tokens, or vectors, which take the model's dtype.
    """
    found = []
    with torch.no_grad():
        for at, (layer, x) in enumerate(zip(backbone.layers.chain(), streams(backbone, inputs), strict=False)):
            mixer, reaching = (layer.mixer, layer.mixer_input(x)) if isinstance(layer, ResidualBlock) else (layer, x)
            found.append(LayerInput(f"layer {at}: {_mixer_name(mixer)}", mixer, reaching))
    return found


@torch.no_grad()
def streams(backbone: Backbone, inputs: Shaped[Tensor, "batch seq *d_input"]) -> Iterator[Tensor]:
    """Yield what reaches each layer, then what the last one gives; see `layer_inputs`."""
    if inputs.is_floating_point():
        inputs = inputs.to(next(backbone.parameters()).dtype)
    x = backbone.embed(inputs)
    yield x
    for layer in backbone.layers.chain():
        x = layer(x)
        yield x


def random_inputs(
    backbone: Backbone, batch_size: int, seq_len: int, generator: torch.Generator
) -> Shaped[Tensor, "batch seq *d_input"]:
    """Draw tokens evenly from the vocabulary, or standard normal vectors, in the model's dtype and on its device."""
    like = next(backbone.parameters())
    if backbone.vocab_size is not None:
        return torch.randint(backbone.vocab_size, (batch_size, seq_len), generator=generator).to(like.device)
    width = backbone.d_model if backbone.in_proj is None else backbone.in_proj.in_features
    return torch.randn(batch_size, seq_len, width, generator=generator, dtype=torch.float64).to(like)


class SpectrumRead(NamedTuple):
    """Singular values of an operator span, and how they were read.

    Attributes:
        values: largest first; none where the operator cannot be read.
        limit: the largest rank that they can show; None for every rank there is.
        sources: the source positions that they are estimated from; None where no position is left out.
    """

    values: Float[Tensor, " singular"]
    limit: int | None = None
    sources: int | None = None

    @property
    def rank(self) -> int | None:
        """See `spectrum_rank`; None where the operator cannot be read."""
        return int(spectrum_rank(self.values)) if len(self.values) else None

    @property
    def heads(self) -> dict[float, int]:
        """The heads needed for each of `REL_ERRORS`; none where the operator cannot be read."""
        return {error: int(heads_needed(self.values, error)) for error in REL_ERRORS if len(self.values)}


def spectrum_at(
    layer: SequenceMixer, x: Float[Tensor, "1 seq d_model"], seed: int = 0, sketch: int = SKETCH
) -> SpectrumRead:
    """Return singular values of the operator span at x.

    Exact up to d_out * d_in = 1,024. Beyond, `channel_spectrum` of layers that mix channel by channel, where the limit
    is None unless the sample has fewer rows than the layer has groups; of others a random sketch (see `span_spectrum`
    for what it understates).
    """
    if layer.d_out * layer.d_model <= EXACT_WIDTH:
        return SpectrumRead(span_spectrum(layer, x)[0])
    generator = torch.Generator().manual_seed(seed)
    with channelwise(layer, x) as channels:
        if channels is not None:
            found, n_sources = channel_spectrum(channels, generator)
            limit = None if len(found) == channels.n_groups else len(found)
            return SpectrumRead(found.to(x.dtype), limit, None if n_sources == channels.seq_len else n_sources)
    spectrum = span_spectrum(layer, x, sketch, generator=generator)[0]
    return SpectrumRead(spectrum, len(spectrum))


def read_spectrum(layer: SequenceMixer, x: Tensor, seed: int = 0) -> SpectrumRead:
    """Return `spectrum_at`, or an empty spectrum where a layer's operator cannot be read, as without coefficients."""
    try:
        return spectrum_at(layer, x, seed)
    except OperatorError:
        return SpectrumRead(torch.empty(0))


def operator_norms(layer: SequenceMixer, x: Float[Tensor, "1 seq d_model"]) -> Float[Tensor, "seq seq"]:
    """||W_ij||_F of the layer's operator at x, a few rows at a time: the operator is never held whole.

    Exact up to d_out = 8. Beyond, 8 Gaussian vectors g stand for the output channels, E ||g^T W_ij||^2 = ||W_ij||^2:
    right within some tens of per cent, which a picture over decades does not show.
    """
    with replayed(layer, x) as held:
        if held.d_out <= _NORM_PROBES:
            probes = torch.eye(held.d_out).to(x)
        else:
            generator = torch.Generator().manual_seed(0)
            draw = torch.randn(_NORM_PROBES, held.d_out, generator=generator, dtype=torch.float64)
            probes = draw.to(x) / _NORM_PROBES**0.5
        norms = []
        for some in torch.arange(held.seq_len, device=x.device).split(max(1, held.probes_at_once() // len(probes))):
            cotangents = x.new_zeros(len(some), len(probes), 1, held.seq_len, held.d_out)
            cotangents[torch.arange(len(some)), :, 0, some] = probes
            rows = held.rmatvec(cotangents.flatten(0, 1)).unflatten(0, (len(some), -1))
            norms.append(torch.linalg.vector_norm(rows[:, :, 0], dim=(1, 3)))
    return torch.cat(norms)


def layer_profile(layer: SequenceMixer, x: Float[Tensor, "seeds seq d_model"]) -> GradientProfile:
    """`profile_at`; of wide layers a sketch."""
    return profile_at(layer, x, GRADIENT_SKETCH if layer.d_out > WIDE else None)


def _highway(layer: Layer, sizes: Sizes) -> Gradient | None:
    # The needle is moved to each distance: a pass for every one of them, where noise needs one for all.
    distances = spaced(sizes.gradient_len, _HIGHWAY_DISTANCES).tolist()
    offered = highway_profile(layer, distances, draw_seeds(sizes.seed, FEWEST_SEEDS), seq_len=sizes.gradient_len)
    return None if offered is None else fitted(offered)


def _measure(
    name: str,
    layer: SequenceMixer,
    x: Tensor,
    made: Layer,
    profile: Callable[[], GradientProfile],
    sizes: Sizes,
    progress: Progress | None,
) -> Measurement:
    def now(quantity: str) -> None:
        if progress is not None:
            progress(name, quantity)

    start = time.perf_counter()
    now("spectrum")
    read = read_spectrum(layer, x[:1], sizes.seed)
    now("offset")
    aside = None if read.rank is None else offset_share(layer, x[:1])
    now("gradient")
    noise = fitted(profile())
    now("highway")
    highway = _highway(made, sizes)
    now("cost")
    # In float32, as models run; what else is measured needs the digits of float64.
    cost = complexity(copy.deepcopy(layer).float(), sizes.lengths, repeats=sizes.repeats)
    now("input dependence")
    moved = None if read.rank is None else input_dependence(layer, x[:2])
    return Measurement(
        name=name,
        spectrum=tuple(read.values.tolist()),
        rank=read.rank,
        rank_limit=read.limit,
        predicted_rank=layer.predicted_rank(sizes.seq_len),
        heads=read.heads,
        effective_rank=None if read.rank is None else float(effective_rank(read.values)),
        offset_share=aside,
        noise=noise,
        highway=highway,
        cost=cost,
        input_dependence=moved,
        n_params=sum(p.numel() for p in layer.parameters() if p.requires_grad),
        state_bytes={length: _state_bytes(layer, length) for length in STATE_LENGTHS},
        seconds=time.perf_counter() - start,
        sources=read.sources,
    )


def fitted(profile: GradientProfile) -> Gradient:
    """Return the profile with its rate, where it has one."""
    gradient = Gradient(profile, None)
    if gradient.reach is not None:
        return gradient
    try:
        return Gradient(profile, decay_rate(profile))
    except ValueError:  # too few distances above roundoff, or too few draws
        return gradient


def _state_bytes(layer: SequenceMixer, seq_len: int) -> int | None:
    """`layer.state_bytes` in float32; None where the layer takes no sequence so long."""
    try:
        return layer.state_bytes(seq_len)
    except ValueError:
        return None


def _mixer_name(mixer: SequenceMixer) -> str:
    """Return the registered name of a mixer; of a stack, of its members."""
    if isinstance(mixer, Stack):
        return " + ".join(_mixer_name(member) for member in mixer.chain())

    def means(name: str) -> bool:
        options = MIXERS.entry(name).options
        return mixer_class(name) is type(mixer) and all(getattr(mixer, k) == value for k, value in options.items())

    # The entry that says most wins: one with options over the class as it comes.
    named = sorted(filter(means, MIXERS), key=lambda name: len(MIXERS.entry(name).options))
    return named[-1] if named else type(mixer).__name__
