"""RWKV-7: a delta rule with decay, erasure and writing gated per key channel."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import group_norm
from zoo.ops.attention import gated_rank
from zoo.ops.conv import previous
from zoo.ops.delta_rule import relaxed_delta_rule
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive

_FASTEST = math.exp(-0.5)  # no decay is below exp(-exp(-1/2)) = 0.545
_SHIFT_POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)  # exponents of the initial shifts of r, w, k, v, a, g


class RWKV7State(NamedTuple):
    last: Tensor  # (batch, 1, d_model), the last input
    S: Tensor  # (batch, n_heads, d_head, d_head), keys first
    carried = ("S",)


class RWKV7(SequenceMixer):
    """The delta rule of RWKV-7: decay, erasure and learning rate for each key channel, on token-shifted inputs.

        x^s_t = x_t + mu_s * (x_{t-1} - x_t)                       s = r, w, k, v, a, g
        r, k, v = W_r x^r, W_k x^k, W_v x^v
        w_t = exp(-e^(-1/2) sigmoid(U_w tanh(D_w x^w) + b_w))      a_t = sigmoid(U_a D_a x^a + b_a)
        g_t = U_g sigmoid(D_g x^g)
        kappa_t = (xi * k_t) / |xi * k_t|, k~_t = k_t * (1 + (a_t - 1) * alpha)
        S_t = (diag(w_t) - (a_t * kappa_t) kappa_t^T) S_{t-1} + k~_t v_t^T
        y   = out_proj(g_t * (GroupNorm(S_t^T r_t) + (r_t . (rho * k~_t)) v_t))

    The state is erased along one direction, kappa_t, and written along another, k~_t.

    Coefficients. r, k~, w, kappa, a, 1/std, the bonus r . (rho * k~), the gate g. The offset is the image of the norm's
    bias, and zero at initialisation.

    State. n_heads x d_head x d_head numbers, at least float32, and the last input of d_model channels. It does not
    grow.

    Interaction rank. The recurrence itself: n_heads for values of one position; the shift gives each value two maps,
    which makes 2 n_heads. The gate acts on channels, and the centred readout and the bonus are different maps of the
    values. The whole layer has 4 n_heads min(gate_rank, d_head), at most d_model^2.

    Source. Peng et al. 2503.14456, section 4; flash-linear-attention, commit bc3b101, fla/layers/rwkv7.py and
    fla/ops/generalized_delta_rule/dplr/naive.py. Parameters start as in the first layer of a deep model, with two
    departures. No map starts at zero: D and out_proj start as nn.Linear does, since a zero map has no operator and
    blocks the gradient of the maps next to it. And the norm's weight starts at one; theirs grows with the depth up to
    one.

    Not here. The values of the first layer, which the authors mix into the values of all other layers (v_first). A
    mixer is one layer and reads only its own input, so every layer is like their first one.

    Args:
        d_model: width of input and output.
        n_heads: heads; the width of a head, d_model / n_heads, is at least 2.
        decay_rank: rank of the projections that compute w and a; published 2.5 sqrt(d_model) d_head / 64, to the
            nearest multiple of 32 and at least 32.
        gate_rank: rank of the projection that computes g; published 5 sqrt(d_model), to the nearest multiple of 32 and
            at least 32.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, heads of one channel.
    """

    # As in the authors' training (BlinkDL/RWKV-LM, RWKV-v7/train_temp): no weight decay on low-rank maps, and twice the
    # learning rate for the decays' bias.
    undecayed = (
        *("shift", "bonus", "decay_down.weight", "decay_up.weight", "rate_down.weight", "rate_up.weight"),
        *("gate_down.weight", "gate_up.weight"),
    )
    slow = ("decay_up.bias",)

    def __init__(self, d_model: int, n_heads: int = 2, decay_rank: int = 32, gate_rank: int = 32) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, decay_rank=decay_rank, gate_rank=gate_rank)
        self.n_heads, self.d_head = n_heads, head_width(d_model, n_heads, None)
        if self.d_head < 2:
            raise ValueError(f"the norm of a head needs two channels or more: n_heads={n_heads}, d_model={d_model}")
        self.shift = nn.Parameter(torch.empty(len(_SHIFT_POWERS), d_model))
        self.r_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.decay_down, self.rate_down = (nn.Linear(d_model, decay_rank, bias=False) for _ in range(2))
        self.decay_up, self.rate_up = (nn.Linear(decay_rank, d_model) for _ in range(2))
        self.gate_down = nn.Linear(d_model, gate_rank, bias=False)
        self.gate_up = nn.Linear(gate_rank, d_model, bias=False)
        self.kappa_scale = nn.Parameter(torch.empty(d_model))
        self.key_rate = nn.Parameter(torch.empty(d_model))
        self.bonus = nn.Parameter(torch.empty(n_heads, self.d_head))
        self.norm_weight = nn.Parameter(torch.empty(d_model))
        self.norm_bias = nn.Parameter(torch.empty(d_model))
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for projection, gain in ((self.r_proj, 1.0), (self.k_proj, 0.1), (self.v_proj, 1.0)):
            nn.init.orthogonal_(projection.weight, gain)
        gate = self.gate_down, self.gate_up
        for down, up in ((self.decay_down, self.decay_up), (self.rate_down, self.rate_up), gate):
            down.reset_parameters()
            nn.init.orthogonal_(up.weight, 0.1 * max(1, up.in_features / up.out_features) ** 0.5)
        channel = torch.arange(self.d_model)
        along = channel / (self.d_model - 1)  # 0 to 1 over all channels
        within = (channel % self.d_head) / ((self.d_head - 1) / 2) - 1  # -1 to 1 over the channels of a head
        bend = within * within.abs()
        with torch.no_grad():
            self.shift.copy_(1 - (channel / self.d_model) ** torch.tensor(_SHIFT_POWERS).unsqueeze(1))
            self.decay_up.bias.copy_(6 * along - 5.5 + 2.5 * bend)
            self.rate_up.bias.copy_(0.4 * along - 0.39 + 0.3 * bend)
            self.kappa_scale.copy_(0.76 - 0.1 * along)
        for parameter, value in (
            (self.key_rate, 1.02),
            (self.bonus, -0.04),
            (self.norm_weight, 1),
            (self.norm_bias, 0),
        ):
            nn.init.constant_(parameter, value)
        self.out_proj.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        # Two taps of the shift, two maps of the values (centred readout and bonus), a low-rank gate on channels.
        gated = min(self.gate_down.out_features, self.d_head)
        return gated_rank(seq_len, 2 * self.n_heads * gated, 2 * self.n_heads, 2)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> RWKV7State:
        last = torch.zeros(batch_size, 1, self.d_model, dtype=dtype, device=device)
        shape = (batch_size, self.n_heads, self.d_head, self.d_head)
        return RWKV7State(last, torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(self, x: Tensor, state: RWKV7State, lengths: Tensor | None) -> tuple[Tensor, RWKV7State]:
        before, last = previous(x, state.last, lengths)
        x_r, x_w, x_k, x_v, x_a, x_g = torch.addcmul(x, before - x, self.shift.view(6, 1, 1, -1)).unbind(0)
        decay = self.decay_up(torch.tanh(self.decay_down(x_w)))
        rate = torch.sigmoid(self.rate_up(self.rate_down(x_a)))
        k = self.k_proj(x_k)
        kappa, k = self._heads(k * self.kappa_scale, state), self._heads(k + k * (rate - 1) * self.key_rate, state)
        r, v, rate, decay = (self._heads(t, state) for t in (self.r_proj(x_r), self.v_proj(x_v), rate, decay))
        log_decay = -_FASTEST * torch.sigmoid(decay)
        k, rate, log_decay = without_padding(lengths, k, rate, log_decay)  # padding writes nothing and forgets nothing
        bonus = coefficient((r * k * self.bonus.unsqueeze(1)).sum(-1, keepdim=True))
        r, k, log_decay, rate = (coefficient(t) for t in (r, k, log_decay, rate))
        y, S = relaxed_delta_rule(r, k, v, log_decay, coefficient(F.normalize(kappa, dim=-1)), rate, state.S)
        y, bonus = (rearrange(t, "batch head seq d -> batch seq (head d)") for t in (y, bonus * v))
        y = group_norm(y, self.n_heads, self.norm_weight, eps=1e-5 * self.d_head) + self.norm_bias + bonus
        gate = coefficient(self.gate_up(torch.sigmoid(self.gate_down(x_g))))
        return self.out_proj(gate * y.to(x.dtype)), RWKV7State(last, S)

    def _heads(self, t: Tensor, state: RWKV7State) -> Tensor:
        return rearrange(t.to(state.S.dtype), "batch seq (head d) -> batch head seq d", head=self.n_heads)
