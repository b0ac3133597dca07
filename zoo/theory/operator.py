"""The operator of a layer: y_i = sum_j W_ij(X) x_j + c_i, read off the layer itself.

Source: the unified view of Ghodsi (2512.15115). Nothing is written per mixer: recorded at X and replayed, a layer is
an affine map of its input (`zoo.coefficient`). c is its value at zero, the rows of W come from backward passes with
one-hot cotangents stacked along the batch. W is not unique; the convention is where each mixer puts `coefficient`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.backbone import Backbone
from zoo.coefficient import Tape, recording, replaying

_ROWS_AT_ONCE = 4096  # positions in one stacked pass


class Interaction(NamedTuple):
    """W and c of a layer at one input."""

    operator: Float[Tensor, "batch seq seq d_out d_in"]
    offset: Float[Tensor, "batch seq d_out"]

    def apply(self, x: Float[Tensor, "batch seq d_in"]) -> Float[Tensor, "batch seq d_out"]:
        """sum_j W_ij x_j + c_i; the layer's own output when x is the input at which W was read."""
        return torch.einsum("bijpd,bjd->bip", self.operator, x) + self.offset


class NotAffineError(ValueError):
    """A layer that is not affine under replay: it computes an input-dependent coefficient that is not marked."""


def interaction(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Interaction:
    """The operator of `layer` at `x`, whole: batch * seq^2 * d_out * d_in numbers.

    Args:
        layer: any map (batch, seq, d_in) -> (batch, seq, d_out) built on `coefficient`: a mixer, a norm, a block, a
            stack; of a backbone, the map from embeddings to outputs. It runs in eval mode.
        x: where the coefficients are recorded, float32 or float64.

    Returns:
        W with y_i = sum_j W_ij x_j + c_i, and c.

    Raises:
        NotAffineError: a coefficient is not marked; the message gives the size of the miss.
        ValueError: x is not (batch, seq, d_in) of a real floating type.
    """
    _check_input(x)
    with evaluated(layer) as f, torch.no_grad():
        y = f(x)
        batch, seq, d_out = y.shape
        check_affine(f, x)
        rows = torch.eye(seq * d_out, dtype=x.dtype, device=x.device).view(-1, seq, d_out)
        at_once = max(1, _ROWS_AT_ONCE // (batch * seq))
        operator = torch.cat([_pull_back(f, x, some) for some in rows.split(at_once)])
        offset = value_at_zero(f, x)
    operator = operator.view(seq, d_out, batch, seq, x.shape[2]).permute(2, 0, 3, 1, 4)
    return Interaction(operator.contiguous(), offset)


def _check_input(x: Tensor) -> None:
    if x.ndim != 3 or 0 in x.shape or x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be (batch, seq, d_in), float32 or float64, not empty; got {x.dtype} {tuple(x.shape)}")


@contextmanager
def evaluated(layer: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """The layer's map on embeddings, in eval mode for as long as the block runs."""
    training = [module for module in layer.modules() if module.training]
    layer.eval()
    try:
        yield layer.from_embeddings if isinstance(layer, Backbone) else layer
    finally:
        for module in training:
            module.training = True


def record(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tape, Tensor]:
    """The coefficients of f at x, and f(x)."""
    with recording() as tape:
        y = f(x)
    return tape, y


def value_at_zero(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The offset c: the replayed map's value at zero."""
    tape, _ = record(f, x)
    with replaying(tape):
        return f(torch.zeros_like(x))


def check_affine(f: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise NotAffineError unless f, replayed, satisfies f(2x) - f(x) = f(x) - f(0) and f(x) is the recorded output."""
    tape, y = record(f, x)
    values = []
    for scale in (0.0, 1.0, 2.0):
        with replaying(tape):
            values.append(f(scale * x))
    zero, one, two = values
    size = y.abs().max().clamp(min=torch.finfo(y.dtype).tiny)
    miss = torch.maximum((two - 2 * one + zero).abs().max(), (one - y).abs().max()) / size
    if not miss <= 1e-9 if y.dtype == torch.float64 else not miss <= 1e-3:
        raise NotAffineError(
            f"the layer is not affine under replay (relative miss {float(miss):.1e}): "
            "some input-dependent coefficient is not marked with zoo.coefficient.coefficient"
        )


def _pull_back(f: Callable[[Tensor], Tensor], x: Tensor, cotangents: Tensor) -> Tensor:
    """(rows, batch, seq, d_in): the replayed map's transpose applied to each cotangent (rows, seq, d_out)."""
    rows, batch = len(cotangents), len(x)
    stacked = x.repeat(rows, 1, 1)
    tape, _ = record(f, stacked)
    with torch.enable_grad(), replaying(tape):
        point = stacked.detach().requires_grad_()
        y = f(point)
        (grad,) = torch.autograd.grad(y, point, cotangents.repeat_interleave(batch, 0), allow_unused=True)
    return (
        torch.zeros_like(stacked).view(rows, batch, *x.shape[1:])
        if grad is None
        else grad.view(rows, batch, *x.shape[1:])
    )
