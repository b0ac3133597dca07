"""Read the operator of any layer: y_i = sum_j W_ij(X) x_j + c_i.

Source: the unified view of Ghodsi (2512.15115). No code is needed per mixer: with its coefficients recorded at X and
replayed (`zoo.coefficient`), a layer is an affine map. c is its value at zero; rows of W come from backward passes with
one-hot cotangents, stacked along the batch. W is not unique: it depends on where each mixer puts `coefficient`.

A layer can violate the assumptions and still return numbers of the right shape. So we check first that it is
deterministic, treats the rows of a batch separately, is affine under replay, and passes the adjoint (dot-product) test
<W^T u, z> + <u, c> = <u, W z + c> of its backward pass; and afterwards that its output at x is unchanged. Undetected
are a value stream that is marked in part (see `offset_share` and `check_offset`), and branches on the input that no
probe takes; then W is right only at x.
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

_USUAL_WIDTH = 64  # widest layer that gets `POSITIONS_AT_ONCE`; wider ones get fewer

AFFINE_RTOL = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest deviation from the affine map, relative to the channel, that counts as roundoff."""

_ROUNDOFF = 8.0  # roundoff in the smallest channel, in eps of the largest one
_N_COTANGENTS = 3
_FLOAT32_MISS = 1e-5  # the largest error of a float64 layer that float32 arithmetic inside it would explain

Map: TypeAlias = Callable[[Tensor], Tensor]


def positions_at_once(width: int) -> int:
    """Return the number of positions in one stacked pass of a layer: `POSITIONS_AT_ONCE`, fewer if it is wide."""
    return POSITIONS_AT_ONCE * _USUAL_WIDTH // max(_USUAL_WIDTH, width)


class Interaction(NamedTuple):
    """W and c of a layer at one input."""

    operator: Float[Tensor, "batch seq seq d_out d_in"]
    offset: Float[Tensor, "batch seq d_out"]

    def apply(self, x: Float[Tensor, "batch seq d_in"]) -> Float[Tensor, "batch seq d_out"]:
        """Return sum_j W_ij x_j + c_i: the layer's output if x is the input at which W was read."""
        return torch.einsum("bijpd,bjd->bip", self.operator, x) + self.offset


class OperatorError(ValueError):
    """The operator of a layer cannot be read; the message gives the reason, the relative error and the remedy."""


class NotAffineError(OperatorError):
    """A layer is not affine under replay, because an input-dependent coefficient is not marked."""


def interaction(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Interaction:
    """Return the full operator of `layer` at `x`: batch * seq^2 * d_out * d_in numbers.

    Args:
        layer: any map (batch, seq, d_in) -> (batch, seq, d_out) built on `coefficient`: a mixer, a norm, a block, a
            stack, or a backbone, which is read from embeddings to outputs. It runs in eval mode.
        x: input at which the coefficients are recorded, in the layer's dtype (float32 or float64) and on its device.

    Returns:
        W with y_i = sum_j W_ij x_j + c_i, and c.

    Raises:
        NotAffineError: a coefficient is not marked; the message gives the relative error.
        OperatorError: the layer is not deterministic, rows of the batch are coupled, autograd does not see what the
            layer computes, the whole output is a coefficient, the marked coefficients depend on the input, or the
            layer's parameters have several dtypes.
        ValueError: the layer is not a module, x is not a finite (batch, seq, d_in) in its dtype, the output is not
            (batch, seq, d_out), or torch.inference_mode is on.
    """
    with replayed(layer, x) as held:
        return Interaction(torch.cat([block for _, block in held.rows()], dim=1), held.offset)


def offset_share(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> float:
    """Return |c| / |y| of `layer` at `x`, the share of the output that is not in W; 0 if the output is zero.

    Rank, heads and input dependence describe only W. The share exceeds 1 if c and W x cancel.

    Raises:
        OperatorError, ValueError: see `interaction`.
    """
    with replayed(layer, x) as held:
        whole = torch.linalg.vector_norm(held.output.double())
        return float(torch.linalg.vector_norm(held.offset.double()) / whole) if whole > 0 else 0.0


def check_offset(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> None:
    """Raise unless c comes from biases alone: with every parameter named `*bias` set to zero, c must be zero.

    A part of the value stream that is marked as a coefficient ends up in c, where `interaction` cannot tell it from a
    bias. The biases are restored before the function returns.

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
    """A layer with its coefficients fixed at their values at x: the affine map v -> W v + c, for each row of x.

    Probes are stacked along the batch, so that one pass serves many of them and custom kernels need no change.

    Attributes:
        output: y, the layer's output at x, (batch, seq, d_out).
        offset: c, (batch, seq, d_out).

    Args:
        f: the layer's map.
        x: input at which the coefficients are recorded.
        backward: also check the backward pass, which `rmatvec` and `rows` use.

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
        """Return W v for each probe v, by a forward pass minus c; it carries the roundoff of c."""
        count = len(probes)
        y = self._replay(probes.flatten(0, 1), count)
        return y.unflatten(0, (count, self.batch)) - self.offset

    def rmatvec(self, cotangents: Float[Tensor, "rows batch seq d_out"]) -> Float[Tensor, "rows batch seq d_in"]:
        """Return W^T u for each cotangent u, by a backward pass."""
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
        """Yield a few output positions i at a time, and their W_ij, by backward passes."""
        for now, units in self._units(self.d_out):
            yield now, rearrange(self.rmatvec(units), "(i out) batch j d_in -> batch i j out d_in", out=self.d_out)

    def columns(self) -> Iterator[tuple[slice, Float[Tensor, "batch columns seq d_out d_in"]]]:
        """Yield a few source positions j at a time, and their W_ij (axis 1 is j, axis 2 is i), by forward passes."""
        for now, units in self._units(self.d_in):
            yield now, rearrange(self.matvec(units), "(j d_in) batch i out -> batch j i out d_in", d_in=self.d_in)

    def probes_at_once(self) -> int:
        """Return the number of probes in one stacked pass."""
        return max(1, positions_at_once(self.d_in) // (self.batch * self.seq_len))

    def _units(self, width: int) -> Iterator[tuple[slice, Float[Tensor, "probes batch seq width"]]]:
        """Yield a few positions at a time, and one-hot probes for all their channels."""
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
        """Return the coefficients at `count` copies of x stacked along the batch; the last tape is cached."""
        if count not in self._tapes:
            self._tapes = {count: self._record(self._x.repeat(count, 1, 1))[0]}
        return self._tapes[count]

    def _replay(self, v: Tensor, count: int) -> Tensor:
        with torch.no_grad(), replaying(self._tape(count)):
            return self._f(v).detach()

    def check_unchanged(self) -> None:
        """Raise OperatorError unless the layer's output at x is still the first one."""
        _check_repeats(self.output, self._record(self._x)[1])

    def _check_affine(self, other: Tensor) -> tuple[Tensor, Tensor]:
        """Check f(x + v) - f(x) = f(v) - f(0) for v = x, -x and a random v, and that f(x) is the recorded output.

        The random v detects maps that are linear along every ray, such as |x|; -x detects branches on a sign.

        Returns:
            f(x + other), and all values of f met on the way, (values, batch, seq, d_out).
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
        """Check <W^T u, z> + <u, c> = <u, f(z)> for random u and each row: do both passes have the same W?

        u is scaled by the size of each channel, so that small and large channels count alike.

        Returns:
            Whether any W^T u is nonzero.
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
    """Return f(x) and f(other), after checking that f is deterministic and treats rows of a batch separately.

    Args:
        f: map of a layer, run without gradients.
        x: input (batch, seq, d_in).
        other: another input of that shape; default random.

    Raises:
        OperatorError: the same input gives different outputs, or the output of a row depends on other rows or on its
            place in the batch.
        ValueError: the output is not a finite (batch, seq, d_out) in x's dtype.
    """
    with torch.no_grad():
        y = f(x).detach()  # a view of a parameter requires gradients even under no_grad
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            raise ValueError(f"the layer must map (batch, seq, d_in) to (batch, seq, d_out), got {tuple(y.shape)}")
        if y.dtype != x.dtype:
            raise ValueError(f"the layer's output must have its input's dtype, got {y.dtype} for {x.dtype}")
        if not y.isfinite().all():
            raise ValueError("the layer's output is not finite at x")
        _check_repeats(y, f(x).detach())
        other = _draw_like(x) if other is None else other
        first, at_other, last = f(torch.cat([x, other, x])).detach().split(len(x))
    _require(
        OperatorError,
        "rows of the batch are coupled",
        _miss(torch.stack([first - y, last - y]), torch.stack([y, at_other])),
        "the output of a sequence depends on other sequences of the batch, or on its place there; "
        "remove statistics and random draws that are shared over the batch",
        x.dtype,
    )
    return y, at_other


def _check_repeats(first: Tensor, again: Tensor) -> None:
    _require(
        OperatorError,
        "the layer is not deterministic",
        _miss(again - first, first) if again.shape == first.shape else math.nan,
        "the same input gives different outputs; it draws random numbers or keeps state between calls",
        first.dtype,
    )


def _draw_like(x: Tensor) -> Tensor:
    """Return a random input with the shape and root mean square of x, from a fixed seed."""
    draw = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
    size = x.abs().max()
    return draw * (size * (x / size).square().mean().sqrt() if size > 0 else 1.0)


def _channel_sizes(values: Float[Tensor, "*values d_out"]) -> Float[Tensor, " d_out"]:
    """Return the largest finite magnitude of each channel, bounded below by the roundoff of the largest channel."""
    finite = torch.where(values.isfinite(), values.abs(), 0.0).flatten(0, -2)
    own = finite.amax(0)
    sizes = own.clamp(min=_ROUNDOFF * torch.finfo(own.dtype).eps / AFFINE_RTOL[own.dtype] * own.max())
    return torch.where(sizes > 0, sizes, 1.0)


def _miss(errors: Float[Tensor, "*errors d_out"], values: Float[Tensor, "*values d_out"]) -> float:
    """Return the largest error relative to the size of its channel; NaN where an error is NaN."""
    return float((errors.abs().flatten(0, -2).amax(0) / _channel_sizes(values)).max())


def _require(kind: type[OperatorError], problem: str, miss: float, reason: str, dtype: torch.dtype) -> None:
    """Raise `kind`, in one line, unless the relative error `miss` is within the roundoff of `dtype`."""
    if miss <= AFFINE_RTOL[dtype]:
        return
    if dtype == torch.float64 and miss < _FLOAT32_MISS:
        reason += "; or part of the layer computes in float32, since the error has the size of its roundoff"
    raise kind(f"{problem} (relative error {miss:.1e}): {reason}")


@contextmanager
def replayed(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Iterator[Replayed]:
    """Fix the layer's coefficients at x, in eval mode, within the block; at its end the output at x is checked again.

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
            f"the layer marks other coefficients on another input: {error}; the calls of "
            "zoo.coefficient.coefficient, and their shapes, must not depend on the input"
        ) from error


@contextmanager
def evaluated(layer: nn.Module) -> Iterator[Map]:
    """Yield the layer's map (of a backbone, from embeddings), in eval mode within the block."""
    training = [module for module in layer.modules() if module.training]
    on_embeddings = layer.from_embeddings if isinstance(layer, Backbone) else layer

    def f(x: Tensor) -> Tensor:
        y = on_embeddings(x)
        if not isinstance(y, Tensor):
            raise ValueError(f"the layer must return one tensor, got {type(y).__name__}; wrap it in a module that does")
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
    """Raise ValueError in torch.inference_mode, which disables gradients."""
    if torch.is_inference_mode_enabled():
        raise ValueError("torch.inference_mode turns off the gradients that are needed here: use torch.no_grad instead")


def like(layer: nn.Module, default: Tensor | None = None) -> Tensor:
    """Return a tensor with the layer's dtype and device: its first floating-point parameter, else `default`."""
    usual = torch.empty(0) if default is None else default
    return next((p for p in layer.parameters() if p.is_floating_point()), usual)


def draw_input(
    layer: nn.Module, batch_size: int, seq_len: int, generator: torch.Generator, instead: str, d_in: int | None = None
) -> Float[Tensor, "batch seq d_in"]:
    """Draw standard normal vectors for the layer, in its dtype and on its device.

    Raises:
        ValueError: no d_in, and a layer without d_model; the message asks for the argument `instead`.
    """
    width = getattr(layer, "d_model", None) if d_in is None else d_in
    if width is None:
        raise ValueError(f"{type(layer).__name__} has no d_model to draw an input from: give {instead}")
    return torch.randn(batch_size, seq_len, width, generator=generator, dtype=torch.float64).to(like(layer))
