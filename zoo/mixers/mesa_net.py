"""MesaNet: linear attention that solves a ridge regression over all past keys and values at every position."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.delta_rule import unit_length
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.ridge import ridge_queries
from zoo.ops.ssd import ssd
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive

_LEAST_RIDGE, _FIRST_RIDGE = 0.25, 1.0


class MesaNetState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, 2 * n_heads * d_head)
    H: Tensor  # (batch, n_heads, d_head, d_head), keys with keys
    S: Tensor  # (batch, n_heads, d_head, d_head), keys first
    carried = ("H", "S")


class MesaNet(SequenceMixer):
    """Linear attention that reads from the least-squares fit of all values so far instead of their sum.

        q, k = silu(conv(W x)), scaled to length one; v = W_v x
        a_t = sigmoid(w_a x_t + c_a), beta_t = sigmoid(w_b x_t + c_b)           per head
        H_t = a_t H_{t-1} + beta_t k_t k_t^T
        S_t = a_t S_{t-1} + beta_t k_t v_t^T
        y   = out_proj(RMSNorm(S_t^T (H_t + diag(ridge))^-1 q_t))

    S^T (H + diag(ridge))^-1 is the linear map from keys to values with the least decayed, weighted squared error plus
    ridge penalty. The delta rule approaches it by one gradient step per position; here it is solved at every position.
    cg_steps steps of conjugate gradients replace a solve of d_head^3 operations; with d_head steps the solution is
    exact.

    Coefficients. (H + diag(ridge))^-1 q, k, a, beta, 1/rms. The values are not convolved. The offset is zero.

    State. Twice n_heads x d_head x d_head numbers, at least float32, and the convolution's last d_conv - 1 inputs of 2
    n_heads d_head channels. It does not grow.

    Interaction rank. n_heads, for the whole layer: the solve replaces a head's query by another vector, so W_ij remains
    one number times W_O^h W_V^h.

    Source. von Oswald et al. 2506.05233; flash-linear-attention, commit bc3b101, fla/layers/mesa_net.py and
    fla/ops/mesa_net/naive.py. As there, ridge is 0.25 + softplus of a parameter, starts at one, and has an entry for
    each key channel. Two departures: our conjugate gradients stop at roundoff, while their code adds 1e-5 to each
    denominator and so ends short of the solution; and decoding starts the solve from zero as training does, while their
    code starts it from the solution for the diagonal.

    Not here. The output gate, which is off by default in their code.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        d_conv: width of the causal convolution of queries and keys; 1 sees only the current position.
        cg_steps: conjugate gradient steps.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model.
    """

    undecayed = ("ridge",)

    def __init__(
        self, d_model: int, n_heads: int = 2, d_head: int | None = None, d_conv: int = 4, cg_steps: int = 30
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, d_conv=d_conv, cg_steps=cg_steps)
        self.n_heads, self.cg_steps = n_heads, cg_steps
        self.d_head = head_width(d_model, n_heads, d_head)
        n_inner = n_heads * self.d_head
        self.qk_proj = nn.Linear(d_model, 2 * n_inner, bias=False)
        self.conv = ShortConv(2 * n_inner, d_conv)
        self.v_proj = nn.Linear(d_model, n_inner, bias=False)
        self.gate_proj = nn.Linear(d_model, 2 * n_heads)
        self.ridge = nn.Parameter(torch.empty(n_heads, self.d_head))
        self.norm = RMSNorm(self.d_head)
        self.out_proj = nn.Linear(n_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.ridge, math.log(math.expm1(_FIRST_RIDGE - _LEAST_RIDGE)))

    def rank_law(self, seq_len: int) -> int:
        return self.n_heads

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> MesaNetState:
        shape = (batch_size, self.n_heads, self.d_head, self.d_head)
        H, S = (torch.zeros(shape, dtype=accumulator(dtype), device=device) for _ in range(2))
        return MesaNetState(self.conv.empty_state(batch_size, dtype, device), H, S)

    def mix(self, x: Tensor, state: MesaNetState, lengths: Tensor | None) -> tuple[Tensor, MesaNetState]:
        wide = state.S.dtype
        qk, conv = self.conv.mix(self.qk_proj(x), state.conv, lengths)
        q, k = rearrange(F.silu(qk.to(wide)), "batch seq (part head d) -> part batch head seq d", part=2, d=self.d_head)
        v = rearrange(self.v_proj(x).to(wide), "batch seq (head d) -> batch head seq d", d=self.d_head)
        logits = rearrange(self.gate_proj(x).to(wide), "batch seq (gate head) -> gate batch head seq", gate=2)
        log_decay, beta = without_padding(lengths, F.logsigmoid(logits[0]), torch.sigmoid(logits[1]))
        k, log_decay, beta = coefficient(unit_length(k)), coefficient(log_decay), coefficient(beta)
        ridge = _LEAST_RIDGE + F.softplus(self.ridge)
        q, H = ridge_queries(unit_length(q), k, beta, log_decay, ridge, state.H, self.cg_steps)
        y, S = ssd(coefficient(q), beta.unsqueeze(3) * k, v, log_decay, state.S)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        return self.out_proj(y), MesaNetState(conv, H, S)
