"""Cut a layer to its best H operators, to find how many of the heads that it spans it uses.

W_ij = sum_h a_h(i, j) V_h, where the orthonormal V_h are the right singular vectors of the stack of all vec(W_ij).
Projecting W_ij onto the first H of them gives the best copy of the layer with H heads (Eckart and Young), on the data
from which the V_h were read. On other data the V_h are kept and the a_h recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from zoo.ops.precision import Device, DType
from zoo.theory.channels import EXACT_SIZE, Channels, channelwise, sampled_triangle
from zoo.theory.lags import RANK_RTOL
from zoo.theory.operator import Replayed, replayed
from zoo.theory.rank import triangle
from zoo.validate import require_positive

SPARE = 4
"""Random vectors per requested operator."""


class Basis(NamedTuple):
    """Leading operators of a layer.

    Attributes:
        operators: V_h, orthonormal, by descending singular value.
        spectrum: their singular values.
        norm: norm of all singular values, including those of operators left out.
    """

    operators: Float[Tensor, "heads d_out d_in"]
    spectrum: Float[Tensor, " heads"]
    norm: float


def span_basis(layer: nn.Module, x: Float[Tensor, "batch seq d_in"], n_heads: int | None = None) -> Basis:
    """Return the leading operators of the span of `layer` at `x`, over all sequences of the batch together.

    Without `n_heads`, and in narrow layers, the rows vec(W_ij) are triangularised as they stream by, which is exact. In
    wide layers they are first contracted with four random vectors per requested operator, and then projected onto the
    span (Halko, Martinsson and Tropp 0909.4061): exact if the layer spans no more than that, else near-optimal. Each
    reading takes batch * seq * d_in forward passes. A wide layer that mixes channel by channel (`zoo.theory.channels`)
    is read at all source positions if `zoo.theory.channels.PASSES` passes suffice, else at a sample drawn with seed 0.

    Args:
        layer: any layer that `interaction` accepts.
        x: input at which the operator is read.
        n_heads: largest number of operators; default all above roundoff.

    Raises:
        OperatorError, ValueError: see `interaction`; n_heads that is not positive.
    """
    require_positive(n_heads=n_heads)
    if n_heads is not None and (found := _wide_basis(layer, x, n_heads)) is not None:
        return found
    with replayed(layer, x) as held:
        size = held.d_out * held.d_in
        few = size if n_heads is None else SPARE * n_heads
        if size <= max(few, EXACT_SIZE):
            few_rows, within = triangle(_rows(held)), None
            norm = _norm(few_rows)
        else:
            generator = torch.Generator().manual_seed(0)
            seen = x.new_zeros(few, size, dtype=torch.float64)
            norm = 0.0
            for rows in _rows(held):
                norm = math.hypot(norm, _norm(rows))
                seen += torch.randn(few, len(rows), generator=generator, dtype=torch.float64).to(rows.device) @ rows
            within = torch.linalg.qr(seen.t())[0]
            few_rows = triangle(rows @ within for rows in _rows(held))
    spectrum, directions = _leading(few_rows, x.dtype, n_heads)
    if within is not None:
        directions = directions @ within.t()
    return Basis(directions.unflatten(1, (held.d_out, held.d_in)).to(x.dtype), spectrum, norm)


def _norm(rows: Tensor) -> float:
    """Return the Frobenius norm, even if squares of the entries overflow."""
    largest = float(rows.abs().max()) if rows.numel() else 0.0
    return largest * float((rows / largest).norm()) if largest else 0.0


def _leading(rows: Tensor, dtype: torch.dtype, n_heads: int | None) -> tuple[Tensor, Tensor]:
    """Return the singular values above the roundoff of `dtype`, at most `n_heads`, and their right singular vectors."""
    _, spectrum, directions = torch.linalg.svd(rows, full_matrices=False)
    above = spectrum > RANK_RTOL[dtype] * spectrum[:1]
    return spectrum[above][:n_heads].to(dtype), directions[above][:n_heads]


def _wide_basis(layer: nn.Module, x: Float[Tensor, "batch seq d_in"], n_heads: int) -> Basis | None:
    """Return the basis of a wide layer that mixes channel by channel; None for any other layer."""
    with _channels_of_wide(layer, x) as found:
        if found is None:
            return None
        rows, _ = sampled_triangle(found, torch.Generator().manual_seed(0))
        spectrum, directions = _leading(rows, x.dtype, n_heads)
        return Basis(found.operators(directions @ found.coordinates[1]), spectrum, _norm(rows))


@contextmanager
def _channels_of_wide(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Iterator[Channels | None]:
    """Yield `channelwise(layer, x)` for a wide layer, and None for a narrow one, which is read exactly."""
    if getattr(layer, "d_out", x.shape[2]) * x.shape[2] <= EXACT_SIZE:
        yield None
        return
    with channelwise(layer, x) as found:
        yield found


def _rows(held: Replayed) -> Iterator[Float[Tensor, "rows d_out_d_in"]]:
    """Yield vec(W_ij) in float64, a few at a time, by forward passes, without zero rows."""
    for _, block in held.columns():
        rows = block.double().flatten(3).flatten(0, 2)
        yield rows[rows.any(1)]


def cut(
    layer: nn.Module, basis: Basis, x: Float[Tensor, "batch seq d_in"]
) -> tuple[Float[Tensor, "batch seq d_out"], Float[Tensor, "heads batch seq d_out"]]:
    """Return the output of `layer` at `x` in parts: c, and the contribution of each operator of the basis.

    c + parts[:H].sum(0) is the output of the layer cut to its first H operators: y_i = sum_h sum_j a_h(i, j) V_h x_j
    + c_i, with a_h(i, j) = <V_h, W_ij(x)>.

    Args:
        layer: the layer; it runs in eval mode.
        basis: basis of this layer, see `span_basis`.
        x: input of the layer.

    Raises:
        OperatorError, ValueError: see `interaction`; a basis of another shape.
    """
    with _channels_of_wide(layer, x) as found:
        if found is not None and basis.operators.shape[1:] == (found.output.shape[2], x.shape[2]):
            products = found.products(basis.operators)
            return found.offset, _parts(basis, x, (block @ products.t() for _, block in found.columns()))
    with replayed(layer, x) as held:
        if basis.operators.shape[1:] != (held.d_out, held.d_in):
            raise ValueError(
                f"the basis has operators of shape {tuple(basis.operators.shape[1:])}, the layer has "
                f"{(held.d_out, held.d_in)}: give the basis of this layer"
            )
        flat = basis.operators.flatten(1)
        return held.offset, _parts(basis, x, (block.flatten(3) @ flat.t() for _, block in held.columns()))


def _parts(basis: Basis, x: Tensor, shares: Iterable[Tensor]) -> Tensor:
    """Return sum_j a_h(i, j) V_h x_j from chunks (batch, sources, seq, heads) of the a_h, in order of the sources."""
    of_heads = [rearrange(share, "batch source seq head -> head batch seq source") for share in shares]
    return torch.cat(of_heads, dim=3) @ torch.einsum("hpd,bjd->hbjp", basis.operators, x)


class Truncated(nn.Module):
    """A layer cut to the operators of a basis, valid while the layer's parameters do not change; see `truncate`."""

    def __init__(self, layer: nn.Module, basis: Basis) -> None:
        super().__init__()
        self.layer, self.basis = layer, basis

    def forward(self, x: Float[Tensor, "batch seq d_in"]) -> Float[Tensor, "batch seq d_out"]:
        offset, parts = cut(self.layer, self.basis, x)
        return offset + parts.sum(0)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Tensor:
        """Return zeros (batch, 1), the state before any position."""
        return torch.zeros(batch_size, 1, dtype=dtype, device=device)

    def stream(
        self, x: Float[Tensor, "batch seq d_in"], state: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Float[Tensor, "batch seq d_out"], Tensor]:
        """Map whole sequences, through the interface that a block needs.

        Raises:
            ValueError: a second chunk, or `lengths`.
        """
        if lengths is not None or (state is not None and state.any()):
            raise ValueError("a truncated layer maps whole sequences of one length: give no lengths and no state")
        return self(x), x.new_ones(len(x), 1)


def truncate(layer: nn.Module, basis: Basis, n_heads: int | None = None) -> Truncated:
    """Return `layer` with each W_ij projected onto the first `n_heads` operators of the basis.

    The result can replace the layer in a model or a block, without gradients and for whole sequences. Each call reads
    the operator, in seq * d_in forward passes per sequence; a wide layer that mixes channel by channel needs at most
    seq (`zoo.theory.channels`).

    Args:
        layer: the layer.
        basis: basis of this layer, see `span_basis`.
        n_heads: number of operators to keep, 0 for only c; default all of the basis.

    Raises:
        ValueError: n_heads below zero or above the size of the basis.
    """
    most = len(basis.operators)
    kept = most if n_heads is None else n_heads
    if not 0 <= kept <= most:
        raise ValueError(f"n_heads must lie between 0 and {most}, the size of the basis, got {n_heads}")
    return Truncated(layer, basis._replace(operators=basis.operators[:kept], spectrum=basis.spectrum[:kept]))
