"""A layer cut to a few operators: how many of the heads that it spans does it use?

W_ij = sum_h a_h(i, j) V_h with orthonormal V_h, read as the leading right singular vectors of the stack of all
vec(W_ij). The layer with W_ij replaced by its projection on the first H of them is its best copy with H heads, on the
data from which the V_h were read (Eckart and Young); on other data the a_h are read anew and the V_h stay.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.contract import require_positive
from zoo.theory.lags import RANK_RTOL
from zoo.theory.operator import replayed

SPARE = 4
"""Directions that are kept while rows stream by, for each one that is asked for."""


class Basis(NamedTuple):
    """Leading operators of a layer.

    Attributes:
        operators: V_h, orthonormal, the one with the largest share first.
        spectrum: the singular value of each.
        energy: sum of the squares of all singular values, those of operators that were left out among them.
    """

    operators: Float[Tensor, "heads d_out d_in"]
    spectrum: Float[Tensor, " heads"]
    energy: float


def span_basis(layer: nn.Module, x: Float[Tensor, "batch seq d_in"], n_heads: int | None = None) -> Basis:
    """The leading operators of the span of `layer` at `x`, over all sequences of the batch together.

    The rows vec(W_ij) are merged as they stream by: batch * seq * d_out backward passes, many at a time.

    Args:
        layer: any layer that `interaction` takes.
        x: where the operator is read.
        n_heads: at most how many operators; all above roundoff when absent, which takes memory (d_out d_in)^2. With a
            limit, four times as many directions are kept on the way: the last ones are then close to the best, not
            the best, where the spectrum falls slowly.

    Raises:
        OperatorError, ValueError: see `interaction`; n_heads that is not positive.
    """
    require_positive(n_heads=n_heads)
    kept: Tensor | None = None  # (directions, d_out d_in), whose Gram matrix is that of all rows so far
    energy = 0.0
    with replayed(layer, x) as held:
        most = held.d_out * held.d_in
        width = most if n_heads is None else min(most, SPARE * n_heads)
        waiting: list[Tensor] = []
        for _, block in held.rows():
            rows = block.double().flatten(3).flatten(0, 2)
            rows = rows[rows.any(1)]  # nothing comes from the future
            energy += float(rows.square().sum())
            waiting.append(rows)
            if sum(map(len, waiting)) >= 4 * width:
                kept, waiting = _merged(kept, waiting, width), []
        _, spectrum, directions = torch.linalg.svd(_merged(kept, waiting, width), full_matrices=False)
        above = int((spectrum > RANK_RTOL[x.dtype] * spectrum[:1]).sum())
        count = above if n_heads is None else min(above, n_heads)
        operators = directions[:count].unflatten(1, (held.d_out, held.d_in))
    return Basis(operators.to(x.dtype), spectrum[:count].to(x.dtype), energy)


def _merged(above: Tensor | None, below: list[Tensor], width: int) -> Tensor:
    """At most `width` rows with the Gram matrix of all these rows, or with the leading part of it."""
    rows = torch.cat([*([] if above is None else [above]), *below])
    if width == rows.shape[1]:
        return torch.linalg.qr(rows, mode="r")[1] if len(rows) > width else rows
    basis, triangle = torch.linalg.qr(rows.t())  # few rows of many columns
    _, values, vectors = torch.linalg.svd(triangle.t(), full_matrices=False)
    return ((values[:, None] * vectors) @ basis.t())[:width]


def cut(
    layer: nn.Module, basis: Basis, x: Float[Tensor, "batch seq d_in"]
) -> tuple[Float[Tensor, "batch seq d_out"], Float[Tensor, "heads batch seq d_out"]]:
    """The output of `layer` at `x` in parts: c, and what each operator of the basis adds.

    c + parts[:H].sum(0) is the output of the layer cut to its first H operators: y_i = sum_h sum_j a_h(i, j) V_h x_j
    + c_i, with a_h(i, j) = <V_h, W_ij(x)>.

    Args:
        layer: the layer; it runs in eval mode.
        basis: of this layer, see `span_basis`.
        x: its input.

    Raises:
        OperatorError, ValueError: see `interaction`; a basis of another shape.
    """
    with replayed(layer, x) as held:
        if basis.operators.shape[1:] != (held.d_out, held.d_in):
            raise ValueError(
                f"the basis is of operators {tuple(basis.operators.shape[1:])}, the layer's are "
                f"{(held.d_out, held.d_in)}: give the basis of this layer"
            )
        images = torch.einsum("hpd,bjd->hbjp", basis.operators, x)
        parts = []
        for _, block in held.rows():
            shares = torch.einsum("brjpd,hpd->hbrj", block, basis.operators)
            parts.append(shares @ images)
        return held.offset, torch.cat(parts, dim=2)


class Truncated(nn.Module):
    """A layer cut to its first `n_heads` operators, for as long as its parameters stay; see `truncate`."""

    def __init__(self, layer: nn.Module, basis: Basis) -> None:
        super().__init__()
        self.layer, self.basis = layer, basis

    def forward(self, x: Float[Tensor, "batch seq d_in"]) -> Float[Tensor, "batch seq d_out"]:
        offset, parts = cut(self.layer, self.basis, x)
        return offset + parts.sum(0)


def truncate(layer: nn.Module, basis: Basis, n_heads: int | None = None) -> Truncated:
    """`layer` with each W_ij replaced by its projection on the first `n_heads` operators of the basis.

    It maps (batch, seq, d_in) to (batch, seq, d_out) as the layer does and stands in its place in a model, without
    gradients and without a stream; each call reads the operator, at seq * d_out backward passes per sequence.

    Args:
        layer: the layer.
        basis: of this layer, see `span_basis`.
        n_heads: how many operators to keep, 0 for c alone; all of the basis when absent.

    Raises:
        ValueError: n_heads below zero or above what the basis has.
    """
    most = len(basis.operators)
    kept = most if n_heads is None else n_heads
    if not 0 <= kept <= most:
        raise ValueError(f"n_heads must lie between 0 and {most}, the operators of the basis, got {n_heads}")
    return Truncated(layer, basis._replace(operators=basis.operators[:kept], spectrum=basis.spectrum[:kept]))
