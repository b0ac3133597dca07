"""Gated DeltaNet: the delta rule, and a decay that can clear the whole state."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer, accumulator, head_width, require_positive, require_range
from zoo.ops.activation import silu, silu_gate
from zoo.ops.delta_rule import delta_rule, require_stable, unit_length
from zoo.ops.step_size import draw_step_bias
from zoo.ops.time import valid_positions


class GatedDeltaNetState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, n_heads * (2 + expand) * d_head)
    S: Tensor  # (batch, n_heads, d_head, expand * d_head), keys first


class GatedDeltaNet(SequenceMixer):
    """The delta rule of `delta_net` with a scalar decay in front of the state, which can clear all of it at once.

        q, k, v = silu(conv(W x)), q and k scaled to length one; beta_t = beta_max sigmoid(w x_t)
        alpha_t = exp(A softplus(a x_t + b))                        per head, A < 0
        S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T
        y   = out_proj(silu(W_g x) RMSNorm(S_t^T q_t / sqrt(d_head)))

    The published beta_max of 1 is the constructor's default; `configs/mixer/gated_delta_net.yaml` trains with 2, where
    the eigenvalue alpha (1 - beta) reaches -1 (Grazzi et al. 2411.12537).

    Coefficients. q, k, alpha and beta whole, sigmoid of the convolved values (which are themselves the value), 1/rms,
    silu(W_g x). The offset is zero.

    State. n_heads x d_head x (expand d_head) numbers, at least float32, and the convolution's last d_conv - 1 inputs of
    n_heads (2 + expand) d_head channels. It does not grow.

    Interaction rank. The recurrence alone: n_heads, since decay and delta rule act on keys. The convolution's taps, the
    sigmoid of the values and the gate act on channels: min(n_heads * expand * d_head, d_model^2) for generic input.

    Source. Yang et al. 2412.06464. The factor 1 / sqrt(d_head) is that of `delta_net`: the code of the authors
    (NVlabs/GatedDeltaNet), of flash-linear-attention and of Qwen3-Next has it; the norm takes it out again, but for its
    epsilon. As published there, A starts uniform in [-16, 0), softplus(b) log-uniform in [1e-3, 1e-1], and values are
    twice as wide as keys (expand).

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head's queries and keys; d_model / n_heads when absent.
        expand: a head's values have width expand * d_head.
        d_conv: width of the causal convolution; 1 looks at the position itself alone.
        beta_max: upper end of beta. Beyond 1 the eigenvalue alpha (1 - beta) reaches below zero, at 2 down to -1:
            tracking a state by reflections needs it (Grazzi et al. 2411.12537).
        dt_min, dt_max: range of softplus(b) at initialisation, log-uniform, at least 1e-4.

    Raises:
        ValueError: sizes that are not positive, heads that do not divide, beta_max outside (0, 2], an empty range.
    """

    undecayed = ("A_log", "dt_bias")

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        expand: int = 2,
        d_conv: int = 4,
        beta_max: float = 1.0,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, expand=expand, d_conv=d_conv)
        require_range(dt_min=dt_min, dt_max=dt_max)
        require_stable(beta_max)
        self.n_heads, self.beta_max, self.dt_min, self.dt_max = n_heads, beta_max, dt_min, dt_max
        self.d_head = head_width(d_model, n_heads, d_head)
        self.d_value = expand * self.d_head
        n_keys, n_values = n_heads * self.d_head, n_heads * self.d_value
        self.widths = (n_keys, n_keys, n_values)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.conv = ShortConv(sum(self.widths), d_conv)
        self.beta_proj = nn.Linear(d_model, n_heads, bias=False)
        self.dt_proj = nn.Linear(d_model, n_heads, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(n_heads))
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.gate_proj = nn.Linear(d_model, n_values, bias=False)
        self.norm = RMSNorm(self.d_value)
        self.out_proj = nn.Linear(n_values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        projections = (self.qkv_proj, self.conv, self.beta_proj, self.dt_proj, self.gate_proj)
        for layer in (*projections, self.norm, self.out_proj):
            layer.reset_parameters()
        with torch.no_grad():
            self.dt_bias.copy_(draw_step_bias(self.n_heads, self.dt_min, self.dt_max))
            self.A_log.copy_((16 * (1 - torch.rand(self.n_heads))).log())  # in (0, 16]: zero has no logarithm

    def rank_law(self, seq_len: int) -> int:
        # One per head for the recurrence; convolution, SiLU and gate act on the channels of its values.
        return self.n_heads * self.d_value

    def empty_state(
        self, batch_size: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> GatedDeltaNetState:
        shape = (batch_size, self.n_heads, self.d_head, self.d_value)
        S = torch.zeros(shape, dtype=accumulator(dtype), device=device)
        return GatedDeltaNetState(self.conv.empty_state(batch_size, dtype, device), S)

    def mix(self, x: Tensor, state: GatedDeltaNetState, lengths: Tensor | None) -> tuple[Tensor, GatedDeltaNetState]:
        qkv, conv = self.conv.mix(self.qkv_proj(x), state.conv, lengths)
        q, k, v = qkv.to(state.S.dtype).split(self.widths, dim=2)
        q, k, v = (rearrange(t, "batch seq (head d) -> batch head seq d", head=self.n_heads) for t in (q, k, v))
        q, k = (unit_length(F.silu(t)) for t in (q, k))
        q, k = coefficient(q * self.d_head**-0.5), coefficient(k)
        beta, log_decay = self._strengths(x, state.S.dtype, lengths)
        y, S = delta_rule(q, k, silu(v), beta, log_decay, state.S)
        y = rearrange(self.norm(y), "batch head seq d -> batch seq (head d)").to(x.dtype)
        return self.out_proj(silu_gate(self.gate_proj(x), y)), GatedDeltaNetState(conv, S)

    def _strengths(self, x: Tensor, dtype: torch.dtype, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """beta and log(alpha), (batch, n_heads, seq) each; padding writes nothing and forgets nothing."""
        # Contiguous: torch.compile mistakes the strides of softplus's gradient where input and gradient are laid out
        # differently.
        beta, dt = (layer(x).to(dtype).transpose(1, 2).contiguous() for layer in (self.beta_proj, self.dt_proj))
        beta = self.beta_max * torch.sigmoid(beta)
        log_decay = -self.A_log.to(dtype).exp().unsqueeze(1) * F.softplus(dt + self.dt_bias.unsqueeze(1))
        if lengths is not None:
            valid = valid_positions(lengths, x.shape[1]).unsqueeze(1)
            beta, log_decay = beta * valid, log_decay * valid
        return coefficient(beta), coefficient(log_decay)
