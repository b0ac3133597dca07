"""The Mamba-2 block: a selective state space model with one scalar decay per head."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import LevelWeights, RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import silu, silu_gate
from zoo.ops.log_linear import log_linear_ssd
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.ssd import ssd
from zoo.ops.step_size import draw_dt_bias
from zoo.ops.time import without_padding
from zoo.validate import require_choice, require_positive, require_range

Init = Literal["published", "recall"]
_STARTS: dict[Init, tuple[tuple[float, float], tuple[float, float]]] = {
    "published": ((1e-3, 1e-1), (1, 16)),
    "recall": ((0.3, 1.0), (0.01, 0.16)),
}
"""The initial ranges of dt (log-uniform) and of A (uniform)."""
_WIDEST_HEAD = 64


class SSDState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, d_inner + 2 * n_groups * d_state)
    h: Tensor  # (batch, n_heads, d_state, d_head)
    carried = ("h",)


class LogLinearSSDState(NamedTuple):
    conv: Tensor  # as in SSDState
    h: Tensor  # (batch, n_heads, n_levels, d_state, d_head)
    seen: Tensor  # (batch,) positions so far


AnySSDState = SSDState | LogLinearSSDState


class SSD(SequenceMixer):
    """The block of Mamba-2: one scalar decay per head, so that the recurrence is a chunked matrix product.

        [z, u, B, C, dt] = W_in x; u, B, C = silu(conv(u, B, C)), dt = softplus(dt + b)
        h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t^T                 per head, A < 0 and D scalars
        o_t = h_t^T C_t + D u_t                                    with n_levels: sum_l lambda_t^l h_t^l^T C_t + D u_t
        y   = out_proj(RMSNorm(silu(z) o))

    The heads of a group share B and C.

    With n_levels, each head has n_levels states instead of one (`log_linear_ssd`): a Fenwick tree over up to
    2^(n_levels - 1) positions. Position t reads itself at level 0. At level l, if bit l - 1 of t is set, it reads the
    2^(l-1) positions that have the same higher bits as t and a zero in that bit. The readout is

        o_t = sum_l lambda_t^l h_t^l^T C_t + D u_t,  lambda_t = softplus(s * W_l x_t)

    so that recent positions remain separate, while older ones share a state in ever larger groups. A level costs as
    much time and memory as the plain recurrence: at 1,024 positions on a CPU, training runs at less than half the speed
    of `gated_delta_net`.

    Coefficients. The sigmoid factor of u's SiLU, B, C, dt, lambda, silu(z), 1/rms. The convolution's bias makes the
    offset.

    State. n_heads x d_state x d_head = d_inner d_state numbers, at least float32, and the convolution's last d_conv - 1
    inputs of d_inner + 2 n_groups d_state channels. With n_levels, n_levels times these numbers, and the
    positions so far; n_levels - 1 must be at least log2 of the length. It does not grow.

    Interaction rank. The recurrence itself: n_heads, since a head's W_ij is one number times W_O^h W_u^h, including the
    skip D. Levels add none, since lambda is a number too. In the block, the convolution's taps, the SiLU of u and
    silu(z) act on channels: min(d_inner, d_model^2) for generic input.

    Source. Dao and Gu 2405.21060, section 7; the levels follow Guo et al. 2506.04761, flash-linear-attention, commit
    bc3b101, fla/layers/log_linear_mamba2.py and fla/ops/log_linear_attn/naive.py, with s starting at one. As published,
    A starts uniform in [1, 16], dt log-uniform in [1e-3, 1e-1] and D at one. init recall is ours: A starts uniform in
    [0.01, 0.16] and dt log-uniform in [0.3, 1]. The decays dt A are of similar size, and the writes dt B u are a
    hundred times as large relative to the skip D u. With one seed it learns small recall at a learning rate of 1e-2;
    the published start needs 3e-2 or longer training; see `trainability` in docs/results.md.

    Not here. An upper limit of dt, the initial-state parameter and sharding over devices, which the authors' code has.

    Args:
        d_model: width of input and output.
        d_state: state size of a channel (N).
        d_head: channels that share a decay; default the smaller of 64 and d_inner.
        n_groups: groups of heads that share B and C.
        d_conv: width of the causal convolution.
        expand: ratio of the default d_inner to d_model.
        d_inner: width of u and z; default expand * d_model.
        norm_groups: equal parts of d_inner that are normed separately; default n_groups, 0 for no norm.
        norm_eps: epsilon of the norm.
        dt_floor: lower limit of dt.
        init: initial values of A and dt, published or recall.
        dt_min, dt_max: range of dt at initialisation, log-uniform, at least 1e-4; the default depends on init.
        n_levels: states of each head, a Fenwick tree over up to 2^(n_levels - 1) positions; 0 for a single state.

    Raises:
        ValueError: sizes that are not positive or do not divide evenly, an unknown init, an empty range of dt, a
            negative dt_floor; at run time, a sequence of more positions than the tree holds.
    """

    undecayed = ("A_log", "D", "dt_bias")

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_head: int | None = None,
        n_groups: int = 1,
        d_conv: int = 4,
        expand: int = 2,
        d_inner: int | None = None,
        norm_groups: int | None = None,
        norm_eps: float = 1e-5,
        dt_floor: float = 0.0,
        init: Init = "published",
        dt_min: float | None = None,
        dt_max: float | None = None,
        n_levels: int = 0,
    ) -> None:
        super().__init__(d_model)
        require_choice("init", init, Init)
        steps, self.rates = _STARTS[init]
        dt_min, dt_max = (
            usual if given is None else given for given, usual in zip((dt_min, dt_max), steps, strict=True)
        )
        require_positive(d_state=d_state, d_head=d_head, n_groups=n_groups, d_conv=d_conv, expand=expand)
        require_positive(d_inner=d_inner, norm_groups=norm_groups or None, n_levels=n_levels or None)
        require_range(dt_min=dt_min, dt_max=dt_max)
        if not 0 <= dt_floor < math.inf:
            raise ValueError(f"dt_floor must be 0 or a positive number, got {dt_floor}")
        self.d_state, self.n_groups, self.dt_floor = d_state, n_groups, dt_floor
        self.d_inner = d_inner or expand * d_model
        self.d_head = d_head or min(_WIDEST_HEAD, self.d_inner)
        self.n_heads = self.d_inner // self.d_head
        norm_groups = n_groups if norm_groups is None else norm_groups
        if self.d_inner % self.d_head:
            raise ValueError(f"d_inner={self.d_inner} is not divisible by d_head={self.d_head}")
        if self.n_heads % n_groups:
            raise ValueError(f"n_heads={self.n_heads} (d_inner / d_head) is not divisible by n_groups={n_groups}")
        if norm_groups and self.d_inner % norm_groups:
            raise ValueError(f"d_inner={self.d_inner} is not divisible by norm_groups={norm_groups}")
        self.dt_min, self.dt_max = dt_min, dt_max
        self.widths = (self.d_inner, n_groups * d_state, n_groups * d_state)
        self.in_proj = nn.Linear(d_model, self.d_inner + sum(self.widths) + self.n_heads, bias=False)
        self.conv = ShortConv(sum(self.widths), d_conv, bias=True)
        self.dt_bias = nn.Parameter(torch.empty(self.n_heads))
        self.A_log = nn.Parameter(torch.empty(self.n_heads))
        self.D = nn.Parameter(torch.empty(self.n_heads))
        self.n_levels = n_levels
        self.levels = LevelWeights(d_model, self.n_heads, n_levels) if n_levels else None
        self.norm = RMSNorm(self.d_inner, norm_eps, norm_groups) if norm_groups else None
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.dt_bias.copy_(draw_dt_bias(self.n_heads, self.dt_min, self.dt_max))
            self.A_log.uniform_(*self.rates).log_()
            self.D.fill_(1.0)

    def rank_law(self, seq_len: int) -> int:
        # Convolution and gate act on single channels between two fixed projections.
        return self.d_inner

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> AnySSDState:
        conv, levels = self.conv.empty_state(batch_size, dtype, device), (self.n_levels,) if self.levels else ()
        shape = (batch_size, self.n_heads, *levels, self.d_state, self.d_head)
        h = torch.zeros(shape, dtype=accumulator(dtype), device=device)
        if self.levels is None:
            return SSDState(conv, h)
        return LogLinearSSDState(conv, h, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: AnySSDState, lengths: Tensor | None) -> tuple[Tensor, AnySSDState]:
        wide = state.h.dtype
        z, uBC, dt = self.in_proj(x).split((self.d_inner, sum(self.widths), self.n_heads), dim=2)
        uBC, conv = self.conv.mix(uBC, state.conv, lengths)
        u, B, C = uBC.split(self.widths, dim=2)
        u = rearrange(silu(u), "batch seq (head d) -> batch head seq d", d=self.d_head).to(wide)
        B, C = (rearrange(F.silu(t), "batch seq (group n) -> batch group seq n", n=self.d_state) for t in (B, C))
        dt = F.softplus(dt.to(wide) + self.dt_bias)
        if self.dt_floor:
            dt = dt.clamp(min=self.dt_floor)
        (dt,) = without_padding(lengths, dt.transpose(1, 2))  # a step of size zero leaves the state alone
        dt, B, C = coefficient(dt), coefficient(B), coefficient(C)
        log_decay = -self.A_log.to(wide).exp().unsqueeze(1) * dt
        written = dt.unsqueeze(3) * u
        if self.levels is None or isinstance(state, SSDState):
            o, h = ssd(C, B, written, log_decay, state.h)
            state = SSDState(conv, h)
        else:
            seen = self.levels.after(state.seen, lengths, x.shape[1])
            o, h = log_linear_ssd(C, B, written, log_decay, self.levels(x), state.seen, state.h, lengths)
            state = LogLinearSSDState(conv, h, seen)
        o = o + self.D.view(-1, 1, 1) * u
        o = rearrange(o, "batch head seq d -> batch seq (head d)").to(x.dtype)
        y = silu_gate(z, o) if self.norm is None else self.norm(silu_gate(z, o))
        return self.out_proj(y), state
