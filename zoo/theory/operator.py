"""The operator of a layer: y_i = sum_j W_ij(X) x_j + c_i, read off the layer itself.

Source: the unified view of Ghodsi (2512.15115). Nothing is written per mixer: recorded at X and replayed, a layer is
an affine map of its input (`zoo.coefficient`). c is its value at zero, the rows of W come from backward passes with
one-hot cotangents stacked along the batch. W is not unique; the convention is where each mixer puts `coefficient`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.backbone import Backbone
from zoo.coefficient import Tape, recording, replaying

POSITIONS_AT_ONCE = 8192
"""Positions in one stacked pass: enough to fill a processor, few enough to stay in its cache."""

AFFINE_RTOL = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative departure from affinity that still counts as roundoff."""

Map: TypeAlias = Callable[[Tensor], Tensor]


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
        x: where the coefficients are recorded, in the layer's dtype (float32 or float64) and on its device.

    Returns:
        W with y_i = sum_j W_ij x_j + c_i, and c.

    Raises:
        NotAffineError: a coefficient is not marked; the message gives the size of the miss.
        ValueError: x is not a finite (batch, seq, d_in) in the layer's dtype, or the output is not (batch, seq, d_out).
    """
    with replayed(layer, x) as held:
        return Interaction(torch.cat([block for _, block in held.rows()], dim=1), held.offset)


class Replayed:
    """A layer whose coefficients are held at their values at x: the affine map v -> W v + c, row by row of x.

    Probes are stacked along the batch, so that a pass serves many of them and custom kernels run as they are.

    Attributes:
        offset: c, (batch, seq, d_out).

    Raises:
        NotAffineError, ValueError: see `interaction`.
    """

    def __init__(self, f: Map, x: Float[Tensor, "batch seq d_in"]) -> None:
        self._f, self._x = f, x
        self._tapes: dict[int, Tape] = {}
        _, y = self._record(x)
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            raise ValueError(f"the layer must map (batch, seq, d_in) to (batch, seq, d_out), got {tuple(y.shape)}")
        if not y.isfinite().all():
            raise ValueError("the layer's output is not finite at x")
        self.batch, self.seq_len, self.d_in = x.shape
        self.d_out = y.shape[2]
        self.offset = self._replay(torch.zeros_like(x), 1)
        self._check_affine(y)

    def push(self, probes: Float[Tensor, "rows batch seq d_in"]) -> Float[Tensor, "rows batch seq d_out"]:
        """W v for each probe v, by a forward pass; what c adds is taken off again, at the cost of its roundoff."""
        count = len(probes)
        y = self._replay(probes.flatten(0, 1), count)
        return y.unflatten(0, (count, self.batch)) - self.offset

    def pull(self, cotangents: Float[Tensor, "rows batch seq d_out"]) -> Float[Tensor, "rows batch seq d_in"]:
        """W^T u for each cotangent u, by a backward pass."""
        count = len(cotangents)
        tape = self._tape(count)
        point = self._x.repeat(count, 1, 1).requires_grad_()
        with torch.enable_grad(), replaying(tape):
            y = self._f(point)
        if not y.requires_grad:
            return torch.zeros_like(point).unflatten(0, (count, self.batch))
        (grad,) = torch.autograd.grad(y, point, cotangents.flatten(0, 1), allow_unused=True, materialize_grads=True)
        return grad.unflatten(0, (count, self.batch))

    def rows(self) -> Iterator[tuple[slice, Float[Tensor, "batch rows seq d_out d_in"]]]:
        """W_ij for a few output positions i at a time, and which these are; read from the output side."""
        for now in self._blocks(self.d_out):
            units = _units(now, self.seq_len, self.d_out, self._x).unsqueeze(1).expand(-1, self.batch, -1, -1)
            yield now, self.pull(units).unflatten(0, (-1, self.d_out)).permute(2, 0, 3, 1, 4)

    def columns(self) -> Iterator[tuple[slice, Float[Tensor, "batch columns seq d_out d_in"]]]:
        """W_ij for a few source positions j at a time (second axis; the third is i); read from the input side."""
        for now in self._blocks(self.d_in):
            units = _units(now, self.seq_len, self.d_in, self._x).unsqueeze(1).expand(-1, self.batch, -1, -1)
            yield now, self.push(units).unflatten(0, (-1, self.d_in)).permute(2, 0, 3, 4, 1)

    def probes_at_once(self) -> int:
        """How many probes one stacked pass takes."""
        return max(1, POSITIONS_AT_ONCE // (self.batch * self.seq_len))

    def _blocks(self, width: int) -> Iterator[slice]:
        step = max(1, self.probes_at_once() // width)
        return (slice(start, min(start + step, self.seq_len)) for start in range(0, self.seq_len, step))

    def _record(self, x: Tensor) -> tuple[Tape, Tensor]:
        with torch.no_grad(), recording() as tape:
            return tape, self._f(x)

    def _tape(self, count: int) -> Tape:
        """The coefficients of `count` copies of x stacked along the batch; the last stack is kept."""
        if count not in self._tapes:
            self._tapes = {count: self._record(self._x.repeat(count, 1, 1))[0]}
        return self._tapes[count]

    def _replay(self, v: Tensor, count: int) -> Tensor:
        with torch.no_grad(), replaying(self._tape(count)):
            return self._f(v)

    def _check_affine(self, y: Tensor) -> None:
        """f(x + v) - f(x) = f(v) - f(0) for v = x and for a random v, and f(x) is the recorded output.

        The random v is there for maps that are linear along every ray, such as |x|.
        """
        x, zero = self._x, self.offset
        draw = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
        one = self._replay(x, 1)
        misses, sizes = [one - y], [y]
        for v in (x, draw * x.square().mean().sqrt()):
            at_v, at_sum = self._replay(v, 1), self._replay(x + v, 1)
            misses.append((at_sum - one) - (at_v - zero))
            sizes += [at_v, at_sum]
        size = torch.stack(sizes).abs().max().clamp(min=torch.finfo(y.dtype).tiny)
        miss = float(torch.stack(misses).abs().max() / size)
        if not miss <= AFFINE_RTOL[y.dtype]:
            raise NotAffineError(
                f"the layer is not affine under replay (relative miss {miss:.1e}): "
                "some input-dependent coefficient is not marked with zoo.coefficient.coefficient"
            )


@contextmanager
def replayed(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Iterator[Replayed]:
    """The layer held at x, in eval mode for as long as the block runs.

    Raises:
        NotAffineError, ValueError: see `interaction`.
    """
    check_input(layer, x)
    with evaluated(layer) as f:
        yield Replayed(f, x.detach())


@contextmanager
def evaluated(layer: nn.Module) -> Iterator[Map]:
    """The layer's map on embeddings, in eval mode for as long as the block runs."""
    training = [module for module in layer.modules() if module.training]
    layer.eval()
    try:
        yield layer.from_embeddings if isinstance(layer, Backbone) else layer
    finally:
        for module in training:
            module.training = True


def check_input(layer: nn.Module, x: Tensor) -> None:
    """Raise ValueError unless x is a finite (batch, seq, d_in) of the layer's dtype and on its device."""
    if x.ndim != 3 or 0 in x.shape or x.dtype not in AFFINE_RTOL:
        raise ValueError(f"x must be (batch, seq, d_in), float32 or float64, not empty; got {x.dtype} {tuple(x.shape)}")
    if not x.isfinite().all():
        raise ValueError("x must be finite")
    like = next((p for p in layer.parameters() if p.is_floating_point()), x)
    if (like.dtype, like.device) != (x.dtype, x.device):
        raise ValueError(
            f"x is {x.dtype} on {x.device}, the layer {like.dtype} on {like.device}: convert one to match the other"
        )


def _units(now: slice, seq_len: int, width: int, like: Tensor) -> Float[Tensor, "probes seq width"]:
    """One-hot probes for every channel of the positions `now`, position by position."""
    count = now.stop - now.start
    units = like.new_zeros(count, width, seq_len, width)
    position, channel = torch.arange(count, device=like.device), torch.arange(width, device=like.device)
    units[position[:, None], channel, now.start + position[:, None], channel] = 1.0
    return units.flatten(0, 1)
