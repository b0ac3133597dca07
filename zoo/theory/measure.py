"""Measure the comparison table of `zoo measure`: one row per mixer, or per layer of a trained model.

A row has rank, heads for an error, gradient decay on random and highway input, cost against length, input dependence
and sizes; the rank is compared with the prediction from the mixer's algebra (Ghodsi 2512.15115). The measurements are
functions of `zoo.theory`; this module chooses their inputs and sizes.
"""

from __future__ import annotations

import bisect
import copy
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Shaped
from torch import Tensor

from zoo.backbone import Backbone
from zoo.contract import SequenceMixer
from zoo.mixers.hybrid import DEFAULT_PATTERN, Hybrid, member_options
from zoo.mixers.parallel_hybrid import ParallelHybrid
from zoo.registry import MIXERS, create_mixer, mixer_class
from zoo.targets import short
from zoo.theory.costs import Complexity, check_lengths, complexity, input_dependence
from zoo.theory.gradients import (
    FEWEST_SEEDS,
    Gradient,
    GradientProfile,
    Layer,
    draw_seeds,
    drawn_from,
    fitted,
    gradient_profile,
    highway_profile,
    profile_at,
    spaced,
)
from zoo.theory.layers import layer_inputs, random_inputs
from zoo.theory.operator import offset_share
from zoo.theory.processes import Progress, measured, unreported
from zoo.theory.spectra import SpectrumRead, read_spectrum
from zoo.validate import require_positive, require_seed

STATE_LENGTHS = (1024, 65536)
"""Numbers of tokens after which the state's bytes are counted."""

QUANTITIES = ("spectrum", "offset", "gradient", "highway", "input dependence", "cost")
"""Measurements of a row, in order; costs come last and in one process."""

_HIGHWAY_DISTANCES = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements.

    Args:
        d_model: width of fresh mixers; a trained model has its own.
        seq_len: sequence length for rank, heads and input dependence.
        n_heads: heads of the mixers that have heads; None for their default.
        gradient_len: sequence length of the gradient profiles.
        lengths: sequence lengths for time and memory.
        repeats: timed runs per length.
        seed: seed of every draw.
        n_seeds: draws of weights and input for the gradient's interval, five or more.
        device: device of layers and inputs.
        cut_to: the model's longest sequence, if it reduced the sizes; see `sizes_within`.

    Raises:
        ValueError: a size that is not positive, fewer than five seeds, gradient_len below 16, or lengths that
            `complexity` does not accept.
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
        require_seed(self.seed)


@dataclass(frozen=True)
class Measurement:
    """One row of the table.

    Attributes:
        name: mixer, or layer of a trained model.
        read: spectrum of the operator span.
        predicted_rank: see `SequenceMixer.predicted_rank`; None if no law is known.
        offset_share: |c| / |y| at the input of the spectrum: the part of the output that is not in W.
        noise: gradient on random input; for a layer of a model, on the layer's inputs for random model inputs.
        highway: gradient on the mixer's highway input; None if it has none.
        cost: time and memory of a training pass.
        input_dependence: 0 for a fixed operator, sqrt(2) if the operators of two inputs are orthogonal; None for a zero
            operator.
        n_params: trainable parameters.
        state_bytes: length -> bytes of the streaming state in float32; None if the mixer does not stream or does not
            accept the length.
        seconds: wall-clock time of the row.
    """

    name: str
    read: SpectrumRead
    predicted_rank: int | None
    offset_share: float | None
    noise: Gradient
    highway: Gradient | None
    cost: Complexity
    input_dependence: float | None
    n_params: int
    state_bytes: Mapping[int, int | None]
    seconds: float

    @property
    def as_predicted(self) -> bool | None:
        """Whether the measured rank equals the predicted one, up to the limit of a sketch; None without prediction."""
        if self.predicted_rank is None or self.read.rank is None:
            return None
        return self.read.rank == min(self.predicted_rank, self.read.limit or self.predicted_rank)


def measure_mixers(
    names: Iterable[str] | None = None,
    sizes: Sizes | None = None,
    progress: Progress = unreported,
    processes: int = 1,
) -> list[Measurement]:
    """Measure one row per mixer, with fresh parameters, in float64.

    Args:
        names: mixers; default all that are registered.
        sizes: default `Sizes()`.
        progress: see `Progress`.
        processes: processes of one thread each, for all measurements but the costs; 1 on devices other than the CPU.

    Raises:
        MemoryError: a process was killed.
        ValueError: an unknown name, or sizes that a mixer does not accept; raised before anything is measured.
    """
    sizes = sizes or Sizes()
    makers = list(_makers(names, sizes).items())

    def drawn(make: Callable[[int], SequenceMixer]) -> SequenceMixer:
        # The operator and the costs are measured on the first draw, the gradient on all draws.
        return drawn_from(draw_seeds(sizes.seed, 1)[0], make)

    def measure(at: int, progress: Progress) -> functools.partial[Measurement]:
        name, make = makers[at]
        layer, generator = drawn(make), torch.Generator().manual_seed(sizes.seed)
        x = torch.randn(2, sizes.seq_len, layer.d_model, generator=generator, dtype=torch.float64).to(sizes.device)
        return _measure(name, layer, x, make, functools.partial(_profile, make, sizes), sizes, progress)

    processes = processes if torch.device(sizes.device).type == "cpu" else 1
    rows = measured(measure, len(makers), processes, progress)
    return [_with_cost(row, drawn(make), sizes, progress) for row, (_, make) in zip(rows, makers, strict=True)]


def measure_gradients(
    names: Iterable[str] | None = None, sizes: Sizes | None = None, progress: Progress = unreported
) -> dict[str, tuple[Gradient, Gradient | None]]:
    """Measure only the gradients of `measure_mixers`: name -> (on random input, on highway input or None).

    Raises:
        ValueError: see `measure_mixers`.
    """
    sizes = sizes or Sizes()
    found = {}
    for name, make in _makers(names, sizes).items():
        progress(name, "gradient")
        found[name] = (fitted(_profile(make, sizes)), _highway(make, sizes))
    return found


def _makers(names: Iterable[str] | None, sizes: Sizes) -> dict[str, Callable[[int], SequenceMixer]]:
    """Return a factory for each name; each is called once, so that wrong sizes fail before anything is measured."""
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
    """Reduce the sizes to the longest sequence that all layers accept; the lengths for costs keep their proportions.

    Raises:
        ValueError: that sequence is too short to measure.
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
    """Return the longest sequence up to `wanted` that the layer accepts."""

    def refuses(length: int) -> bool:
        return layer.streams and state_bytes(layer, length) is None

    return bisect.bisect_left(range(1, wanted), True, key=refuses) if refuses(wanted) else wanted


def measure_backbone(
    backbone: Backbone,
    sizes: Sizes | None = None,
    inputs: Shaped[Tensor, "batch seq *d_input"] | None = None,
    progress: Progress = unreported,
) -> list[Measurement]:
    """Measure one row per layer of a (trained) model: its mixer, at the layer's input.

    The gradient is measured at the layer's inputs for random inputs of the model, with the same weights for all seeds.
    The model itself is not changed.

    Args:
        backbone: the model.
        sizes: sizes of the measurements, reduced by `sizes_within`; d_model and n_heads are ignored.
        inputs: at least two sequences for rank, heads and input dependence; default `random_inputs`.
        progress: see `Progress`.

    Raises:
        ValueError: inputs that the model does not accept, or fewer than two; see `sizes_within`.
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
        profile = functools.partial(profile_at, layer, at)
        row = _measure(name, layer, x, layer, profile, sizes, progress)
        rows.append(_with_cost(row, layer, sizes, progress))
    return rows


def _highway(layer: Layer, sizes: Sizes) -> Gradient | None:
    # Each distance has its own input and needs its own pass, so we measure fewer distances than on random input.
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
    progress: Progress,
) -> functools.partial[Measurement]:
    """Measure all of a row but its cost."""
    start = time.perf_counter()
    progress(name, "spectrum")
    read = read_spectrum(layer, x[:1], sizes.seed)
    progress(name, "offset")
    share = None if read.rank is None else offset_share(layer, x[:1])
    progress(name, "gradient")
    noise = fitted(profile())
    progress(name, "highway")
    highway = _highway(made, sizes)
    progress(name, "input dependence")
    dependence = input_dependence(layer, x[:2]) if read.rank else None
    return functools.partial(
        Measurement,
        name=name,
        read=read,
        predicted_rank=layer.predicted_rank(x.shape[1]),
        offset_share=share,
        noise=noise,
        highway=highway,
        input_dependence=dependence,
        n_params=sum(p.numel() for p in layer.parameters() if p.requires_grad),
        state_bytes={length: state_bytes(layer, length) for length in STATE_LENGTHS},
        seconds=time.perf_counter() - start,
    )


def _with_cost(
    row: functools.partial[Measurement], layer: SequenceMixer, sizes: Sizes, progress: Progress
) -> Measurement:
    """Complete the row with its cost, in float32, as models run; the other measurements need float64."""
    start = time.perf_counter()
    progress(row.keywords["name"], "cost")
    cost = complexity(copy.deepcopy(layer).float(), sizes.lengths, repeats=sizes.repeats)
    return row(cost=cost, seconds=row.keywords["seconds"] + time.perf_counter() - start)


def state_bytes(layer: SequenceMixer, seq_len: int) -> int | None:
    """Return `layer.state_bytes` in float32; None if the layer does not stream or does not accept the length."""
    try:
        return layer.state_bytes(seq_len)
    except ValueError:
        return None
