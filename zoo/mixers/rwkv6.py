"""RWKV-6: linear attention with a decay per key channel, a bonus for the current position and content-based shifts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.modules import read_weight
from zoo.ops.activation import group_norm, silu_gate
from zoo.ops.conv import previous
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.retention import retention_with_bonus
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive

_SHIFT_POWERS = (0.5, 1.0, 1.0, 1.0, 0.5)  # exponents of the initial shifts of r, w, k, v, g


class RWKV6State(NamedTuple):
    last: Tensor  # (batch, 1, d_model), the last input
    S: Tensor  # (batch, n_heads, d_key, d_head), keys first
    carried = ("S",)


class RWKV6(SequenceMixer):
    """Linear attention of RWKV-6: a decay per key channel, a bonus for the current position, input-dependent shifts.

        mu^s_t = b_s + U_s tanh(D_s (x_t + m * (x_{t-1} - x_t)))        s = r, w, k, v, g
        x^s_t = x_t + mu^s_t * (x_{t-1} - x_t)
        r, k, v, g = W_r x^r, W_k x^k, W_v x^v, W_g x^g
        a_t = exp(-exp(U tanh(D x^w) + c))                               per head d_key decays
        S_t = diag(a_t) S_{t-1} + k_t v_t^T
        y   = out_proj(silu(g_t) GroupNorm(S_{t-1}^T r_t + (r_t . (u * k_t)) v_t))

    The state is read before the current position is written; the bonus u weighs the current value.

    Coefficients. mu^v, r, k, a, the bonus r . (u * k), 1/std, silu of the gate. The offset is the image of the norm's
    bias, and zero at initialisation.

    State. n_heads x d_key x d_head numbers, at least float32, and the last input of d_model channels. It does not grow.

    Interaction rank. The recurrence itself: n_heads. The shift of the values has a coefficient per input channel, and
    these vectors span mix_rank + 2 directions; the gate has a coefficient per output channel. The whole layer has
    n_heads * d_head * min(mix_rank + 2, d_model), at most d_model^2.

    Source. Peng et al. 2404.05892, section 4; flash-linear-attention, commit bc3b101, fla/layers/rwkv6.py and
    fla/ops/rwkv6/recurrent_naive.py. Parameters start as in the first layer of a deep model of the authors,
    BlinkDL/RWKV-LM, commit 524481d, RWKV-v5/src/model.py, RWKV_Tmix_x060. flash-linear-attention starts every decay at
    exp(-1), so that a layer forgets within a few positions. We depart from the authors' start as in `rwkv7`: D, D_s and
    out_proj, zero there, start as nn.Linear does, and the norm's weight starts at one.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head's values; default d_model / n_heads.
        d_key: width of a head's queries and keys; default d_head.
        mix_rank: rank of the projections that compute mu; published 32.
        decay_rank: rank of the projection that computes the decays; published 64.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, heads of one channel.
    """

    # As in the authors' training (RWKV-v5/src/model.py): no weight decay on low-rank maps, and twice the learning rate
    # for the decays' bias.
    undecayed = ("mix_bias", "bonus", "mix_down.weight", "mix_up.weight", "decay_down.weight", "decay_up.weight")
    slow = ("decay_up.bias",)

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        d_key: int | None = None,
        mix_rank: int = 32,
        decay_rank: int = 64,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, d_key=d_key, mix_rank=mix_rank, decay_rank=decay_rank)
        self.n_heads, self.mix_rank = n_heads, mix_rank
        self.d_head = head_width(d_model, n_heads, d_head)
        if self.d_head < 2:
            raise ValueError(
                f"the norm of a head needs two channels or more, got d_head={self.d_head}: "
                f"n_heads={n_heads}, d_model={d_model}"
            )
        self.d_key = d_key or self.d_head
        n_keys, n_values = n_heads * self.d_key, n_heads * self.d_head
        self.mu = nn.Parameter(torch.empty(d_model))
        self.mix_down = nn.Linear(d_model, 5 * mix_rank, bias=False)
        self.mix_up = nn.Linear(5 * mix_rank, d_model, bias=False)
        self.mix_bias = nn.Parameter(torch.empty(5, d_model))
        self.r_proj, self.k_proj = (nn.Linear(d_model, n_keys, bias=False) for _ in range(2))
        self.v_proj, self.gate_proj = (nn.Linear(d_model, n_values, bias=False) for _ in range(2))
        self.decay_down = nn.Linear(d_model, decay_rank, bias=False)
        self.decay_up = nn.Linear(decay_rank, n_keys)
        self.bonus = nn.Parameter(torch.empty(n_heads, self.d_key))
        self.norm_weight, self.norm_bias = (nn.Parameter(torch.empty(n_values)) for _ in range(2))
        self.out_proj = nn.Linear(n_values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for projection, gain in ((self.r_proj, 1.0), (self.k_proj, 0.1), (self.v_proj, 1.0), (self.gate_proj, 0.1)):
            nn.init.orthogonal_(projection.weight, gain)
        for projection in (self.mix_down, self.decay_down, self.out_proj):
            projection.reset_parameters()
        for up in (self.mix_up, self.decay_up):
            nn.init.uniform_(up.weight, -0.01, 0.01)
        along = torch.arange(self.d_model) / self.d_model
        key = torch.arange(self.bonus.numel())
        with torch.no_grad():
            self.mu.copy_(1 - along)
            self.mix_bias.copy_(1 - along ** torch.tensor(_SHIFT_POWERS).unsqueeze(1))
            self.decay_up.bias.copy_(5 * (key / max(1, len(key) - 1)) ** 0.7 - 6)  # decays from 0.998 to 0.692
            self.bonus.copy_(0.1 * ((key + 1) % 3 - 1).view_as(self.bonus))
        nn.init.ones_(self.norm_weight)
        nn.init.zeros_(self.norm_bias)

    def rank_law(self, seq_len: int) -> int:
        # The shift of the values acts on input channels, the gate on output channels.
        return self.n_heads * self.d_head * min(self.mix_rank + 2, self.d_model)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> RWKV6State:
        last = torch.zeros(batch_size, 1, self.d_model, dtype=dtype, device=device)
        shape = (batch_size, self.n_heads, self.d_key, self.d_head)
        return RWKV6State(last, torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(self, x: Tensor, state: RWKV6State, lengths: Tensor | None) -> tuple[Tensor, RWKV6State]:
        before, last = previous(x, state.last, lengths)
        step = before - x
        low = rearrange(torch.tanh(self.mix_down(x + step * self.mu)), "b seq (part rank) -> part b seq rank", part=5)
        up = rearrange(read_weight(self.mix_up), "d (part rank) -> part d rank", part=5)
        mix_r, mix_w, mix_k, mix_v, mix_g = einsum(low, up, "part b seq rank, part d rank -> part b seq d") + rearrange(
            self.mix_bias, "part d -> part 1 1 d"
        )
        r, k = self._heads(self.r_proj(x + step * mix_r), state), self._heads(self.k_proj(x + step * mix_k), state)
        v = self._heads(self.v_proj(x + step * coefficient(mix_v)), state)
        decay = self.decay_up(torch.tanh(self.decay_down(x + step * mix_w)))
        k, log_decay = without_padding(lengths, k, -torch.exp(self._heads(decay, state)))  # padding has no effect
        bonus = coefficient((r * k * self.bonus.unsqueeze(1)).sum(-1, keepdim=True))
        y, S = retention_with_bonus(coefficient(r), coefficient(k), v, coefficient(log_decay), bonus, state.S)
        y = rearrange(y, "batch head seq d -> batch seq (head d)")
        y = group_norm(y, self.n_heads, self.norm_weight) + self.norm_bias
        return self.out_proj(silu_gate(self.gate_proj(x + step * mix_g), y.to(x.dtype))), RWKV6State(last, S)

    def _heads(self, t: Tensor, state: RWKV6State) -> Tensor:
        return rearrange(t.to(state.S.dtype), "batch seq (head d) -> batch head seq d", head=self.n_heads)
