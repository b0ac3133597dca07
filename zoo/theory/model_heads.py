"""How many heads a trained model uses: layer by layer, what its operators span and what its task needs of them.

The span of a layer says how many heads it takes to copy the layer. How many of them the model's task needs is another
number, the functional heads: the layer is cut to its H best operators (`zoo.theory.truncation`), read on some
sequences, and the model is scored on others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from zoo.backbone import Backbone
from zoo.blocks import ResidualBlock, Stack
from zoo.contract import SequenceMixer
from zoo.theory.measure import REL_ERRORS, Gradient, Progress, fitted, layer_inputs, profile_at, read_spectrum
from zoo.theory.operator import POSITIONS_AT_ONCE, interaction
from zoo.theory.rank import heads_needed, spectrum_rank
from zoo.theory.state_size import StateSize, effective_state_size
from zoo.theory.truncation import SPARE, cut, span_basis

Score = Callable[[Float[Tensor, "batch seq n_outputs"]], float]
"""How good the outputs of a model are; larger is better."""

GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of operators to which a layer is cut."""

KEPT = 0.99
"""Share of the model's score that a cut layer must keep."""

QUANTITIES = ("spectrum", "state size", "gradient", "functional heads")
"""What is measured for a layer, in this order."""

_STATE_POSITIONS = 3  # at which the effective state size is read, evenly spread
_KEPT_OF_A_POSITION = 32  # numbers that a pass keeps, in widths of the model, besides attention's weights
_LARGEST_OPERATOR = 2**27  # numbers of an operator that is held whole: 1 GiB


class CutScores(NamedTuple):
    """Scores of a model one of whose layers is cut to its best operators.

    Attributes:
        whole: the model's own score.
        scores: number of operators -> score; from none at all to at most as many as the layer spans.
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
        heads: relative error -> heads needed for it.
        state_size: effective state size; None where the operator is too large to be held.
        gradient: against distance.
        cut: scores of the model with this layer cut; None where they were not asked for.
    """

    name: str
    n_heads: int | None
    rank: int | None
    rank_limit: int | None
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
) -> list[LayerHeads]:
    """Return one row per layer of a model, which stays as it is.

    Spectra, state sizes and gradients are measured in float64. A cut layer costs its width times the length of the
    sequence in forward passes, or at most the length where it is wide and mixes channel by channel, and is measured in
    float32.

    Args:
        backbone: the model.
        inputs: where operators are read: spectrum and state size at the first sequence, gradients at all of them, the
            operators to which a layer is cut from all of them.
        others: sequences on which the cut model is scored; by default no layer is cut.
        score: of the model's outputs at `others`; by default `agreement` with what the whole model answers.
        grid: numbers of operators to which a layer is cut.
        progress: called with the row and the quantity that is measured next.

    Raises:
        ValueError: inputs that the model does not take.
    """
    _check_grid(grid)
    model = copy.deepcopy(backbone).double().eval()
    device = next(model.parameters()).device
    inputs = inputs.to(device)
    light = copy.deepcopy(backbone).float().eval()
    streams = None if others is None else _streams(light, others.to(device))
    reached = [] if streams is None else layer_inputs(light, inputs)
    if score is None and streams is not None:
        with torch.no_grad():
            score = agreement(light.read_out(streams[-1]))
    rows = []
    for at, (name, mixer, x) in enumerate(layer_inputs(model, inputs)):

        def now(quantity: str, name: str = name) -> None:
            if progress is not None:
                progress(name, quantity)

        now("spectrum")
        read = read_spectrum(mixer, x[:1])
        spectrum, limit = (None, None) if read is None else read
        now("state size")
        state_size = None if spectrum is None else _state_size(mixer, x[:1])
        now("gradient")
        gradient = fitted(profile_at(mixer, x))
        now("functional heads")
        scores = None
        if spectrum is not None and streams is not None and score is not None:
            scores = cut_scores(light, at, reached[at].x, streams[at], score, grid)
        rows.append(
            LayerHeads(
                name=name,
                n_heads=_n_heads(mixer),
                rank=None if spectrum is None else int(spectrum_rank(spectrum)),
                rank_limit=limit,
                heads={} if spectrum is None else {e: int(heads_needed(spectrum, e)) for e in REL_ERRORS},
                state_size=state_size,
                gradient=gradient,
                cut=scores,
            )
        )
    return rows


def cut_scores(
    model: Backbone,
    at: int,
    read_at: Float[Tensor, "batch seq d_model"],
    stream: Float[Tensor, "n seq_of_others d_model"],
    score: Score,
    grid: Sequence[int] = GRID,
) -> CutScores:
    """Return scores of the model with the mixer of layer `at` cut to its best operators.

    Args:
        model: in eval mode.
        at: number of the layer, from 0.
        read_at: what reaches the mixer, where its operators are read.
        stream: what reaches the layer on the sequences that are scored.
        score: of the model's outputs.
        grid: numbers of operators; those beyond what the layer spans are left out.

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
    offset, parts = cut(mixer, basis, x)

    def scored(y: Tensor) -> float:
        with torch.no_grad():
            now = y if block is None else block.mix_channels(block.add_mixed(stream, y))
            for after in model.layers.chain()[at + 1 :]:
                now = after(now)
            return score(model.read_out(now))

    most = len(basis.operators)
    counts = [count for count in grid if count < most] + ([most] if most <= max(grid) else [])
    with torch.no_grad():
        whole = scored(mixer(x))
    return CutScores(whole, {count: scored(offset + parts[:count].sum(0)) for count in counts})


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


def _streams(model: Backbone, inputs: Tensor) -> list[Tensor]:
    """Return what reaches each layer, and what the last one gives."""
    if inputs.is_floating_point():
        inputs = inputs.to(next(model.parameters()).dtype)
    with torch.no_grad():
        found = [model.embed(inputs)]
        for layer in model.layers.chain():
            found.append(layer(found[-1]))
    return found


def positions_to_read(
    model: Backbone,
    inputs: Shaped[Tensor, "batch seq *d_input"],
    others: Shaped[Tensor, "n seq_of_others *d_input"],
) -> int:
    """Return at how many positions, at most, the widest layer of a model is run when it is cut by `cut_scores`.

    A wide layer that mixes channel by channel (`zoo.theory.channels`) is read in d_model times fewer, or fewer still.
    """
    width = max(layer.d_model for layer in model.layers.chain())
    return width * sum(len(each) * each.shape[1] ** 2 for each in (inputs, inputs, others))


def memory_needed(model: Backbone, seq_len: int, n_inputs: int, cut: bool) -> int:
    """Estimate the bytes that `measure_heads` needs: its copies of the model, what reaches each layer, and one pass.

    An estimate, since what a pass keeps differs between mixers. At d_model 768 and 512 positions, without cuts, layers
    of attention and of SSD took 2.4 and 2.5 GiB; the estimates are 2.4 and 3.1.
    """
    layers = model.layers.chain()
    width = max(layer.d_model for layer in layers)
    n_heads = max(getattr(mixer, "n_heads", 0) for mixer in model.modules())
    copies = (8 + 4 * cut) * sum(p.numel() for p in model.parameters())
    streams = (8 + 4 * cut) * len(layers) * n_inputs * seq_len * width
    held = seq_len**2 * width**2
    operator = 3 * 8 * held if held <= _LARGEST_OPERATOR else 0
    basis = 3 * 8 * SPARE * max(GRID) * width**2 if cut else 0
    one_pass = 8 * POSITIONS_AT_ONCE * (_KEPT_OF_A_POSITION * width + 2 * n_heads * seq_len)
    return copies + streams + max(operator, basis, one_pass)


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
