"""Recurrent networks: loops that mark every gate as a coefficient, and torch's fused kernels if no marks are needed."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from zoo.coefficient import active, coefficient
from zoo.ops.activation import tanh
from zoo.ops.chunked import halvable, into_chunks
from zoo.ops.precision import full_precision, linear_dtype
from zoo.ops.time import state_after
from zoo.ops.transforms import compiling, followed, on_cpu, one_operation, transformed, whole_in_export

CHUNK = 32  # chunk size of `linear_rnn`

Kernel = Literal["lstm", "gru", "rnn_tanh"]


@whole_in_export(
    "(Tensor x, Tensor in_weight, Tensor recurrent, Tensor bias, Tensor h, Tensor c, Tensor? valid)"
    " -> (Tensor, Tensor, Tensor)",
    lambda x, in_weight, recurrent, bias, h, c, valid: (
        h.new_empty(*x.shape[:2], h.shape[1]),
        torch.empty_like(h),
        torch.empty_like(c),
    ),
)
def lstm(
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "four_d_inner d_model"],
    recurrent: Float[Tensor, "four_d_inner d_inner"],
    bias: Float[Tensor, " four_d_inner"],
    h: Float[Tensor, "batch d_inner"],
    c: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"], Float[Tensor, "batch d_inner"]]:
    """`lstm_scan` of in_weight x + bias; by torch's fused kernel if that suffices."""
    if fused_suffices("lstm", x):
        if valid is not None:
            x, in_weight = _with_shut_gates(x, in_weight, valid)
        y, last, c = fused_recurrence("lstm", x, in_weight, recurrent, bias, h, c)
        return y, _last(h, y, last, valid), c
    return lstm_scan(F.linear(x, in_weight) + bias, recurrent, h, c, valid)


def lstm_scan(
    u: Float[Tensor, "batch seq four_d_inner"],
    recurrent: Float[Tensor, "four_d_inner d_inner"],
    h: Float[Tensor, "batch d_inner"],
    c: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"], Float[Tensor, "batch d_inner"]]:
    """c_t = f c_{t-1} + i tanh(g), h_t = o tanh(c_t), gates [i f g o] = u_t + recurrent h_{t-1}.

    Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000. sigmoid(i), sigmoid(f), sigmoid(o) are
    coefficients, and so are tanh(g)/g and tanh(c)/c.

    Args:
        u: input part of the four gates, bias included.
        recurrent: matrix that maps h to the four gates.
        h, c: state before the first position.
        valid: positions that update the state; the others keep it.

    Returns:
        h at every position, and the last h and c.
    """
    outputs = []
    for t, u_t in enumerate(u.unbind(1)):
        i, f, g, o = (u_t + F.linear(h, recurrent)).chunk(4, dim=-1)
        i, f, o = coefficient(torch.sigmoid(torch.stack((i, f, o)))).unbind(0)
        c_next = f * c + i * tanh(g)
        h_next = o * tanh(c_next)
        if valid is not None:
            moves = valid[:, t].unsqueeze(-1)
            h_next, c_next = torch.where(moves, h_next, h), torch.where(moves, c_next, c)
        h, c = h_next, c_next
        outputs.append(h)
    return torch.stack(outputs, dim=1), h, c


@whole_in_export(
    "(Tensor x, Tensor in_weight, Tensor recurrent, Tensor bias, Tensor recurrent_bias, Tensor h, Tensor? valid)"
    " -> (Tensor, Tensor)",
    lambda x, in_weight, recurrent, bias, recurrent_bias, h, valid: (
        h.new_empty(*x.shape[:2], h.shape[1]),
        torch.empty_like(h),
    ),
)
def gru(
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "three_d_inner d_model"],
    recurrent: Float[Tensor, "three_d_inner d_inner"],
    bias: Float[Tensor, " three_d_inner"],
    recurrent_bias: Float[Tensor, " d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """`gru_scan` of in_weight x + bias; by torch's fused kernel if that suffices."""
    if fused_suffices("gru", x):
        padded = F.pad(recurrent_bias, (2 * len(recurrent_bias), 0))
        y, last = fused_recurrence("gru", x, in_weight, recurrent, bias, h, recurrent_bias=padded)
        return y, _last(h, y, last, valid)
    return gru_scan(F.linear(x, in_weight) + bias, recurrent, recurrent_bias, h, valid)


def gru_scan(
    u: Float[Tensor, "batch seq three_d_inner"],
    recurrent: Float[Tensor, "three_d_inner d_inner"],
    recurrent_bias: Float[Tensor, " d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """h_t = z h_{t-1} + (1 - z) tanh(u_n + r (R_n h_{t-1} + b)), gates r, z = sigmoid(u_{r,z} + R_{r,z} h_{t-1}).

    Cho et al. 1406.1078 with the reset after the matrix product, as in cuDNN and torch. r, z and tanh(n)/n are
    coefficients.

    Args:
        u: input part of [r z n], bias included.
        recurrent: matrix that maps h to [r z n].
        recurrent_bias: b, which the reset gate scales.
        h: state before the first position.
        valid: positions that update the state; the others keep it.

    Returns:
        h at every position, and the last.
    """
    outputs = []
    d_inner = h.shape[1]
    for t, u_t in enumerate(u.unbind(1)):
        gates, candidate = F.linear(h, recurrent).split((2 * d_inner, d_inner), dim=-1)
        u_gates, u_candidate = u_t.split((2 * d_inner, d_inner), dim=-1)
        r, z = coefficient(torch.sigmoid(u_gates + gates)).chunk(2, dim=-1)
        h_next = z * h + (1 - z) * tanh(u_candidate + r * (candidate + recurrent_bias))
        h = h_next if valid is None else torch.where(valid[:, t].unsqueeze(-1), h_next, h)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h


@whole_in_export(
    "(Tensor x, Tensor in_weight, Tensor recurrent, Tensor bias, Tensor h, Tensor? valid) -> (Tensor, Tensor)",
    lambda x, in_weight, recurrent, bias, h, valid: (h.new_empty(*x.shape[:2], h.shape[1]), torch.empty_like(h)),
)
def rnn(
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "d_inner d_model"],
    recurrent: Float[Tensor, "d_inner d_inner"],
    bias: Float[Tensor, " d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """`rnn_scan` of in_weight x + bias; by torch's fused kernel if that suffices."""
    if fused_suffices("rnn_tanh", x):
        y, last = fused_recurrence("rnn_tanh", x, in_weight, recurrent, bias, h)
        return y, _last(h, y, last, valid)
    return rnn_scan(F.linear(x, in_weight) + bias, recurrent, h, valid)


def rnn_scan(
    u: Float[Tensor, "batch seq d_inner"],
    recurrent: Float[Tensor, "d_inner d_inner"],
    h: Float[Tensor, "batch d_inner"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """h_t = tanh(u_t + R h_{t-1}) (Elman 1990); tanh(a)/a is a coefficient, a the value.

    Args:
        u: input part, bias included.
        recurrent: R.
        h: state before the first position.
        valid: positions that update the state; the others keep it.

    Returns:
        h at every position, and the last.
    """
    outputs = []
    for t, u_t in enumerate(u.unbind(1)):
        h_next = tanh(u_t + F.linear(h, recurrent))
        h = h_next if valid is None else torch.where(valid[:, t].unsqueeze(-1), h_next, h)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h


def linear_rnn(
    u: Float[Tensor, "batch seq d_inner"],
    recurrent: Float[Tensor, "d_inner d_inner"],
    h: Float[Tensor, "batch d_inner"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], Float[Tensor, "batch d_inner"]]:
    """h_t = u_t + R h_{t-1}: within a chunk by doubling, with one carry between chunks.

    After step k of the doubling, position t holds the sum of R^s u_{t-s} over s < 2^k, so a chunk takes log2(CHUNK)
    products with the powers R^(2^k). The carry is added to the chunk's first input. Everything is computed in the dtype
    of the state, even under autocast, since the error of the sum has no bound. Off the CPU all chunks are computed at
    once (`_in_levels`).

    Args:
        u: input part, bias included.
        recurrent: R, dense.
        h: state before the first position.
        lengths: valid positions of each row.

    Returns:
        h at every position, and h after `lengths` positions, by default the last.
    """
    with full_precision(u.device):
        u, recurrent = u.to(h.dtype), recurrent.to(h.dtype)
        states = (_chunk_by_chunk if on_cpu(u) and not followed() else _in_levels)(u, recurrent, h)
    return states, state_after(h, states, lengths)


def _chunk_by_chunk(u: Tensor, recurrent: Tensor, h: Tensor) -> Tensor:
    powers, span = [recurrent], 2
    while span < min(CHUNK, u.shape[1]):
        powers.append(powers[-1] @ powers[-1])
        span *= 2
    states = []
    for chunk in u.split(CHUNK, dim=1):
        first = chunk[:, :1] + F.linear(h, recurrent).unsqueeze(1)
        held = torch.cat((first, chunk[:, 1:]), dim=1)
        for k, power in enumerate(powers):
            shifted = F.pad(held, (0, 0, 2**k, 0))[:, : held.shape[1]]
            held = held + F.linear(shifted, power)
        h = held[:, -1]
        states.append(held)
    return torch.cat(states, dim=1)


def _in_levels(u: Tensor, recurrent: Tensor, h: Tensor) -> Tensor:
    """Compute all chunks from an empty state; the states after chunks are a linear RNN too, with the matrix R^CHUNK.

    The number of operations grows with log2 of the length.
    """
    seq_len, size, span = u.shape[1], halvable(u.shape[1], CHUNK), 1
    held, power, powers = into_chunks(u.unsqueeze(1), size).squeeze(1), recurrent, recurrent
    while span < size:
        held = held + F.linear(F.pad(held, (0, 0, span, -span)), power)
        powers = torch.cat((powers, powers @ power))  # R, R^2, ..., stacked
        power, span = powers[-len(power) :], 2 * span
    entering = h.unsqueeze(1)
    if held.shape[1] > 1:
        after = _in_levels(held[:, :-1, -1], power, h)
        entering = torch.cat((entering, after), dim=1)
    held = held + F.linear(entering, powers).unflatten(2, (size, h.shape[1]))
    return held.flatten(1, 2)[:, :seq_len]


def _with_shut_gates(x: Tensor, in_weight: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Add an input channel that is one outside `valid` and keeps an LSTM's c there: i is 0 and f is 1, exactly."""
    gate = in_weight.new_full((len(in_weight) // 4, 1), 1e4)
    shut = torch.cat((-gate, gate, torch.zeros_like(gate), torch.zeros_like(gate)))
    outside = (~valid).unsqueeze(2).to(x.dtype)
    return torch.cat((x, outside), dim=2), torch.cat((in_weight, shut), dim=1)


def _last(h: Tensor, y: Tensor, last: Tensor, valid: Tensor | None) -> Tensor:
    """Return h after the valid positions of each row; `last` if all are valid."""
    return last if valid is None else state_after(h.to(y.dtype), y, valid.sum(1))


def fused_suffices(kernel: Kernel, x: Tensor) -> bool:
    """Return whether torch's fused kernel can replace the loop: no coefficients requested, no transform active.

    The kernel must also exist: below float32 some CPUs lack it, so a compiler gets the loop there.
    """
    if active() or transformed() or len(x) == 0:
        return False
    if not on_cpu(x):
        return True
    kind = linear_dtype(x)
    return kind.itemsize >= torch.float32.itemsize or (not compiling() and _exists_on_cpu(kernel, x.dtype, kind))


@cache
def _exists_on_cpu(kernel: Kernel, dtype: torch.dtype, autocast_to: torch.dtype) -> bool:
    """Return whether this CPU can run `kernel` forward and backward, by trying it once on a single number.

    torch delegates the bfloat16 LSTM to oneDNN, which supports it on processors with AVX-512 and raises on others.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", dtype=autocast_to, enabled=autocast_to != dtype, cache_enabled=False),
    ):
        gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[kernel]
        x, state = (torch.zeros(shape, dtype=dtype) for shape in ((1, 1, 1), (1, 1)))
        weight, bias = (torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in ((gates, 1), (gates,)))
        states = [state] * (2 if kernel == "lstm" else 1)
        try:
            y = fused_recurrence(kernel, x, weight, weight, bias, *states)[0]
            torch.autograd.grad(y.sum(), weight)
        except RuntimeError:
            return False
    return True


def fused_recurrence(
    kernel: Kernel,
    x: Float[Tensor, "batch seq d_model"],
    in_weight: Float[Tensor, "gates d_model"],
    recurrent: Float[Tensor, "gates d_inner"],
    bias: Float[Tensor, " gates"],
    *state: Float[Tensor, "batch d_inner"],
    recurrent_bias: Float[Tensor, " gates"] | None = None,
) -> tuple[Float[Tensor, "batch seq d_inner"], *tuple[Float[Tensor, "batch d_inner"], ...]]:
    """Run one layer of torch.nn's LSTM, GRU or tanh RNN from given weights and state.

    Args:
        kernel: which of the three.
        x: input, before its projection.
        in_weight, recurrent, bias, recurrent_bias: the two maps to the gates, in torch's order of gates.
        state: h, and c of an LSTM, before the first position.

    Returns:
        h at every position, then the state after the last.
    """
    given = [x, in_weight, recurrent, bias, torch.zeros_like(bias) if recurrent_bias is None else recurrent_bias]
    given += [t.to(x.dtype) for t in state]
    y, *after = (_fused_recurrence if x.is_meta or compiling() else _by_torch)(kernel, given)
    return y, *after


def _by_torch(kernel: Kernel, given: list[Tensor]) -> list[Tensor]:
    x, *weights = given[:5]
    if x.is_cuda:
        # cuDNN warns unless its weights are contiguous in memory, one after the other.
        flat = torch.cat([w.flatten() for w in weights]).split([w.numel() for w in weights])
        weights = [part.view_as(w) for part, w in zip(flat, weights, strict=True)]
    before = [t.unsqueeze(0) for t in given[5:]]
    settings = (weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
    if kernel == "lstm":
        y, *after = torch.lstm(x, before, *settings)
    else:
        y, *after = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh}[kernel](x, before[0], *settings)
    return [y, *(t.squeeze(0) for t in after)]


@one_operation(
    "(str kernel, Tensor[] given) -> Tensor[]",
    lambda kernel, given: [
        given[0].new_empty(*given[0].shape[:2], given[5].shape[1]),
        *(t.new_empty(t.shape) for t in given[5:]),
    ],
)
def _fused_recurrence(kernel: Kernel, given: list[Tensor]) -> list[Tensor]:
    y, *after = _by_torch(kernel, given)
    return [y, *(t.clone() for t in after)]


def recurrent_rank(seq_len: int, n_channels: int, most: int) -> int:
    """Count the operators of a recurrence with dense matrices and gates, up to `most`.

    Each pair of positions has its own operator, except at lag zero, where only gates act, channel by channel between
    fixed maps.

    >>> [recurrent_rank(n, 4, 16) for n in (1, 4, 5, 6)]
    [1, 10, 14, 16]

    Args:
        seq_len: number of positions.
        n_channels: gated channels.
        most: operators that a long sequence spans.
    """
    return min(most, min(seq_len, n_channels) + seq_len * (seq_len - 1) // 2)
