"""Gated recurrent unit (GRU)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.modules import read_weight
from zoo.ops.precision import Device, DType
from zoo.ops.recurrent import gru, recurrent_rank
from zoo.ops.time import valid_positions
from zoo.validate import require_positive


class GRUState(NamedTuple):
    h: Tensor  # (batch, d_inner)


class GRU(SequenceMixer):
    """The gated recurrent unit, with the reset gate after the matrix product, as in cuDNN and torch.

        r, z = sigmoid(W_{r,z} x_t + R_{r,z} h_{t-1} + b_{r,z})
        n    = W_n x_t + b_n + r (R_n h_{t-1} + b)
        h_t  = z h_{t-1} + (1 - z) tanh(n)
        y_t  = out_proj h_t

    It can load the weights of `torch.nn.GRU`. Torch's fused kernel runs if no coefficient is requested; otherwise a
    loop with the same result runs and marks the coefficients. On a CPU the kernel is itself a loop over positions, one
    small product after the other: training runs at less than half the speed of `gated_delta_net`.

    Coefficients. r, z and tanh(n)/n. n is affine in x_t and h_{t-1}; its biases make the offset.

    State. h, d_inner numbers in the dtype of the activations. It does not grow.

    Interaction rank. min(d_inner, d_model)^2 for generic input: the products of the gates leave no fixed span.

    Source. Cho et al. 1406.1078.

    Args:
        d_model: width of input and output.
        d_inner: width of the state; default d_model.

    Raises:
        ValueError: non-positive sizes.
    """

    undecayed = ("bias", "recurrent_bias")

    def __init__(self, d_model: int, d_inner: int | None = None) -> None:
        super().__init__(d_model)
        require_positive(d_inner=d_inner)
        self.d_inner = d_inner or d_model
        self.in_proj = nn.Linear(d_model, 3 * self.d_inner, bias=False)  # gates stacked as r, z, n
        self.recurrent = nn.Parameter(torch.empty(3 * self.d_inner, self.d_inner))
        self.bias = nn.Parameter(torch.empty(3 * self.d_inner))
        self.recurrent_bias = nn.Parameter(torch.empty(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = self.d_inner**-0.5
        nn.init.uniform_(self.recurrent, -bound, bound)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.recurrent_bias)

    def rank_law(self, seq_len: int) -> int:
        # Products of gates and dense matrices fill the space between the two projections.
        return recurrent_rank(seq_len, self.d_inner, min(self.d_inner, self.d_model) ** 2)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> GRUState:
        return GRUState(torch.zeros(batch_size, self.d_inner, dtype=dtype, device=device))

    def mix(self, x: Tensor, state: GRUState, lengths: Tensor | None) -> tuple[Tensor, GRUState]:
        valid = None if lengths is None else valid_positions(lengths, x.shape[1])
        h, last = gru(x, read_weight(self.in_proj), self.recurrent, self.bias, self.recurrent_bias, state.h, valid)
        return self.out_proj(h), GRUState(last)
