"""Hybrid across heads: softmax attention in some heads of a layer, a gated delta rule in the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import attend, grow_cache, settle_cache
from zoo.ops.delta_rule import delta_rule, delta_strengths, require_stable, unit_length
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.step_size import draw_A_log, draw_dt_bias
from zoo.validate import head_width, require_positive, require_range


class HeadHybridState(NamedTuple):
    keys: Tensor  # (batch, n_softmax_heads, slots, d_head), right-aligned
    values: Tensor  # (batch, n_softmax_heads, slots, d_head)
    S: Tensor  # (batch, n_heads - n_softmax_heads, d_head, d_head), keys first, at least float32
    seen: Tensor  # (batch,) positions so far


class HeadHybrid(SequenceMixer):
    """A hybrid across the heads of one layer: the first n_softmax_heads attend, the others keep a state of fixed size.

        q, k, v = W_q x, W_k x, W_v x                              one projection for heads of both kinds
        o_i     = sum over j <= i of softmax(q_i . k_j / sqrt(d_head)) v_j                       softmax heads
        S_t     = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o_t = S_t^T q_t / sqrt(d_head)   the others
        alpha_t = exp(-A softplus(a x_t + b)), beta_t = beta_max sigmoid(w x_t)                  per head, A > 0
        y       = out_proj(RMSNorm(o)), each head normed separately

    The other heads scale q and k to length one: they are the gated delta rule of `gated_delta_net` without its
    convolution and output gate. Both kinds of heads have the same projections, so one can be converted into the other.
    Their outputs differ in scale, which the norm removes. The decays are the only position encoding.

    Coefficients. Queries and keys, alpha and beta, 1/rms. The values are linear, so the offset is zero.

    State. Keys and values of all positions so far for the softmax heads, 2 n_softmax_heads d_head numbers per position;
    d_head x d_head numbers for each other head, at least float32; the length of each row so far. It grows with the
    sequence, at n_softmax_heads / n_heads of the rate of attention.

    Interaction rank. n_heads: softmax, decay, delta rule and norm give each head one number per pair of positions.

    Source. HydraHead (2606.20097) and retrieval-aware distillation (2602.11374), which turn most heads of a trained
    attention model into recurrent ones and keep the heads that retrieve. Written from their descriptions. The
    recurrence and the initial values of A and softplus(b) follow Yang et al. 2412.06464.

    Not here. Selecting the softmax heads by their role in a trained model, and distillation.

    Args:
        d_model: width of input and output.
        n_heads: heads of both kinds together.
        n_softmax_heads: softmax heads among them.
        d_head: width of a head; default d_model / n_heads.
        beta_max: upper end of beta; beyond 1, eigenvalues can be negative, down to -1 at 2 (Grazzi et al. 2411.12537).
        dt_min, dt_max: range of softplus(b) at initialisation, log-uniform, at least 1e-4.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, n_softmax_heads not below n_heads,
            beta_max outside (0, 2], an empty range.
    """

    undecayed = ("A_log", "dt_bias")

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        n_softmax_heads: int = 1,
        d_head: int | None = None,
        beta_max: float = 1.0,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, n_softmax_heads=n_softmax_heads, d_head=d_head)
        if n_softmax_heads >= n_heads:
            raise ValueError(
                f"n_softmax_heads={n_softmax_heads} must be below n_heads={n_heads}; "
                "for softmax in all heads use the mixer attention"
            )
        require_range(dt_min=dt_min, dt_max=dt_max)
        require_stable(beta_max)
        self.n_heads, self.n_softmax_heads, self.n_linear_heads = n_heads, n_softmax_heads, n_heads - n_softmax_heads
        self.beta_max, self.dt_min, self.dt_max = beta_max, dt_min, dt_max
        self.d_head = head_width(d_model, n_heads, d_head)
        n_inner = n_heads * self.d_head
        self.qkv_proj = nn.Linear(d_model, 3 * n_inner, bias=False)
        self.beta_proj = nn.Linear(d_model, self.n_linear_heads, bias=False)
        self.dt_proj = nn.Linear(d_model, self.n_linear_heads, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(self.n_linear_heads))
        self.A_log = nn.Parameter(torch.empty(self.n_linear_heads))
        self.norm = RMSNorm(n_inner, n_groups=n_heads)
        self.out_proj = nn.Linear(n_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.dt_bias.copy_(draw_dt_bias(self.n_linear_heads, self.dt_min, self.dt_max))
            self.A_log.copy_(draw_A_log(self.n_linear_heads))

    def rank_law(self, seq_len: int) -> int:
        return self.n_heads

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> HeadHybridState:
        slots = torch.zeros(batch_size, self.n_softmax_heads, 0, self.d_head, dtype=dtype, device=device)
        shape = (batch_size, self.n_linear_heads, self.d_head, self.d_head)
        S = torch.zeros(shape, dtype=accumulator(dtype), device=device)
        return HeadHybridState(slots, slots.clone(), S, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: HeadHybridState, lengths: Tensor | None) -> tuple[Tensor, HeadHybridState]:
        seq_len, kinds = x.shape[1], (self.n_softmax_heads, self.n_linear_heads)
        qkv = rearrange(self.qkv_proj(x), "b s (part head d) -> part b head s d", part=3, d=self.d_head)
        attending, linear = qkv.split(kinds, dim=2)

        q, k, v = coefficient(attending[0]), coefficient(attending[1]), attending[2]
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        attended = attend(q, keys, values, state.seen)

        q, k, v = linear.to(state.S.dtype).unbind(0)
        q, k = coefficient(unit_length(q) * self.d_head**-0.5), coefficient(unit_length(k))
        beta, dt = (layer(x).to(state.S.dtype) for layer in (self.beta_proj, self.dt_proj))
        beta, log_decay = delta_strengths(beta, dt, self.beta_max, self.A_log, self.dt_bias, lengths)
        remembered, S = delta_rule(q, k, v, beta.squeeze(3), log_decay, state.S)

        y = torch.cat((attended.to(remembered.dtype), remembered), dim=1)
        y = self.norm(rearrange(y, "b head s d -> b s (head d)")).to(x.dtype)
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        seen = state.seen + (seq_len if lengths is None else lengths)
        return self.out_proj(y), HeadHybridState(keys, values, S, seen)
