"""RWKV-4: each channel averages its own past, with decaying weights and a bonus for the current position."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.ops.activation import sigmoid_gate
from zoo.ops.conv import token_shift
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import valid_positions
from zoo.ops.wkv import wkv
from zoo.validate import require_positive

_EMPTY = -1e38  # log scale before the first position: finite, so that differences are finite too


class RWKV4State(NamedTuple):
    last: Tensor  # (batch, 1, d_model), the last input
    numerator: Tensor  # (batch, d_inner), at least float32, like the next two
    denominator: Tensor  # (batch, d_inner)
    largest: Tensor  # (batch, d_inner), log of the scale by which both sums are divided


class RWKV4(SequenceMixer):
    """The time mixing of RWKV-4: for each channel, an average over the past with decaying weights.

        x^s_t = mu_s * x_t + (1 - mu_s) * x_{t-1}                       s = r, k, v
        r, k, v = W_r x^r, W_k x^k, W_v x^v
        w_tj = exp(k_j - (t - 1 - j) exp(decay)),  w_tt = exp(k_t + bonus)
        y_t = out_proj(sigmoid(r_t) * sum_{j <= t} w_tj v_j / sum_{j <= t} w_tj)

    Coefficients. The weights divided by their sums, and sigmoid(r).

    State. Two sums and the logarithm of their scale, 3 d_inner numbers, at least float32, and the last input of d_model
    channels. It does not grow.

    Interaction rank. Each channel has its own weights, and so its own map, a column of out_proj times a row of W_v. The
    shift doubles the rows: min(2, d_model) d_inner, at most d_model^2.

    Source. Peng et al. 2305.13048, section 3; BlinkDL/RWKV-LM, commit 083f950, RWKV-v4/src/model.py. Parameters start
    as in the first layer of a deep model of the authors, except W_r, W_k and out_proj, which are zero there and start
    as nn.Linear does here. transformers 5.23 starts the bonus at one; the authors start it at log 0.3 plus a zigzag of
    1/2.

    Args:
        d_model: width of input and output.
        d_inner: channels that are averaged; default d_model.

    Raises:
        ValueError: non-positive sizes.
    """

    undecayed = ("shift",)

    def __init__(self, d_model: int, d_inner: int | None = None) -> None:
        super().__init__(d_model)
        require_positive(d_inner=d_inner)
        self.d_inner = d_inner or d_model
        self.shift = nn.Parameter(torch.empty(3, d_model))
        self.r_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, self.d_inner, bias=False) for _ in range(3))
        self.decay, self.bonus = (nn.Parameter(torch.empty(self.d_inner)) for _ in range(2))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for projection in (self.r_proj, self.k_proj, self.out_proj):
            projection.reset_parameters()
        nn.init.orthogonal_(self.v_proj.weight, max(1.0, self.d_inner / self.d_model) ** 0.5)
        channel = torch.arange(self.d_inner)
        with torch.no_grad():
            along = torch.arange(self.d_model) / self.d_model
            self.shift.copy_(along ** torch.tensor([0.5, 1.0, 1.0]).unsqueeze(1))
            self.decay.copy_(8 * (channel / max(1, self.d_inner - 1)) ** 0.7 - 5)
            self.bonus.copy_(math.log(0.3) + 0.5 * ((channel + 1) % 3 - 1))

    def rank_law(self, seq_len: int) -> int:
        # Each channel has its own weights, and the shift gives its map two rows.
        return self.d_inner * min(2, self.d_model)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> RWKV4State:
        last = torch.zeros(batch_size, 1, self.d_model, dtype=dtype, device=device)
        numerator, denominator = torch.zeros(2, batch_size, self.d_inner, dtype=accumulator(dtype), device=device)
        return RWKV4State(last, numerator, denominator, torch.full_like(numerator, _EMPTY))

    def mix(self, x: Tensor, state: RWKV4State, lengths: Tensor | None) -> tuple[Tensor, RWKV4State]:
        (x_r, x_k, x_v), last = token_shift(x, self.shift, state.last, lengths)
        dtype, valid = state.numerator.dtype, None if lengths is None else valid_positions(lengths, x.shape[1])
        k, v, decay, bonus = (t.to(dtype) for t in (self.k_proj(x_k), self.v_proj(x_v), self.decay, self.bonus))
        y, *sums = wkv(k, v, -torch.exp(decay), bonus, state.numerator, state.denominator, state.largest, valid)
        return self.out_proj(sigmoid_gate(self.r_proj(x_r), y.to(x.dtype))), RWKV4State(last, *sums)
