"""Data for the explorer page: a layer's operator norms, its spectrum, and the error of its best H operators.

`zoo/report/explorer.html` reads them in this form:

    {"noun": "mixer", "decades": DECADES, "inputs": [name, ...], "items": [{"name": ..., "variants": [
        {"option": ..., "gradient": [[distance, norm], ...], "inputs": {name: `reading`}}, ...]}, ...]}
"""

from __future__ import annotations

import base64
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.contract import SequenceMixer
from zoo.theory.operator import OperatorError
from zoo.theory.rank import tail_energies
from zoo.theory.spectra import SpectrumRead, operator_norms
from zoo.theory.weights import head_weights

DECADES = 4
"""Decades below the largest entry that a picture shows."""

_MOST_HEADS, _MOST_OPERATORS, _LEAST_ERROR = 8, 64, 1e-6


def explorer_data(layer: SequenceMixer, x: Float[Tensor, "1 seq d_model"], read: SpectrumRead) -> dict[str, Any]:
    """Return the pictures of a layer's operator, its spectrum, and the error of its best H operators, H = 1, 2, ...

    Args:
        layer: the layer; each head gets a picture if there are at most eight.
        x: input of the pictures, each of `seq` squared bytes.
        read: spectrum of the layer's operator span, at `x` or on a longer sequence.
    """
    if read.rank is None:
        return {"spectrum": [], "errors": [], "norms": "", "weights": []}
    try:
        weights = head_weights(layer, x)[0]
    except OperatorError:
        weights = x.new_empty(0)
    values = read.values.double() / (float(read.values[0]) or 1.0)
    left = [error for error in tail_energies(values).sqrt()[1:].tolist() if error > _LEAST_ERROR]
    return {
        "spectrum": [*map(rounded, values[: min(read.rank, _MOST_OPERATORS)].tolist())],
        "errors": [rounded(error) for error in [*left, 0.0][:_MOST_OPERATORS]],
        "norms": _packed(operator_norms(layer, x)),
        "weights": [_packed(each.abs()) for each in weights] if len(weights) <= _MOST_HEADS else [],
    }


def rounded(value: float) -> float:
    """Round to three significant digits."""
    return float(f"{float(value):.3g}")


def _packed(matrix: Float[Tensor, "seq seq"]) -> str:
    """Encode each entry as a byte, on a log scale of `DECADES` below the largest, in base64."""
    shares = matrix / matrix.max().clamp(min=1e-300)
    levels = 255 * (1 + shares.clamp(min=1e-300).log10() / DECADES).clamp(min=0)
    return base64.b64encode(levels.round().to(torch.uint8).cpu().numpy().tobytes()).decode()
