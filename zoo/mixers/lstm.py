"""Long short-term memory (LSTM)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.modules import read_weight
from zoo.ops.precision import Device, DType
from zoo.ops.recurrent import lstm, recurrent_rank
from zoo.ops.time import valid_positions
from zoo.validate import require_positive


class LSTMState(NamedTuple):
    h: Tensor  # (batch, d_inner)
    c: Tensor  # (batch, d_inner)


class LSTM(SequenceMixer):
    """Long short-term memory with a forget gate.

        i, f, o = sigmoid(W_{i,f,o} x_t + R_{i,f,o} h_{t-1} + b_{i,f,o})
        g       = W_g x_t + R_g h_{t-1} + b_g
        c_t     = f c_{t-1} + i tanh(g)
        h_t     = o tanh(c_t)
        y_t     = out_proj h_t

    Torch's fused kernel runs if no coefficient is requested; otherwise a loop with the same result runs and marks the
    coefficients. On a CPU the kernel is itself a loop over positions, one small product after the other: training runs
    at less than half the speed of `gated_delta_net`.

    Coefficients. The three gates, tanh(g)/g and tanh(c)/c. g is affine in x_t and h_{t-1}; its bias makes the offset.

    State. h and c, 2 d_inner numbers in the dtype of the activations. It does not grow.

    Interaction rank. min(d_inner, d_model)^2 for generic input: the products of the gates leave no fixed span.

    Source. Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.

    Args:
        d_model: width of input and output.
        d_inner: width of the cell; default d_model.
        forget_bias: initial bias of the forget gate; with 3 an untrained cell remembers for about 20 steps.

    Raises:
        ValueError: non-positive sizes, a forget_bias that is not finite.
    """

    undecayed = ("bias",)

    def __init__(self, d_model: int, d_inner: int | None = None, forget_bias: float = 1.0) -> None:
        super().__init__(d_model)
        require_positive(d_inner=d_inner)
        if not math.isfinite(forget_bias):
            raise ValueError(f"forget_bias must be finite, got {forget_bias}")
        self.d_inner, self.forget_bias = d_inner or d_model, forget_bias
        self.in_proj = nn.Linear(d_model, 4 * self.d_inner, bias=False)
        self.recurrent = nn.Parameter(torch.empty(4 * self.d_inner, self.d_inner))
        self.bias = nn.Parameter(torch.empty(4 * self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = self.d_inner**-0.5
        nn.init.uniform_(self.recurrent, -bound, bound)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias.view(4, -1)[1] = self.forget_bias

    def rank_law(self, seq_len: int) -> int:
        # Products of gates and dense matrices fill the space between the two projections.
        return recurrent_rank(seq_len, self.d_inner, min(self.d_inner, self.d_model) ** 2)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> LSTMState:
        h = torch.zeros(batch_size, self.d_inner, dtype=dtype, device=device)
        return LSTMState(h, h.clone())

    def mix(self, x: Tensor, state: LSTMState, lengths: Tensor | None) -> tuple[Tensor, LSTMState]:
        valid = None if lengths is None else valid_positions(lengths, x.shape[1])
        h, *last = lstm(x, read_weight(self.in_proj), self.recurrent, self.bias, state.h, state.c, valid)
        return self.out_proj(h), LSTMState(*last)
