"""Comba: a gated delta rule with partial erasure and corrected queries."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import sigmoid_gate, silu
from zoo.ops.delta_rule import delta_strengths, fed_back_delta_rule, unit_length
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.step_size import draw_A_log, draw_dt_bias
from zoo.validate import head_width, require_positive, require_range


class CombaState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, n_heads * (2 + expand) * d_head)
    S: Tensor  # (batch, n_heads, d_head, expand * d_head), keys first
    carried = ("S",)


class Comba(SequenceMixer):
    """The gated delta rule with partial erasure and with queries corrected by their own position's key.

        q, k, v = silu(conv(W x))
        q <- (q - D sigmoid(b) k) scaled to length one, then k too          D and b scalars per head
        a_t = exp(-A softplus(w_a x_t + c)), beta_t = sigmoid(w_b x_t)      per head, A > 0
        S_t = (a_t - sigmoid(b) beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T
        y   = out_proj(sigmoid(W_g x) RMSNorm(S_t^T q_t / sqrt(d_head)))

    It differs from `gated_delta_net` in three ways. It erases only the share sigmoid(b) of the value stored under a
    key. Decay and erasure both act on the previous state. The query is corrected by the key of its own position, so it
    reads less of the value just written.

    Coefficients. q, k, a, beta, the sigmoid factor of v, 1/rms, the output gate's sigmoid. The offset is zero.

    State. n_heads x d_head x (expand d_head) numbers, at least float32, and the convolution's last d_conv - 1 inputs of
    n_heads (2 + expand) d_head channels. It does not grow.

    Interaction rank. The recurrence itself: n_heads, since feedback and correction act on keys and queries. The
    convolution's taps, the SiLU of the values and the gate act on channels: min(n_heads * expand * d_head, d_model^2)
    for generic input.

    Source. Hu et al. 2506.02475, section 3; flash-linear-attention, commit bc3b101, fla/layers/comba.py and
    fla/ops/comba. As there, A starts uniform in (0, 16], softplus(c) log-uniform in [1e-3, 1e-1], and b and D at one.
    One departure: their layer scales the fed-back key by sigmoid(b), and their kernel then normalises that key to
    length one, which undoes the scaling. We keep the factor, as in the paper.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head's queries and keys; default d_model / n_heads.
        expand: ratio of a head's value width to d_head.
        d_conv: width of the causal convolution; 1 sees only the current position.
        dt_min, dt_max: range of softplus(c) at initialisation, log-uniform, at least 1e-4.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, an empty range.
    """

    undecayed = ("A_log", "dt_bias", "D", "feedback")

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        expand: int = 2,
        d_conv: int = 4,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, expand=expand, d_conv=d_conv)
        require_range(dt_min=dt_min, dt_max=dt_max)
        self.n_heads, self.dt_min, self.dt_max = n_heads, dt_min, dt_max
        self.d_head = head_width(d_model, n_heads, d_head)
        self.d_value = expand * self.d_head
        n_keys, n_values = n_heads * self.d_head, n_heads * self.d_value
        self.widths = (n_keys, n_keys, n_values)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.conv = ShortConv(sum(self.widths), d_conv)
        self.beta_proj, self.dt_proj = (nn.Linear(d_model, n_heads, bias=False) for _ in range(2))
        self.dt_bias, self.A_log, self.D, self.feedback = (nn.Parameter(torch.empty(n_heads)) for _ in range(4))
        self.gate_proj = nn.Linear(d_model, n_values, bias=False)
        self.norm = RMSNorm(self.d_value)
        self.out_proj = nn.Linear(n_values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.dt_bias.copy_(draw_dt_bias(self.n_heads, self.dt_min, self.dt_max))
            self.A_log.copy_(draw_A_log(self.n_heads))
            self.D.fill_(1.0)
            self.feedback.fill_(1.0)

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has one per head; convolution, SiLU and gate act on each channel of its values.
        return self.n_heads * self.d_value

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> CombaState:
        S = torch.zeros(batch_size, self.n_heads, self.d_head, self.d_value, dtype=accumulator(dtype), device=device)
        return CombaState(self.conv.empty_state(batch_size, dtype, device), S)

    def mix(self, x: Tensor, state: CombaState, lengths: Tensor | None) -> tuple[Tensor, CombaState]:
        wide = state.S.dtype
        qkv, conv = self.conv.mix(self.qkv_proj(x), state.conv, lengths)
        q, k, v = (t.unflatten(2, (self.n_heads, -1)) for t in qkv.to(wide).split(self.widths, dim=2))
        share = torch.sigmoid(self.feedback).to(wide).view(-1, 1)
        q, k = F.silu(q), F.silu(k)
        q = coefficient(unit_length(q - self.D.view(-1, 1) * share * k) * self.d_head**-0.5)
        k = coefficient(unit_length(k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, silu(v)))
        beta, dt = (layer(x).to(wide) for layer in (self.beta_proj, self.dt_proj))
        beta, log_decay = delta_strengths(beta, dt, 1.0, self.A_log, self.dt_bias, lengths)
        y, S = fed_back_delta_rule(q, k, v, beta.squeeze(3), log_decay, share.unsqueeze(2), state.S)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        return self.out_proj(sigmoid_gate(self.gate_proj(x), y)), CombaState(conv, S)
