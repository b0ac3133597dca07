"""Gated DeltaNet and DeltaProduct: per position, a decay of the whole state, then one or more delta rule steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import LevelWeights, RMSNorm, ShortConv
from zoo.contract import SequenceMixer
from zoo.ops.activation import silu_gate
from zoo.ops.delta_rule import delta_inputs, delta_product, delta_strengths, require_stable
from zoo.ops.log_linear import log_linear_delta_product
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.step_size import draw_A_log, draw_dt_bias
from zoo.validate import head_width, require_positive, require_range, shared_heads


class DeltaProductState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, channels of q, k and v)
    S: Tensor  # (batch, n_heads, d_head, expand * d_head), keys first
    carried = ("S",)


class LogLinearDeltaProductState(NamedTuple):
    conv: Tensor  # as in DeltaProductState
    S: Tensor  # (batch, n_heads, n_levels, d_head, expand * d_head)
    seen: Tensor  # (batch,) positions so far


AnyDeltaProductState = DeltaProductState | LogLinearDeltaProductState


class DeltaProduct(SequenceMixer):
    """The delta rule of `delta_net` with a decay that can clear the state, and n_householder steps per position.

        q, k_m, v_m = silu(conv(W x)), q and every k_m scaled to length one
        beta_m = beta_max sigmoid(w_m x_t)
        S <- exp(-A softplus(a x_t + b)) S                         per head, A > 0
        S <- (I - beta_m k_m k_m^T) S + beta_m k_m v_m^T           for m = 1 ... n_householder
        y  = out_proj(silu(W_g x) RMSNorm(S^T q_t / sqrt(d_head)))

    With one step and beta_max 1 it is Gated DeltaNet (`gated_delta_net`); with more steps and beta_max 2 it is Gated
    DeltaProduct (`delta_product`), where each step has its own key and value. The decay acts before the first step, and
    the query reads after the last. A product of n reflections can be any orthogonal map that moves only an
    n-dimensional subspace. With beta_max 2, where eigenvalues reach -1, one step tracks swaps and parity, and two steps
    track the permutations of three elements. `configs/mixer/gated_delta_net.yaml` trains with beta_max 2.

    With n_levels, each head has n_levels states instead of one (`log_linear_gated_delta_net`): a Fenwick tree over up
    to 2^(n_levels - 1) positions, as in `ssd`. Every state decays and is erased; a position writes only to its own
    levels, and reads sqrt(d_head) sum_l lambda_t^l S_l^T q_t with lambda_t = softplus(s * W_l x_t).

    Coefficients. q, k, the decay, beta, lambda, the sigmoid factor of v, 1/rms, silu(W_g x). The offset is zero.

    State. n_heads x d_head x (expand d_head) numbers, at least float32, and the convolution's last d_conv - 1 inputs of
    n_heads (1 + n_householder (1 + expand)) d_head channels, fewer if heads share keys. With n_levels, n_levels times
    these numbers, and the positions so far; n_levels - 1 must be at least log2 of the length. It does not grow.

    Interaction rank. The recurrence itself: n_heads * n_householder, one operator for the value map of each step;
    levels add none. The convolution's taps, the SiLU of the values and the gate act on channels: min(n_heads *
    n_householder * expand * d_head, d_model^2) for generic input.

    Source. Yang et al. 2412.06464 and Siems et al. 2502.10297, section 3; flash-linear-attention, commit bc3b101,
    fla/layers/gated_deltanet.py and gated_deltaproduct.py. As there, in NVlabs/GatedDeltaNet and in Qwen3-Next, queries
    are divided by sqrt(d_head), which the norm cancels except for its epsilon; A starts uniform in (0, 16], softplus(b)
    log-uniform in [1e-3, 1e-1], and values are twice as wide as keys (expand). The levels follow Guo et al. 2506.04761;
    HanGuo97/log-linear-attention, commit 7f86441, hattention/modeling_h_gated_deltanet.py, with s starting at one.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        n_householder: delta rule steps per position.
        d_head: width of a head's queries and keys; default d_model / n_heads.
        expand: ratio of a head's value width to d_head.
        d_conv: width of the causal convolution; 1 sees only the current position.
        beta_max: upper end of beta; beyond 1, eigenvalues can be negative, down to -1 at 2 (Grazzi et al. 2411.12537).
        n_key_heads: heads of queries and keys, shared by groups of value heads, as in Qwen3-Next; default n_heads.
        norm_eps: epsilon of the norm.
        dt_min, dt_max: range of softplus(b) at initialisation, log-uniform, at least 1e-4.
        n_levels: states of each head, a Fenwick tree over up to 2^(n_levels - 1) positions; 0 for a single state.

    Raises:
        ValueError: non-positive sizes, head counts that do not divide evenly, beta_max outside (0, 2], an empty range;
            at run time, a sequence of more positions than the tree holds.
    """

    undecayed = ("A_log", "dt_bias")

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        n_householder: int = 2,
        d_head: int | None = None,
        expand: int = 2,
        d_conv: int = 4,
        beta_max: float = 2.0,
        n_key_heads: int | None = None,
        norm_eps: float = 1e-5,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        n_levels: int = 0,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, n_householder=n_householder, d_head=d_head, expand=expand, d_conv=d_conv)
        require_positive(n_key_heads=n_key_heads, n_levels=n_levels or None)
        require_range(dt_min=dt_min, dt_max=dt_max)
        require_stable(beta_max)
        self.n_heads, self.n_householder, self.beta_max = n_heads, n_householder, beta_max
        self.dt_min, self.dt_max = dt_min, dt_max
        self.d_head = head_width(d_model, n_heads, d_head)
        self.d_value = expand * self.d_head
        self.n_key_heads = shared_heads(n_heads, n_key_heads, "n_key_heads")
        n_keys, n_values = self.n_key_heads * self.d_head, n_heads * self.d_value
        self.widths = (n_keys, n_householder * n_keys, n_householder * n_values)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.conv = ShortConv(sum(self.widths), d_conv)
        self.beta_proj = nn.Linear(d_model, n_householder * n_heads, bias=False)
        self.dt_proj = nn.Linear(d_model, n_heads, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(n_heads))
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.gate_proj = nn.Linear(d_model, n_values, bias=False)
        self.n_levels = n_levels
        self.levels = LevelWeights(d_model, n_heads, n_levels) if n_levels else None
        self.norm = RMSNorm(self.d_value, norm_eps)
        self.out_proj = nn.Linear(n_values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.dt_bias.copy_(draw_dt_bias(self.n_heads, self.dt_min, self.dt_max))
            self.A_log.copy_(draw_A_log(self.n_heads))

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has n_householder per head; convolution, SiLU and gate act on each channel of the values.
        return self.n_heads * self.n_householder * self.d_value

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> AnyDeltaProductState:
        conv, levels = self.conv.empty_state(batch_size, dtype, device), (self.n_levels,) if self.levels else ()
        shape = (batch_size, self.n_heads, *levels, self.d_head, self.d_value)
        S = torch.zeros(shape, dtype=accumulator(dtype), device=device)
        if self.levels is None:
            return DeltaProductState(conv, S)
        return LogLinearDeltaProductState(conv, S, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(
        self, x: Tensor, state: AnyDeltaProductState, lengths: Tensor | None
    ) -> tuple[Tensor, AnyDeltaProductState]:
        qkv, conv = self.conv.mix(self.qkv_proj(x), state.conv, lengths)
        q, k, v = qkv.split(self.widths, dim=2)
        q, k = (t.unflatten(2, (-1, self.d_head)) for t in (q, k))
        q, k, v = delta_inputs(q, k, v.unflatten(2, (-1, self.d_value)), state.S.dtype)
        q, k, v = q.transpose(1, 2), self._steps(k), self._steps(v)
        if self.n_key_heads < self.n_heads:
            q, k = (t.repeat_interleave(self.n_heads // self.n_key_heads, dim=1) for t in (q, k))
        beta, dt = (layer(x).to(state.S.dtype) for layer in (self.beta_proj, self.dt_proj))
        beta, log_decay = delta_strengths(beta, dt, self.beta_max, self.A_log, self.dt_bias, lengths)
        if self.levels is None or isinstance(state, DeltaProductState):
            y, S = delta_product(q, k, v, beta, log_decay, state.S)
            state = DeltaProductState(conv, S)
        else:
            # Our queries have length 1 / sqrt(d_head), the authors' have sqrt(d_head): hence the factor d_head.
            seen, weights = self.levels.after(state.seen, lengths, x.shape[1]), self.d_head * self.levels(x)
            y, S = log_linear_delta_product(q, k, v, beta, log_decay, weights, state.seen, state.S, lengths)
            state = LogLinearDeltaProductState(conv, S, seen)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        return self.out_proj(silu_gate(self.gate_proj(x), y)), state

    def _steps(self, t: Tensor) -> Tensor:
        return rearrange(t, "batch seq (step head) d -> batch head seq step d", step=self.n_householder)
