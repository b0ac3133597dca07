"""Count the heads that each layer of a trained model uses: for an exact copy, and for the model's task.

The rank of a layer's operator span is the number of heads that copy it. The task may need fewer, the functional heads:
we read its H best operators on some sequences, cut it to them (`zoo.theory.truncation`), and score the model on others.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from zoo.backbone import Backbone
from zoo.blocks import ResidualBlock, Stack
from zoo.contract import SequenceMixer
from zoo.theory.channels import EXACT_SIZE
from zoo.theory.explorer import explorer_data
from zoo.theory.gradients import Gradient, fitted, profile_at
from zoo.theory.layers import layer_inputs, streams
from zoo.theory.operator import interaction
from zoo.theory.processes import Progress, measured, unreported
from zoo.theory.scores import Score, agreement
from zoo.theory.spectra import SpectrumRead, read_spectrum
from zoo.theory.state_size import StateSize, effective_state_size
from zoo.theory.truncation import Basis, cut, span_basis

GRID = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers H of operators to which a layer is cut."""

KEPT = 0.99
"""Share of the model's score that a cut layer must keep."""

QUANTITIES = ("spectrum", "state size", "gradient", "functional heads")
"""Measurements of a layer, in order."""

LARGEST_OPERATOR = 2**27
"""Entries of the largest operator that is held whole: 1 GiB."""

EXPLORED = 128
"""Positions at the start of a sequence that the explorer shows."""

LARGEST_PARTS = 2**26
"""Entries that are held for sequences cut together."""

READ_OF_WIDE = 4
"""Sequences from which the operators of a wide layer are read."""

_STATE_POSITIONS = 3  # evenly spaced positions at which the effective state size is measured
_FEW_PRODUCTS = 1e11  # weights times positions up to which a cut model is scored on the whole grid


class CutScores(NamedTuple):
    """Scores of a model with one layer cut to its best operators.

    Attributes:
        whole: score of the uncut model.
        scores: number of operators, at most the rank of the layer -> score. For a large model, only the numbers that a
            bisection visits.
    """

    whole: float
    scores: Mapping[int, float]

    @property
    def functional_heads(self) -> int | None:
        """The smallest number of operators such that it and all larger tested ones keep `KEPT` of the score.

        None if there is no such number, or if the uncut score is not positive.
        """
        least = None
        if not self.whole > 0:  # also NaN: explained variance of a constant output
            return None
        for count in sorted(self.scores, reverse=True):
            if self.scores[count] < KEPT * self.whole:
                break
            least = count
        return least


@dataclass(frozen=True)
class LayerHeads:
    """Measurements of one layer of a model.

    Attributes:
        name: number of the layer and name of its mixer.
        n_heads: heads of the mixer; None if it has none, or is a stack with several members that have heads.
        read: spectrum of the operator span. If the operator cannot be read, state_size and cut are None.
        state_size: effective state size; None if the operator is too large to be held.
        gradient: gradient against distance.
        cut: scores of the model with this layer cut; None if not requested.
        explored: data of the explorer, see `zoo.theory.explorer`; None if not requested.
    """

    name: str
    n_heads: int | None
    read: SpectrumRead
    state_size: StateSize | None
    gradient: Gradient
    cut: CutScores | None
    explored: Mapping[str, Any] | None = None


def measure_heads(
    backbone: Backbone,
    inputs: Shaped[Tensor, "batch seq *d_input"],
    others: Shaped[Tensor, "n seq_of_others *d_input"] | None = None,
    score: Score | None = None,
    grid: Sequence[int] = GRID,
    progress: Progress = unreported,
    processes: int = 1,
    explore: bool = False,
) -> list[LayerHeads]:
    """Measure one row per layer of a model; the model is not changed.

    Spectra, state sizes and gradients are in float64, cut layers in float32. A cut takes width times length forward
    passes, or at most the length if a wide layer mixes channel by channel. `zoo.theory.budget` estimates time and
    memory.

    Args:
        backbone: the model.
        inputs: sequences at which layers are measured: spectrum and state size at the first, gradients at all. A cut
            layer's operators come from all of them, in wide layers from the first four.
        others: sequences on which the cut model is scored; by default no layer is cut.
        score: score of the model's outputs at `others`; by default `agreement` with the uncut model.
        grid: numbers of operators to which a layer is cut.
        progress: called with the row and the quantity that is measured next.
        processes: processes that share the layers of a model on the CPU, each with one thread and its own work space.
        explore: also measure the explorer's data, at the first `EXPLORED` positions.

    Raises:
        MemoryError: a process was killed.
        ValueError: inputs that the model does not accept.
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
        explored = explorer_data(mixer, x[:1, :EXPLORED], read) if explore else None
        progress(name, "state size")
        state_size = None if read.rank is None else _state_size(mixer, x[:1])
        progress(name, "gradient")
        gradient = fitted(profile_at(mixer, x))
        progress(name, "functional heads")
        scores = None
        if read.rank is not None and scored is not None and score is not None:
            few = slice(None) if mixer.d_out * mixer.d_model <= EXACT_SIZE else slice(READ_OF_WIDE)
            scores = cut_scores(light, at, reached[at].x[few], scored[at], score, grid, whole)
        return LayerHeads(
            name=name,
            n_heads=_n_heads(mixer),
            read=read,
            state_size=state_size,
            gradient=gradient,
            cut=scores,
            explored=explored,
        )

    if device.type != "cpu":
        processes = 1
    return measured(measure, len(layers), processes, progress)


def cut_scores(
    model: Backbone,
    at: int,
    read_at: Float[Tensor, "batch seq d_model"],
    stream: Float[Tensor, "n seq_of_others d_model"],
    score: Score,
    grid: Sequence[int] = GRID,
    whole: float | None = None,
) -> CutScores:
    """Score the model with the mixer of layer `at` cut to its best operators.

    A large model is scored only at the largest number of the grid and, if that keeps the score, at those of a bisection
    for the smallest one that does.

    Args:
        model: the model, in eval mode.
        at: number of the layer, from 0.
        read_at: inputs of the mixer at which its operators are read.
        stream: inputs of the layer for the sequences that are scored.
        score: score of the model's outputs.
        grid: numbers of operators; those above the layer's rank are replaced by the rank.
        whole: score of the uncut model; default: computed here.

    Raises:
        ValueError: an empty grid, or a negative number in it.
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
    """Return the outputs of the mixer cut to each number of operators, computed a few sequences at a time."""
    of_a_sequence = max(counts) * x.shape[1] * (x.shape[1] + 2 * x.shape[2])
    found = []
    for some in x.split(max(1, LARGEST_PARTS // max(1, of_a_sequence))):
        offset, parts = cut(mixer, basis, some)
        found.append(torch.stack([offset + parts[:count].sum(0) for count in counts]))
    return torch.cat(found, dim=1)


def _check_grid(grid: Sequence[int]) -> None:
    """Raise ValueError unless the grid has entries, none of them negative."""
    if not grid or min(grid) < 0:
        raise ValueError(f"grid must hold numbers of operators, at least 0, got {list(grid)}")


def _n_heads(mixer: SequenceMixer) -> int | None:
    """Return a mixer's heads; for a stack, such as a Canon layer and a mixer, those of its only member with heads."""
    if not isinstance(mixer, Stack):
        return getattr(mixer, "n_heads", None)
    found = [count for member in mixer.chain() if (count := _n_heads(member)) is not None]
    return found[0] if len(found) == 1 else None


def _state_size(mixer: SequenceMixer, x: Float[Tensor, "1 seq d_model"]) -> StateSize | None:
    seq_len = x.shape[1]
    if seq_len < 2 or seq_len**2 * mixer.d_out * mixer.d_model > LARGEST_OPERATOR:
        return None
    positions = {max(1, seq_len * place // (_STATE_POSITIONS + 1)) for place in range(1, _STATE_POSITIONS + 1)}
    return effective_state_size(interaction(mixer, x).operator[0], sorted(positions))
