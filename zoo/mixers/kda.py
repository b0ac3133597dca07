"""Kimi Delta Attention and Gated DeltaNet 2: the delta rule with a decay for each key channel."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import sigmoid_gate
from zoo.ops.delta_rule import delta_inputs, require_stable
from zoo.ops.dplr import dplr
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.step_size import draw_dt_bias
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_choice, require_positive, require_range

Gates = Literal["head", "channel"]


class KimiDeltaState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, n_heads * (2 + expand) * d_head)
    S: Tensor  # (batch, n_heads, d_head, expand * d_head), keys first
    carried = ("S",)


class KimiDelta(SequenceMixer):
    """The delta rule with a decay for each key channel; `gated_delta_net` has one for each head.

        q, k, v = silu(conv(W x)), q and k scaled to length one
        a_t = exp(-A softplus(W_2 W_1 x_t + b))                    per head a vector over the key channels, A > 0
        S_t = (I - k_t (e_t * k_t)^T) diag(a_t) S_{t-1} + k_t (w_t * v_t)^T
        y   = out_proj(sigmoid(U_2 U_1 x + c) RMSNorm(S_t^T q_t / sqrt(d_head)))

    With gates head it is Kimi Delta Attention (`kda`): e_t = w_t = beta_max sigmoid(w x_t), one number per head. With
    gates channel it is Gated DeltaNet 2 (`gdn2`), which separates this strength into an erase gate e_t = beta_max
    sigmoid(W_e x_t) over the key channels and a write gate w_t = sigmoid(W_w x_t) over the value channels.
    `configs/mixer/kda.yaml` trains with beta_max 2, where eigenvalues reach -1 (Grazzi et al. 2411.12537).

    Coefficients. q, k, a, e, w, the sigmoid factor of v, 1/rms, the output gate's sigmoid. The offset is zero.

    State. n_heads x d_head x (expand d_head) numbers, at least float32, and the convolution's last d_conv - 1 inputs of
    n_heads (2 + expand) d_head channels. It does not grow.

    Interaction rank. The recurrence itself: n_heads with gates head, since decay and delta rule act on keys; n_heads *
    expand * d_head with gates channel, since the write gate acts on the channels of the values inside the recurrence
    (`zoo claims write_gate`). The whole layer, with either: min(n_heads * expand * d_head, d_model^2) for generic
    input, since the convolution's taps, the SiLU of the values and the output gate act on the same channels.

    Source. Kimi Linear (2510.26692, section 3) and Gated DeltaNet 2 (2605.22791); flash-linear-attention, commit
    bc3b101, fla/layers/kda.py and fla/layers/gdn2.py. As there, A starts uniform in [1, 16], softplus(b) log-uniform in
    [1e-3, 1e-1], the rank of both low-rank maps is a head's value width, and the output gate is a sigmoid.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head's queries and keys; default d_model / n_heads.
        expand: ratio of a head's value width to d_head.
        d_conv: width of the causal convolution; 1 sees only the current position.
        gates: one erase and write strength per head, or one per channel.
        beta_max: upper end of the erase strength; with gates head, also of the write strength. Beyond 1, eigenvalues
            can be negative (Grazzi et al. 2411.12537).
        dt_min, dt_max: range of softplus(b) at initialisation, log-uniform, at least 1e-4.
        norm_eps: epsilon of the norm.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, unknown gates, beta_max outside (0, 2], an
            empty range.
    """

    undecayed = ("A_log", "dt_bias")

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        expand: int = 1,
        d_conv: int = 4,
        gates: Gates = "head",
        beta_max: float = 1.0,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, expand=expand, d_conv=d_conv)
        require_choice("gates", gates, Gates)
        require_range(dt_min=dt_min, dt_max=dt_max)
        require_stable(beta_max)
        self.n_heads, self.gates, self.beta_max, self.dt_min, self.dt_max = n_heads, gates, beta_max, dt_min, dt_max
        self.d_head = head_width(d_model, n_heads, d_head)
        self.d_value = expand * self.d_head
        n_keys, n_values = n_heads * self.d_head, n_heads * self.d_value
        self.widths = (n_keys, n_keys, n_values)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.conv = ShortConv(sum(self.widths), d_conv)
        self.decay_down = nn.Linear(d_model, self.d_value, bias=False)
        self.decay_up = nn.Linear(self.d_value, n_keys, bias=False)
        self.strengths = (n_heads,) if gates == "head" else (n_keys, n_values)
        self.strength_proj = nn.Linear(d_model, sum(self.strengths), bias=False)
        self.dt_bias = nn.Parameter(torch.empty(n_keys))
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.gate_down = nn.Linear(d_model, self.d_value, bias=False)
        self.gate_up = nn.Linear(self.d_value, n_values)
        self.norm = RMSNorm(self.d_value, norm_eps)
        self.out_proj = nn.Linear(n_values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.dt_bias.copy_(draw_dt_bias(len(self.dt_bias), self.dt_min, self.dt_max))
            self.A_log.uniform_(1, 16).log_()

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has one per head; convolution, SiLU and gates act on each channel of its values.
        return self.n_heads * self.d_value

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> KimiDeltaState:
        S = torch.zeros(batch_size, self.n_heads, self.d_head, self.d_value, dtype=accumulator(dtype), device=device)
        return KimiDeltaState(self.conv.empty_state(batch_size, dtype, device), S)

    def mix(self, x: Tensor, state: KimiDeltaState, lengths: Tensor | None) -> tuple[Tensor, KimiDeltaState]:
        qkv, conv = self.conv.mix(self.qkv_proj(x), state.conv, lengths)
        q, k, v = (t.unflatten(2, (self.n_heads, -1)) for t in qkv.split(self.widths, dim=2))
        q, k, v = (t.transpose(1, 2) for t in delta_inputs(q, k, v, state.S.dtype))
        log_decay, erase, *write = self._strengths(x, state.S.dtype, lengths)
        # A strength that erasing and writing share scales their common key; the values stay as they are.
        key, erased_key, value = (k, erase * k, write[0] * v) if write else (erase * k, k, v)
        y, S = dplr(q, key, value, log_decay, key, erased_key, state.S)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        y = sigmoid_gate(self.gate_up(self.gate_down(x)), y)
        return self.out_proj(y), KimiDeltaState(conv, S)

    def _strengths(self, x: Tensor, dtype: torch.dtype, lengths: Tensor | None) -> list[Tensor]:
        """Return log(a), e and, with gates channel, w, each (batch, n_heads, seq, channels); padding has no effect."""
        each = self.strength_proj(x).to(dtype).split(self.strengths, dim=2)
        erase, *write = (torch.sigmoid(self._heads(t)) for t in each)
        dt = F.softplus(self.decay_up(self.decay_down(x)).to(dtype) + self.dt_bias)
        log_decay = -self.A_log.to(dtype).exp().view(-1, 1, 1) * self._heads(dt)
        strengths = without_padding(lengths, log_decay, self.beta_max * erase, *write)
        return [coefficient(t) for t in strengths]

    def _heads(self, t: Tensor) -> Tensor:
        return rearrange(t, "batch seq (head d) -> batch head seq d", head=self.n_heads)
