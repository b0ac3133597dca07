"""How many heads a trained model uses: layer by layer, what its operators span and what its task needs of them.

The span of a layer says how many heads it takes to copy the layer. How many of them the model's task needs is another
number, the functional heads: the layer is cut to its H best operators (`zoo.theory.truncation`), read on some
sequences, and the model is scored on others.
"""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from zoo.backbone import Backbone
from zoo.blocks import ResidualBlock, Stack
from zoo.contract import SequenceMixer
from zoo.theory.channels import PASSES, channelwise
from zoo.theory.measure import (
    EXACT_WIDTH,
    GRADIENT_SKETCH,
    SKETCH,
    WIDE,
    Gradient,
    Progress,
    fitted,
    layer_inputs,
    layer_profile,
    read_spectrum,
    streams,
)
from zoo.theory.operator import interaction, positions_at_once
from zoo.theory.processes import measured
from zoo.theory.state_size import StateSize, effective_state_size
from zoo.theory.truncation import SPARE, Basis, cut, span_basis

Score = Callable[[Float[Tensor, "batch seq n_outputs"]], float]
"""How good the outputs of a model are; larger is better."""

GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of operators to which a layer is cut."""

KEPT = 0.99
"""Share of the model's score that a cut layer must keep."""

BUDGET = 1800.0
"""CPU seconds that layers may be measured for unless asked otherwise: fifteen minutes on two cores."""

QUANTITIES = ("spectrum", "state size", "gradient", "functional heads")
"""What is measured for a layer, in this order."""

_STATE_POSITIONS = 3  # at which the effective state size is read, evenly spread
_KEPT_OF_A_POSITION = 32  # numbers that a pass keeps, in widths of the model, besides attention's weights
_LARGEST_OPERATOR = 2**27  # numbers of an operator that is held whole: 1 GiB
_READ_OF_WIDE = 4  # sequences from which the operators of a wide layer are taken
_TO_HOLD = 20  # passes of a sequence that check whether a wide layer mixes channel by channel there
_LOOKED_AT = 8  # positions at which it is looked up how a layer is read
_SKETCHED_CHANNELS = 8  # of a wide layer that is read by a sketch
_LARGEST_PARTS = 2**26  # numbers of what is held of the sequences that are cut together
_FEW_PRODUCTS = 1e11  # products of weights and positions, up to which a cut model is scored at every number of the grid
_A_SECOND = 4e10  # such products that a core does in a second, about


class CutScores(NamedTuple):
    """Scores of a model one of whose layers is cut to its best operators.

    Attributes:
        whole: the model's own score.
        scores: number of operators -> score; from none at all to at most as many as the layer spans. Of a large model
            those that a bisection meets, from the largest on.
    """

    whole: float
    scores: Mapping[int, float]

    @property
    def functional_heads(self) -> int | None:
        """The fewest operators from which on every tested number keeps `KEPT` of the score.

        None if none does, and of a score that is not above zero: it leaves nothing to keep.
        """
        least = None
        if self.whole <= 0:
            return None
        for count in sorted(self.scores, reverse=True):
            if self.scores[count] < KEPT * self.whole:
                break
            least = count
        return least


@dataclass(frozen=True)
class LayerHeads:
    """A layer of a model.

    Attributes:
        name: its place and its mixer.
        n_heads: heads that its mixer has; None where it has none, or is a stack of several that have some.
        rank: singular values of its operator span above the threshold of `spectrum_rank`; None where no operator can be
            read, as of a module that marks no coefficients: then there are no heads, state size or cut either.
        rank_limit: the largest rank that a sketch could have seen; None for an exact spectrum.
        sources: source positions that the spectrum is estimated from; None where it is exact or a sketch of all.
        heads: relative error -> heads needed for it.
        state_size: effective state size; None where the operator is too large to be held.
        gradient: against distance.
        cut: scores of the model with this layer cut; None where they were not asked for.
    """

    name: str
    n_heads: int | None
    rank: int | None
    rank_limit: int | None
    sources: int | None
    heads: Mapping[float, int]
    state_size: StateSize | None
    gradient: Gradient
    cut: CutScores | None


def measure_heads(
    backbone: Backbone,
    inputs: Shaped[Tensor, "batch seq *d_input"],
    others: Shaped[Tensor, "n seq_of_others *d_input"] | None = None,
    score: Score | None = None,
    grid: Sequence[int] = GRID,
    progress: Progress | None = None,
    processes: int = 1,
) -> list[LayerHeads]:
    """Return one row per layer of a model, which stays as it is.

    Spectra, state sizes and gradients are measured in float64. A cut layer costs its width times the length of the
    sequence in forward passes, or at most the length where it is wide and mixes channel by channel, and is measured in
    float32. `seconds_needed` and `memory_needed` say beforehand what it takes.

    Args:
        backbone: the model.
        inputs: where operators are read: spectrum and state size at the first sequence, gradients at all of them, the
            operators to which a layer is cut from all of them, in wide layers from the first four.
        others: sequences on which the cut model is scored; by default no layer is cut.
        score: of the model's outputs at `others`; by default `agreement` with what the whole model answers.
        grid: numbers of operators to which a layer is cut.
        progress: called with the row and the quantity that is measured next.
        processes: that share the layers, with a thread and one step's memory each; of a model on the CPU.

    Raises:
        MemoryError: a process was killed.
        ValueError: inputs that the model does not take.
    """
    _check_grid(grid)
    model = copy.deepcopy(backbone).double().eval()
    device = next(model.parameters()).device
    inputs = inputs.to(device)
    light = copy.deepcopy(backbone).float().eval()
    scored = None if others is None else list(streams(light, others.to(device)))
    reached = [] if scored is None else layer_inputs(light, inputs)
    whole = 1.0
    if scored is not None:
        with torch.no_grad():
            outputs = light.read_out(scored[-1])
            score = agreement(outputs) if score is None else score
            whole = score(outputs)
    layers = layer_inputs(model, inputs)

    def measure(at: int, progress: Progress) -> LayerHeads:
        name, mixer, x = layers[at]
        progress(name, "spectrum")
        read = read_spectrum(mixer, x[:1])
        progress(name, "state size")
        state_size = None if read.rank is None else _state_size(mixer, x[:1])
        progress(name, "gradient")
        gradient = fitted(layer_profile(mixer, x))
        progress(name, "functional heads")
        scores = None
        if read.rank is not None and scored is not None and score is not None:
            few = slice(None) if mixer.d_out * mixer.d_model <= EXACT_WIDTH else slice(_READ_OF_WIDE)
            scores = cut_scores(light, at, reached[at].x[few], scored[at], score, grid, whole)
        return LayerHeads(
            name=name,
            n_heads=_n_heads(mixer),
            rank=read.rank,
            rank_limit=read.limit,
            sources=read.sources,
            heads=read.heads,
            state_size=state_size,
            gradient=gradient,
            cut=scores,
        )

    if device.type != "cpu":
        processes = 1
    return measured(measure, len(layers), processes, progress or (lambda row, quantity: None))


def cut_scores(
    model: Backbone,
    at: int,
    read_at: Float[Tensor, "batch seq d_model"],
    stream: Float[Tensor, "n seq_of_others d_model"],
    score: Score,
    grid: Sequence[int] = GRID,
    whole: float | None = None,
) -> CutScores:
    """Return scores of the model with the mixer of layer `at` cut to its best operators.

    Of a large model only at as many numbers of the grid as a bisection takes: the largest, and if that keeps the score
    those between which it is lost.

    Args:
        model: in eval mode.
        at: number of the layer, from 0.
        read_at: what reaches the mixer, where its operators are read.
        stream: what reaches the layer on the sequences that are scored.
        score: of the model's outputs.
        grid: numbers of operators; those beyond what the layer spans are left out.
        whole: score of the model as it is; computed unless given.

    Raises:
        ValueError: a grid of numbers below zero.
    """
    _check_grid(grid)
    layer = model.layers.chain()[at]
    block = layer if isinstance(layer, ResidualBlock) else None
    mixer = layer if block is None else block.mixer
    basis = span_basis(mixer, read_at, max(1, *grid))
    with torch.no_grad():
        x = stream if block is None else block.mixer_input(stream)

    def scored(y: Tensor) -> float:
        with torch.no_grad():
            now = y if block is None else block.mix_channels(block.add_mixed(stream, y))
            for after in model.layers.chain()[at + 1 :]:
                now = after(now)
            return score(model.read_out(now))

    if whole is None:
        with torch.no_grad():
            whole = scored(mixer(x))
    most = len(basis.operators)
    counts = sorted({min(count, most) for count in grid})
    outputs = dict(zip(counts, _cut_outputs(mixer, basis, x, counts), strict=True))
    scores: dict[int, float] = {}

    def keeps(count: int) -> bool:
        scores[count] = scored(outputs[count])
        return scores[count] >= KEPT * whole

    if len(counts) * x.shape[0] * x.shape[1] * sum(p.numel() for p in model.parameters()) <= _FEW_PRODUCTS:
        for count in counts:
            keeps(count)
    elif keeps(counts[-1]):
        bisect.bisect_left(counts[:-1], True, key=keeps)
    return CutScores(whole, dict(sorted(scores.items())))


def _cut_outputs(
    mixer: SequenceMixer, basis: Basis, x: Float[Tensor, "n seq d_model"], counts: Sequence[int]
) -> Float[Tensor, "counts n seq d_out"]:
    """Return the outputs of the mixer cut to each number of operators, a few sequences at a time."""
    of_a_sequence = max(counts) * x.shape[1] * (x.shape[1] + 2 * x.shape[2])
    found = []
    for some in x.split(max(1, _LARGEST_PARTS // max(1, of_a_sequence))):
        offset, parts = cut(mixer, basis, some)
        found.append(torch.stack([offset + parts[:count].sum(0) for count in counts]))
    return torch.cat(found, dim=1)


def _check_grid(grid: Sequence[int]) -> None:
    """Raise ValueError unless all are numbers of operators."""
    if not grid or min(grid) < 0:
        raise ValueError(f"grid must hold numbers of operators, at least 0, got {list(grid)}")


def agreement(outputs: Float[Tensor, "n seq n_outputs"]) -> Score:
    """Score by the share of positions at which the largest output is that of `outputs`."""
    answers = outputs.argmax(-1)
    return lambda others: float((others.argmax(-1) == answers).double().mean())


def accuracy(labels: Tensor) -> Score:
    """Score by the share of labelled positions that are answered right.

    Args:
        labels: classes (n, seq), -100 where there is none.
    """
    labelled = labels != -100

    def score(outputs: Tensor) -> float:
        right = outputs.argmax(-1) == labels
        return float(right[labelled].double().mean())

    return score


def explained(labels: Tensor) -> Score:
    """Score by the share of the labels' variance that the outputs explain, R^2.

    Args:
        labels: (n, seq, n_outputs), NaN where there is none.
    """
    labelled = ~labels.isnan()

    def score(outputs: Tensor) -> float:
        wanted = labels[labelled].double()
        left = (outputs[labelled] - wanted).square().sum()
        return float(1 - left / (wanted - wanted.mean()).square().sum())

    return score


def seconds_needed(model: Backbone, seq_len: int, n_inputs: int, n_others: int) -> float:
    """Predict the CPU seconds that `measure_heads` takes, from the weights that it multiplies: within a factor of two.

    Args:
        model: the model.
        seq_len: of all sequences.
        n_inputs: sequences at which operators are read.
        n_others: sequences on which cut models are scored; 0 where no layer is cut.
    """
    total = sum(p.numel() for p in model.parameters())
    if model.embedding is not None and model.head is not None and model.head.weight is not model.embedding.weight:
        total -= model.embedding.weight.numel()  # it is looked up
    tests = 1 + math.ceil(math.log2(len(GRID)))
    products = 0.0
    for layer in model.layers.chain():
        mixer = layer.mixer if isinstance(layer, ResidualBlock) else layer
        spectrum, basis, cut_one = _passes(mixer, seq_len, n_inputs)
        backward = mixer.d_out if mixer.d_out <= WIDE else GRADIENT_SKETCH
        passes = 2 * (spectrum + n_inputs * (1 + 2 * backward))  # in float64, which takes twice as long
        if n_others:
            passes += basis + n_others * cut_one
            products += tests * n_others * total / 2
        products += passes * sum(p.numel() for p in mixer.parameters())
    return products * seq_len / _A_SECOND


def others_within(model: Backbone, seq_len: int, n_inputs: int, most: int = 24) -> int:
    """Return on how many sequences cut models can be scored within `BUDGET`: at least one."""
    one, two = (seconds_needed(model, seq_len, n_inputs, n_others) for n_others in (1, 2))
    return max(1, min(most, 1 + int((BUDGET - one) / (two - one))))


def _passes(mixer: SequenceMixer, seq_len: int, n_inputs: int) -> tuple[int, int, int]:
    """Return how many passes of a sequence read a layer's spectrum, its leading operators, and cut one sequence."""
    every = seq_len * mixer.d_model
    if mixer.d_out * mixer.d_model <= EXACT_WIDTH:
        return every, n_inputs * every, every
    few = torch.randn(1, min(seq_len, _LOOKED_AT), mixer.d_model, generator=torch.Generator().manual_seed(0))
    layer = copy.deepcopy(mixer).float()
    with channelwise(layer, few.to(next(layer.parameters()).device)) as found:
        if found is None:
            return SKETCH * _SKETCHED_CHANNELS, 2 * min(n_inputs, _READ_OF_WIDE) * every, every
        every, held = math.ceil(seq_len / found.per_pass), min(n_inputs, _READ_OF_WIDE)
        return _TO_HOLD + min(PASSES, every), held * _TO_HOLD + min(PASSES, held * every), _TO_HOLD + every


def memory_needed(model: Backbone, seq_len: int, n_inputs: int, n_others: int, processes: int = 1) -> int:
    """Estimate the bytes that `measure_heads` needs: its copies of the model, what reaches each layer, and one step.

    An estimate, since what a pass keeps differs between mixers. The arguments are those of `seconds_needed`, and the
    processes, each of which takes a step of its own.
    """
    layers = model.layers.chain()
    width = max(layer.d_model for layer in layers)
    n_heads = max(getattr(mixer, "n_heads", 0) for mixer in model.modules())
    cut = n_others > 0
    copies = (8 + 4 * cut) * sum(p.numel() for p in model.parameters())
    streams = (8 + 4 * cut) * len(layers) * (n_inputs + cut * n_others) * seq_len * width
    held = seq_len**2 * width**2
    operator = 3 * 8 * held if held <= _LARGEST_OPERATOR else 0
    basis = 3 * 8 * SPARE * max(GRID) * width**2 if cut else 0
    outputs = 4 * len(GRID) * n_others * seq_len * width
    parts = 4 * 4 * max(_LARGEST_PARTS, max(GRID) * seq_len * (seq_len + 2 * width)) if width**2 > EXACT_WIDTH else 0
    one_pass = 8 * max(seq_len, positions_at_once(width)) * (_KEPT_OF_A_POSITION * width + 2 * n_heads * seq_len)
    return copies + streams + processes * max(operator, basis, one_pass, outputs + cut * parts)


def _n_heads(mixer: SequenceMixer) -> int | None:
    """Count a mixer's heads; in a stack, such as a Canon layer and a mixer, those of the one member with any."""
    if not isinstance(mixer, Stack):
        return getattr(mixer, "n_heads", None)
    found = [count for member in mixer.chain() if (count := _n_heads(member)) is not None]
    return found[0] if len(found) == 1 else None


def _state_size(mixer: SequenceMixer, x: Float[Tensor, "1 seq d_model"]) -> StateSize | None:
    seq_len = x.shape[1]
    if seq_len < 2 or seq_len**2 * mixer.d_out * mixer.d_model > _LARGEST_OPERATOR:
        return None
    positions = {max(1, seq_len * place // (_STATE_POSITIONS + 1)) for place in range(1, _STATE_POSITIONS + 1)}
    return effective_state_size(interaction(mixer, x).operator[0], sorted(positions))
