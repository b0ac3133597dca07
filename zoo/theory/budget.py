"""The work and the memory of `zoo heads`, estimated before anything is measured."""

from __future__ import annotations

import copy
import math

import torch

from zoo.backbone import Backbone
from zoo.blocks import ResidualBlock
from zoo.contract import SequenceMixer
from zoo.theory.channels import EXACT_SIZE, PASSES, channelwise
from zoo.theory.gradients import GRADIENT_SKETCH, WIDE
from zoo.theory.model_heads import GRID, LARGEST_OPERATOR, LARGEST_PARTS, READ_OF_WIDE
from zoo.theory.operator import positions_at_once
from zoo.theory.spectra import SKETCH
from zoo.theory.truncation import SPARE

BUDGET = 1800.0
"""`least_seconds` up to which layers are cut unless asked otherwise: at best fifteen minutes on two cores."""

_A_SECOND = 4e10  # products of weights and positions per second of one core, about
_KEPT_OF_A_POSITION = 32  # numbers that a pass keeps, in widths of the model, besides attention's weights
_TO_HOLD = 20  # passes of a sequence that check whether a wide layer mixes channel by channel there
_LOOKED_AT = 8  # positions at which it is looked up how a layer is read
_SKETCHED_CHANNELS = 8  # of a wide layer that is read by a sketch


def least_seconds(model: Backbone, seq_len: int, n_inputs: int, n_others: int) -> float:
    """Estimate from below the CPU seconds of `measure_heads`: it counts products with weights, at full speed.

    The count is the same on every machine. Large models took 1.2 to 1.8 times the estimate (docs/heads.md). Models of
    some thousand weights took up to 400 times the estimate, because starting operations takes longer than products.

    Args:
        model: the model.
        seq_len: length of every sequence.
        n_inputs: number of sequences at which operators are read.
        n_others: number of sequences on which cut models are scored; 0 if no layer is cut.
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
    """Return the number of sequences on which cut models are scored within `BUDGET`: at least one."""
    one, two = (least_seconds(model, seq_len, n_inputs, n_others) for n_others in (1, 2))
    return max(1, min(most, 1 + int((BUDGET - one) / (two - one))))


def _passes(mixer: SequenceMixer, seq_len: int, n_inputs: int) -> tuple[int, int, int]:
    """Return how many passes of a sequence read a layer's spectrum, its leading operators, and cut one sequence."""
    every = seq_len * mixer.d_model
    if mixer.d_out * mixer.d_model <= EXACT_SIZE:
        return every, n_inputs * every, every
    few = torch.randn(1, min(seq_len, _LOOKED_AT), mixer.d_model, generator=torch.Generator().manual_seed(0))
    layer = copy.deepcopy(mixer).float()
    with channelwise(layer, few.to(next(layer.parameters()).device)) as found:
        if found is None:
            return SKETCH * _SKETCHED_CHANNELS, 2 * min(n_inputs, READ_OF_WIDE) * every, every
        every, held = math.ceil(seq_len / found.per_pass), min(n_inputs, READ_OF_WIDE)
        return _TO_HOLD + min(PASSES, every), held * _TO_HOLD + min(PASSES, held * every), _TO_HOLD + every


def memory_needed(model: Backbone, seq_len: int, n_inputs: int, n_others: int, processes: int = 1) -> int:
    """Estimate the bytes that `measure_heads` needs: copies of the model, the inputs of all layers, and one step.

    An estimate, since passes of different mixers keep different tensors. The arguments are those of `least_seconds`,
    and the processes, each of which takes a step of its own.
    """
    layers = model.layers.chain()
    width = max(layer.d_model for layer in layers)
    n_heads = max(getattr(mixer, "n_heads", 0) for mixer in model.modules())
    cut = n_others > 0
    copies = (8 + 4 * cut) * sum(p.numel() for p in model.parameters())
    streams = (8 + 4 * cut) * len(layers) * (n_inputs + cut * n_others) * seq_len * width
    held = seq_len**2 * width**2
    operator = 3 * 8 * held if held <= LARGEST_OPERATOR else 0
    basis = 3 * 8 * SPARE * max(GRID) * width**2 if cut else 0
    outputs = 4 * len(GRID) * n_others * seq_len * width
    parts = 4 * 4 * max(LARGEST_PARTS, max(GRID) * seq_len * (seq_len + 2 * width)) if width**2 > EXACT_SIZE else 0
    one_pass = 8 * max(seq_len, positions_at_once(width)) * (_KEPT_OF_A_POSITION * width + 2 * n_heads * seq_len)
    return copies + streams + processes * max(operator, basis, one_pass, outputs + cut * parts)
