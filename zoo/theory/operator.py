"""The operator of a layer: y_i = sum_j W_ij(X) x_j + c_i, read off the layer itself.

Source: the unified view of Ghodsi (2512.15115). Nothing is written per mixer: recorded at X and replayed, a layer is
an affine map of its input (`zoo.coefficient`). c is its value at zero, the rows of W come from backward passes with
one-hot cotangents stacked along the batch. W is not unique; the convention is where each mixer puts `coefficient`.

A layer can break this in ways that leave numbers of the right shape. Before anything is read it must therefore repeat
itself, treat the rows of a batch apart and alike, be affine under replay, and pass the adjoint (dot-product) test
<W^T u, z> + <u, c> = <u, W z + c>, which compares the backward pass with the forward pass; after the reading it must
repeat itself once more. Not seen: a value stream marked in part (`offset_share` and `check_offset` are for that), and
branches on the input that none of the probes takes, for which W is right only at x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from zoo.backbone import Backbone
from zoo.coefficient import ReplayError, Tape, recording, replaying
from zoo.validate import require_real

POSITIONS_AT_ONCE = 8192
"""Positions in one stacked pass: enough to fill a processor, few enough to stay in its cache."""

_USUAL_WIDTH = 64  # of a layer that takes `POSITIONS_AT_ONCE`; wider ones take fewer

AFFINE_RTOL = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative departure from the affine map, channel by channel, that still counts as roundoff."""

_ROUNDOFF = 8.0  # times eps of the largest channel: roundoff in the smallest one
_N_COTANGENTS = 3
_FLOAT32_MISS = 1e-5  # the largest miss of a float64 layer that float32 arithmetic inside it would explain

Map: TypeAlias = Callable[[Tensor], Tensor]


def positions_at_once(width: int) -> int:
    """Return how many positions one stacked pass of a layer takes: `POSITIONS_AT_ONCE`, fewer of a wide one."""
    return POSITIONS_AT_ONCE * _USUAL_WIDTH // max(_USUAL_WIDTH, width)


class Interaction(NamedTuple):
    """W and c of a layer at one input."""

    operator: Float[Tensor, "batch seq seq d_out d_in"]
    offset: Float[Tensor, "batch seq d_out"]

    def apply(self, x: Float[Tensor, "batch seq d_in"]) -> Float[Tensor, "batch seq d_out"]:
        """sum_j W_ij x_j + c_i; the layer's own output when x is the input at which W was read."""
        return torch.einsum("bijpd,bjd->bip", self.operator, x) + self.offset


class OperatorError(ValueError):
    """A layer whose operator cannot be read off; the message gives the reason, the size of the miss and the remedy."""


class NotAffineError(OperatorError):
    """A layer that is not affine under replay: it computes an input-dependent coefficient that is not marked."""


def interaction(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Interaction:
    """Return the operator of `layer` at `x`, whole: batch * seq^2 * d_out * d_in numbers.

    Args:
        layer: any map (batch, seq, d_in) -> (batch, seq, d_out) built on `coefficient`: a mixer, a norm, a block, a
            stack; of a backbone, the map from embeddings to outputs. It runs in eval mode.
        x: where the coefficients are recorded, in the layer's dtype (float32 or float64) and on its device.

    Returns:
        W with y_i = sum_j W_ij x_j + c_i, and c.

    Raises:
        NotAffineError: a coefficient is not marked; the message gives the size of the miss.
        OperatorError: the layer does not repeat itself, rows of the batch are coupled, autograd does not see what the
            layer computes, the whole output is a coefficient, which coefficients are marked depends on the input, or
            the layer's parameters are of several dtypes.
        ValueError: the layer is no module, x is not a finite (batch, seq, d_in) in its dtype, the output is not
            (batch, seq, d_out), or torch.inference_mode.
    """
    with replayed(layer, x) as held:
        return Interaction(torch.cat([block for _, block in held.rows()], dim=1), held.offset)


def offset_share(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> float:
    """|c| / |y| of `layer` at `x`: the share of the output that is not in W; 0 of a zero output.

    Rank, heads and input dependence are of W and say nothing about this part. Above 1 where c and W x cancel.

    Raises:
        OperatorError, ValueError: see `interaction`.
    """
    with replayed(layer, x) as held:
        whole = torch.linalg.vector_norm(held.output.double())
        return float(torch.linalg.vector_norm(held.offset.double()) / whole) if whole > 0 else 0.0


def check_offset(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> None:
    """Raise unless c is made of constants: with every parameter named `*bias` at zero, c must be zero.

    A part of the value stream that is marked as a coefficient ends up in c, where `interaction` cannot tell it from
    the image of a bias. Biases are put back before the function returns.

    Raises:
        OperatorError: c is not zero; the message gives |c| / |y|. See also `interaction`.
        ValueError: see `interaction`.
    """
    biases = {p: p.data for name, p in layer.named_parameters() if name.endswith("bias")}
    try:
        for p in biases:
            p.data = torch.zeros_like(p)
        share = offset_share(layer, x)
    finally:
        for p, value in biases.items():
            p.data = value
    if share > 0:
        raise OperatorError(
            f"|c| / |y| is {share:.2g} with every bias at zero: part of the value stream is marked as a coefficient "
            "and is missing from W; leave what is mixed over time unmarked"
        )


class Replayed:
    """A layer whose coefficients are held at their values at x: the affine map v -> W v + c, row by row of x.

    Probes are stacked along the batch, so that a pass serves many of them and custom kernels run as they are.

    Attributes:
        output: y, the layer's own output at x, (batch, seq, d_out).
        offset: c, (batch, seq, d_out).

    Args:
        f: the layer's map.
        x: where its coefficients are held.
        backward: check the backward pass too, from which `rmatvec` and `rows` read.

    Raises:
        OperatorError, ValueError: see `interaction`.
    """

    def __init__(self, f: Map, x: Float[Tensor, "batch seq d_in"], backward: bool = True) -> None:
        self._f, self._x = f, x
        self._tapes: dict[int, Tape] = {}
        other = _draw_like(x)
        self.output, at_other = separate_rows(lambda v: self._record(v)[1], x, other)
        self.batch, self.seq_len, self.d_in = x.shape
        self.d_out = self.output.shape[2]
        self.offset = self._replay(torch.zeros_like(x), 1)
        at_sum, sizes = self._check_affine(other)
        if not backward:
            return
        reached = self._check_adjoint(x + other, at_sum, sizes)
        if not reached and self.output.any() and not torch.equal(at_other, self.output):
            raise OperatorError(
                "the layer's output is a coefficient: all of it is in c and W is zero; leave the value that is mixed "
                "over time unmarked by zoo.coefficient.coefficient"
            )

    def matvec(self, probes: Float[Tensor, "rows batch seq d_in"]) -> Float[Tensor, "rows batch seq d_out"]:
        """W v for each probe v, by a forward pass; c is subtracted again, at the cost of its roundoff."""
        count = len(probes)
        y = self._replay(probes.flatten(0, 1), count)
        return y.unflatten(0, (count, self.batch)) - self.offset

    def rmatvec(self, cotangents: Float[Tensor, "rows batch seq d_out"]) -> Float[Tensor, "rows batch seq d_in"]:
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
        for now, units in self._units(self.d_out):
            yield now, rearrange(self.rmatvec(units), "(i out) batch j d_in -> batch i j out d_in", out=self.d_out)

    def columns(self) -> Iterator[tuple[slice, Float[Tensor, "batch columns seq d_out d_in"]]]:
        """W_ij for a few source positions j at a time (second axis; the third is i); read from the input side."""
        for now, units in self._units(self.d_in):
            yield now, rearrange(self.matvec(units), "(j d_in) batch i out -> batch j i out d_in", d_in=self.d_in)

    def probes_at_once(self) -> int:
        """Return how many probes one stacked pass takes."""
        return max(1, positions_at_once(self.d_in) // (self.batch * self.seq_len))

    def _units(self, width: int) -> Iterator[tuple[slice, Float[Tensor, "probes batch seq width"]]]:
        """One-hot probes for every channel of a few positions at a time, position by position."""
        step = max(1, self.probes_at_once() // width)
        for start in range(0, self.seq_len, step):
            now = slice(start, min(start + step, self.seq_len))
            units = self._x.new_zeros((now.stop - start) * width, self.seq_len * width)
            units.diagonal(start * width).fill_(1.0)
            yield now, units.unflatten(1, (self.seq_len, width)).unsqueeze(1).expand(-1, self.batch, -1, -1)

    def _record(self, x: Tensor) -> tuple[Tape, Tensor]:
        with torch.no_grad(), recording() as tape:
            return tape, self._f(x).detach()

    def _tape(self, count: int) -> Tape:
        """Return the coefficients of `count` copies of x stacked along the batch; the last stack is kept."""
        if count not in self._tapes:
            self._tapes = {count: self._record(self._x.repeat(count, 1, 1))[0]}
        return self._tapes[count]

    def _replay(self, v: Tensor, count: int) -> Tensor:
        with torch.no_grad(), replaying(self._tape(count)):
            return self._f(v).detach()

    def check_unchanged(self) -> None:
        """Raise OperatorError unless the layer still gives its first output at x."""
        _check_repeats(self.output, self._record(self._x)[1])

    def _check_affine(self, other: Tensor) -> tuple[Tensor, Tensor]:
        """f(x + v) - f(x) = f(v) - f(0) for v = x, -x and a random v, and f(x) is the recorded output.

        The random v is there for maps that are linear along every ray, such as |x|; -x for branches on a sign.

        Returns:
            f(x + other), and all values that were met, (values, batch, seq, d_out).
        """
        x, zero = self._x, self.offset
        one = self._replay(x, 1)
        misses, met, at_sum = [one - self.output], [self.output, zero], one
        for v in (x, -x, other):
            at_v, at_sum = self._replay(v, 1), self._replay(x + v, 1)
            misses.append((at_sum - one) - (at_v - zero))
            met += [at_v, at_sum]
        sizes = torch.stack(met)
        _require(
            NotAffineError,
            "the layer is not affine under replay",
            _miss(torch.stack(misses), sizes),
            "some input-dependent coefficient is not marked with zoo.coefficient.coefficient",
            x.dtype,
        )
        return at_sum, sizes

    def _check_adjoint(self, z: Tensor, at_z: Tensor, sizes: Tensor) -> bool:
        """<W^T u, z> + <u, c> = <u, f(z)> for random u, row by row: do both passes have the same W?

        u is drawn relative to the size of each channel, so that small ones count as much as large ones.

        Returns:
            Whether any W^T u differs from zero.
        """
        shape = (_N_COTANGENTS, *at_z.shape)
        draw = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype).to(z.device)
        u = draw / _channel_sizes(sizes)
        pulled = self.rmatvec(u)
        forward = (u.double() * (at_z - self.offset).double()).sum((2, 3))
        backward = (pulled.double() * z.double()).sum((2, 3))
        _require(
            OperatorError,
            "autograd does not see what the layer computes",
            float(((backward - forward).abs() / torch.linalg.vector_norm(draw, dim=(2, 3))).max()),
            "part of it runs under no_grad, is detached or rounded, leaves torch, or has a wrong backward pass; "
            "W is read from backward passes",
            z.dtype,
        )
        return bool(pulled.any())


def separate_rows(f: Map, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """f(x) and f(other); f must repeat itself and treat the rows of a batch as separate sequences.

    Args:
        f: map of a layer, run without gradients.
        x: (batch, seq, d_in).
        other: another input of that shape; drawn by default.

    Raises:
        OperatorError: the same input gives another output, or the output of a row depends on other rows or on its
            place in the batch.
        ValueError: the output is not a finite (batch, seq, d_out) in x's dtype.
    """
    with torch.no_grad():
        y = f(x).detach()  # a view of a parameter asks for gradients even here
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            raise ValueError(f"the layer must map (batch, seq, d_in) to (batch, seq, d_out), got {tuple(y.shape)}")
        if y.dtype != x.dtype:
            raise ValueError(f"the layer must answer in its input's dtype, got {y.dtype} for {x.dtype}")
        if not y.isfinite().all():
            raise ValueError("the layer's output is not finite at x")
        _check_repeats(y, f(x).detach())
        other = _draw_like(x) if other is None else other
        first, at_other, last = f(torch.cat([x, other, x])).detach().split(len(x))
    _require(
        OperatorError,
        "rows of the batch are coupled",
        _miss(torch.stack([first - y, last - y]), torch.stack([y, at_other])),
        "a sequence gives another output next to other sequences, or at another place in the batch; "
        "remove what is shared over the batch or drawn for all of it",
        x.dtype,
    )
    return y, at_other


def _check_repeats(first: Tensor, again: Tensor) -> None:
    _require(
        OperatorError,
        "the layer does not repeat itself",
        _miss(again - first, first) if again.shape == first.shape else math.nan,
        "the same input gives another output; it draws random numbers or keeps state between calls",
        first.dtype,
    )


def _draw_like(x: Tensor) -> Tensor:
    """Return a random input of x's size, from a fixed seed."""
    draw = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
    size = x.abs().max()
    return draw * (size * (x / size).square().mean().sqrt() if size > 0 else 1.0)


def _channel_sizes(values: Float[Tensor, "*values d_out"]) -> Float[Tensor, " d_out"]:
    """Return the largest finite size of each channel, at least where the roundoff of the largest one is in bounds."""
    finite = torch.where(values.isfinite(), values.abs(), 0.0).flatten(0, -2)
    own = finite.amax(0)
    sizes = own.clamp(min=_ROUNDOFF * torch.finfo(own.dtype).eps / AFFINE_RTOL[own.dtype] * own.max())
    return torch.where(sizes > 0, sizes, 1.0)


def _miss(errors: Float[Tensor, "*errors d_out"], values: Float[Tensor, "*values d_out"]) -> float:
    """Return the largest error relative to the size of its channel; NaN where an error is NaN."""
    return float((errors.abs().flatten(0, -2).amax(0) / _channel_sizes(values)).max())


def _require(kind: type[OperatorError], what: str, miss: float, why: str, dtype: torch.dtype) -> None:
    """Raise `kind` in one line unless the relative miss is within the roundoff of `dtype`."""
    if miss <= AFFINE_RTOL[dtype]:
        return
    if dtype == torch.float64 and miss < _FLOAT32_MISS:
        why += "; or, since the miss is of the size of float32 roundoff, part of the layer computes in float32"
    raise kind(f"{what} (relative miss {miss:.1e}): {why}")


@contextmanager
def replayed(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Iterator[Replayed]:
    """Hold the layer at x, in eval mode for as long as the block runs; at its end the layer must be unchanged.

    Raises:
        OperatorError, ValueError: see `interaction`.
    """
    check_input(layer, x)
    require_autograd()
    other = {name: p.dtype for name, p in layer.named_parameters() if p.is_floating_point() and p.dtype != x.dtype}
    for name, dtype in other.items():
        raise OperatorError(f"the layer computes in several dtypes: {name} is {dtype}, x {x.dtype}; convert all of it")
    try:
        with evaluated(layer) as f:
            held = Replayed(f, x.detach())
            yield held
            held.check_unchanged()
    except ReplayError as error:
        raise OperatorError(
            f"the layer marks other coefficients on another input: {error}; which values pass through "
            "zoo.coefficient.coefficient, and their shapes, must not depend on the input"
        ) from error


@contextmanager
def evaluated(layer: nn.Module) -> Iterator[Map]:
    """Hold the layer's map on embeddings, in eval mode for as long as the block runs."""
    training = [module for module in layer.modules() if module.training]
    on_embeddings = layer.from_embeddings if isinstance(layer, Backbone) else layer

    def f(x: Tensor) -> Tensor:
        y = on_embeddings(x)
        if not isinstance(y, Tensor):
            raise ValueError(f"the layer must return one tensor, got {type(y).__name__}: wrap it in a module that does")
        return y

    layer.eval()
    try:
        yield f
    finally:
        for module in training:
            module.training = True


def check_input(layer: nn.Module, x: Tensor) -> None:
    """Raise ValueError unless x is a finite (batch, seq, d_in) of the layer's dtype and on its device."""
    if not isinstance(layer, nn.Module):
        raise ValueError(f"the layer must be a torch.nn.Module, got {type(layer).__name__}; wrap a function in one")
    require_real("x", x, "(batch, seq, d_in)", (3,))
    own = like(layer, x)
    if (own.dtype, own.device) != (x.dtype, x.device):
        raise ValueError(
            f"x is {x.dtype} on {x.device}, the layer {own.dtype} on {own.device}: convert one to match the other"
        )


def require_autograd() -> None:
    """Raise ValueError in torch.inference_mode, where a layer would seem to have no gradients."""
    if torch.is_inference_mode_enabled():
        raise ValueError("torch.inference_mode turns off the gradients that are read here: leave it, or use no_grad")


def like(layer: nn.Module, default: Tensor | None = None) -> Tensor:
    """Return a tensor of the dtype and on the device that the layer computes in."""
    usual = torch.empty(0) if default is None else default
    return next((p for p in layer.parameters() if p.is_floating_point()), usual)


def draw_input(
    layer: nn.Module, batch_size: int, seq_len: int, generator: torch.Generator, instead: str, d_in: int | None = None
) -> Float[Tensor, "batch seq d_in"]:
    """Draw standard normal vectors for the layer, in its dtype and on its device.

    Raises:
        ValueError: no d_in, and a layer without d_model; the message names the argument to give instead.
    """
    width = getattr(layer, "d_model", None) if d_in is None else d_in
    if width is None:
        raise ValueError(f"{type(layer).__name__} has no d_model to draw an input from: give {instead}")
    return torch.randn(batch_size, seq_len, width, generator=generator, dtype=torch.float64).to(like(layer))
