"""Spectrum and norms of a layer's operator at one input: exact for narrow layers, else estimated."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.contract import SequenceMixer
from zoo.theory.channels import EXACT_SIZE, channel_spectrum, channelwise
from zoo.theory.operator import OperatorError, replayed
from zoo.theory.rank import effective_rank, heads_needed, span_spectrum, spectrum_rank

REL_ERRORS = (0.1, 0.01, 0.001)
"""Relative errors (in norm) for which heads are counted."""

SKETCH = 16
"""Gaussian vectors over time that sketch the spectrum of a wide layer."""

_NORM_PROBES = 8


class SpectrumRead(NamedTuple):
    """Singular values of an operator span, and the method that read them.

    Attributes:
        values: singular values, largest first; empty if the operator cannot be read, for example if a module marks no
            coefficients. Then `heads` is empty and the ranks are None.
        limit: the largest rank that the method can show; None if it is unlimited.
        sources: number of source positions from which the values are estimated; None if all are read.
    """

    values: Float[Tensor, " singular"]
    limit: int | None = None
    sources: int | None = None

    @property
    def rank(self) -> int | None:
        """The interaction rank; see `spectrum_rank`."""
        return int(spectrum_rank(self.values)) if len(self.values) else None

    @property
    def effective_rank(self) -> float | None:
        """The effective rank; see `zoo.theory.effective_rank`."""
        return float(effective_rank(self.values)) if len(self.values) else None

    @property
    def heads(self) -> dict[float, int]:
        """The heads needed for each of `REL_ERRORS`."""
        return {error: int(heads_needed(self.values, error)) for error in REL_ERRORS if len(self.values)}


def spectrum_at(
    layer: SequenceMixer, x: Float[Tensor, "1 seq d_model"], seed: int = 0, sketch: int = SKETCH
) -> SpectrumRead:
    """Measure the singular values of the operator span at x.

    They are exact up to d_out * d_in = 1,024. A wider layer that mixes channel by channel is read by
    `channel_spectrum`; its rank is limited only if it is read at some source positions, with fewer rows than the span
    has dimensions. Other wide layers are read by a random sketch, which underestimates slowly decaying spectra (see
    `span_spectrum`).
    """
    if layer.d_out * layer.d_model <= EXACT_SIZE:
        return SpectrumRead(span_spectrum(layer, x)[0])
    generator = torch.Generator().manual_seed(seed)
    with channelwise(layer, x) as channels:
        if channels is not None:
            found, n_sources = channel_spectrum(channels, generator)
            if n_sources == channels.seq_len:
                return SpectrumRead(found.to(x.dtype))
            limit = None if len(found) == channels.coordinates[0].shape[1] else len(found)
            return SpectrumRead(found.to(x.dtype), limit, n_sources)
    spectrum = span_spectrum(layer, x, sketch, generator=generator)[0]
    return SpectrumRead(spectrum, len(spectrum))


def read_spectrum(layer: SequenceMixer, x: Tensor, seed: int = 0) -> SpectrumRead:
    """Return `spectrum_at`, or an empty spectrum if the operator cannot be read."""
    try:
        return spectrum_at(layer, x, seed)
    except OperatorError:
        return SpectrumRead(torch.empty(0))


def operator_norms(layer: SequenceMixer, x: Float[Tensor, "1 seq d_model"]) -> Float[Tensor, "seq seq"]:
    """Return ||W_ij||_F of the layer's operator at x, a few rows at a time, without holding the operator.

    The norms are exact up to d_out = 8. Above, 8 Gaussian vectors g replace the output channels, E ||g^T W_ij||^2 =
    ||W_ij||^2: an error of some tens of per cent, invisible in a picture over decades.
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
