"""Estimates of the time and memory that `zoo heads` needs, made before anything is measured."""

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
"""By default layers are cut if `least_seconds` is below this: at best fifteen minutes on two cores."""

_PRODUCTS_PER_SECOND = 4e10  # products (weights times positions) per second on one core, roughly
_WIDTHS_PER_POSITION = 32  # numbers a pass keeps per position, in model widths, besides attention weights
_CHECKS = 20  # passes over one sequence to check whether a wide layer mixes channel by channel
_TRIAL_LENGTH = 8  # length of the short input that decides how a layer is read
_SKETCHED_CHANNELS = 8  # channels in the sketch of a wide layer


def least_seconds(model: Backbone, seq_len: int, n_inputs: int, n_others: int) -> float:
    """Return a lower estimate of the CPU seconds of `measure_heads`: its products with weights, at full speed.

    The estimate is the same on every machine. Large models took 1.2 to 1.8 times as long (docs/heads.md), models of a
    few thousand weights up to 400 times, because launching operations dominates.

    Args:
        model: the model.
        seq_len: length of every sequence.
        n_inputs: number of sequences at which operators are measured.
        n_others: number of sequences on which cut models are scored; 0 if no layer is cut.
    """
    total = sum(p.numel() for p in model.parameters())
    if model.embedding is not None and model.head is not None and model.head.weight is not model.embedding.weight:
        total -= model.embedding.weight.numel()  # a lookup, no products
    tests = 1 + math.ceil(math.log2(len(GRID)))
    products = 0.0
    for layer in model.layers.chain():
        mixer = layer.mixer if isinstance(layer, ResidualBlock) else layer
        spectrum, basis, cut_one = _passes(mixer, seq_len, n_inputs)
        backward = mixer.d_out if mixer.d_out <= WIDE else GRADIENT_SKETCH
        passes = 2 * (spectrum + n_inputs * (1 + 2 * backward))  # twice: float64
        if n_others:
            passes += basis + n_others * cut_one
            products += tests * n_others * total / 2
        products += passes * sum(p.numel() for p in mixer.parameters())
    return products * seq_len / _PRODUCTS_PER_SECOND


def others_within(model: Backbone, seq_len: int, n_inputs: int, most: int = 24) -> int:
    """Return the number of sequences on which cut models can be scored within `BUDGET`, from 1 to `most`."""
    one, two = (least_seconds(model, seq_len, n_inputs, n_others) for n_others in (1, 2))
    return max(1, min(most, 1 + int((BUDGET - one) / (two - one))))


def _passes(mixer: SequenceMixer, seq_len: int, n_inputs: int) -> tuple[int, int, int]:
    """Count a layer's passes over a sequence: to read its spectrum, its leading operators, and to cut one sequence."""
    every = seq_len * mixer.d_model
    if mixer.d_out * mixer.d_model <= EXACT_SIZE:
        return every, n_inputs * every, every
    few = torch.randn(1, min(seq_len, _TRIAL_LENGTH), mixer.d_model, generator=torch.Generator().manual_seed(0))
    layer = copy.deepcopy(mixer).float()
    with channelwise(layer, few.to(next(layer.parameters()).device)) as found:
        if found is None:
            return SKETCH * _SKETCHED_CHANNELS, 2 * min(n_inputs, READ_OF_WIDE) * every, every
        every, held = math.ceil(seq_len / found.per_pass), min(n_inputs, READ_OF_WIDE)
        return _CHECKS + min(PASSES, every), held * _CHECKS + min(PASSES, held * every), _CHECKS + every


def memory_needed(model: Backbone, seq_len: int, n_inputs: int, n_others: int, processes: int = 1) -> int:
    """Estimate the bytes that `measure_heads` needs: copies of the model, inputs of all layers, and work space.

    Only an estimate, because mixers keep different tensors in a pass. Each of the `processes` needs its own work space;
    see `least_seconds` for the other arguments.
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
    one_pass = 8 * max(seq_len, positions_at_once(width)) * (_WIDTHS_PER_POSITION * width + 2 * n_heads * seq_len)
    return copies + streams + processes * max(operator, basis, one_pass, outputs + cut * parts)
