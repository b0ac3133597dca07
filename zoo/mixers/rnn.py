"""The plain recurrent network, with tanh or without a nonlinearity."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.modules import read_weight
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.recurrent import linear_rnn, recurrent_rank, rnn
from zoo.ops.time import valid_positions
from zoo.validate import require_choice, require_positive

Nonlinearity = Literal["tanh", "linear"]


class RNNState(NamedTuple):
    h: Tensor  # (batch, d_inner), at least float32 if the recurrence is linear


class RNN(SequenceMixer):
    """The plain recurrent network; f is tanh or the identity.

        h_t = f(a_t), a_t = W x_t + R h_{t-1} + b
        y_t = out_proj h_t

    The linear network runs in chunks, by doubling: after step k a position holds the sum over 2^k lags. For tanh,
    torch's fused kernel runs if no coefficient is requested; otherwise a loop with the same result runs and marks the
    coefficients. On a CPU the kernel is itself a loop over positions, one small product after the other: training runs
    at less than half the speed of `gated_delta_net`.

    Coefficients. tanh: tanh(a)/a, and W_ij is a product of the steps between j and i. linear: none, W_ij = W_out
    R^(i-j) W. The bias makes the offset.

    State. h, d_inner numbers, in the dtype of the activations (tanh) or at least float32 (linear). It does not grow.

    Interaction rank. tanh: min(d_inner, d_model)^2 for generic input. linear: min(seq_len, d_inner, d_model^2), since
    R^d_inner is a combination of lower powers (Cayley and Hamilton).

    Source. Elman 1990.

    Args:
        d_model: width of input and output.
        d_inner: width of the state; default d_model.
        nonlinearity: f, tanh or linear.

    Raises:
        ValueError: non-positive sizes, an unknown nonlinearity.
    """

    undecayed = ("bias",)

    def __init__(self, d_model: int, d_inner: int | None = None, nonlinearity: Nonlinearity = "tanh") -> None:
        super().__init__(d_model)
        require_positive(d_inner=d_inner)
        require_choice("nonlinearity", nonlinearity, Nonlinearity)
        self.d_inner, self.nonlinearity = d_inner or d_model, nonlinearity
        self.in_proj = nn.Linear(d_model, self.d_inner, bias=False)
        self.recurrent = nn.Parameter(torch.empty(self.d_inner, self.d_inner))
        self.bias = nn.Parameter(torch.empty(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = self.d_inner**-0.5
        nn.init.uniform_(self.recurrent, -bound, bound)
        nn.init.zeros_(self.bias)

    def rank_law(self, seq_len: int) -> int:
        # Powers of one matrix, or products of gates and dense matrices between the two projections.
        if self.nonlinearity == "linear":
            return min(self.d_inner, seq_len)
        return recurrent_rank(seq_len, self.d_inner, min(self.d_inner, self.d_model) ** 2)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> RNNState:
        kind = accumulator(dtype) if self.nonlinearity == "linear" else dtype
        return RNNState(torch.zeros(batch_size, self.d_inner, dtype=kind, device=device))

    def mix(self, x: Tensor, state: RNNState, lengths: Tensor | None) -> tuple[Tensor, RNNState]:
        if self.nonlinearity == "linear":
            h, last = linear_rnn(self.in_proj(x) + self.bias, self.recurrent, state.h, lengths)
        else:
            valid = None if lengths is None else valid_positions(lengths, x.shape[1])
            h, last = rnn(x, read_weight(self.in_proj), self.recurrent, self.bias, state.h, valid)
        return self.out_proj(h.to(x.dtype)), RNNState(last)
