"""The Mamba-3 block: trapezoidal steps, a rotating state, and optionally several inputs and outputs per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import heavy_tail, rms_norm, silu_gate
from zoo.ops.attention import gated_rank
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.step_size import draw_dt_bias
from zoo.ops.time import without_padding, without_rest
from zoo.ops.trapezoid import advance_angles, rotate_pairs, trapezoidal_ssd
from zoo.validate import require_choice, require_positive, require_range

Rotated = Literal["half", "all"]
RateMap = Literal["heavy_tail", "softplus"]
_RATE_MAPS: dict[RateMap, Callable[[Tensor], Tensor]] = {"heavy_tail": heavy_tail, "softplus": F.softplus}
_WIDEST_HEAD = 64
_RATE_FLOOR = 1e-4


class Mamba3State(NamedTuple):
    h: Tensor  # (batch, n_heads, d_state, d_head)
    k: Tensor  # (batch, n_heads, rank, d_state): the last position's keys, rotated
    u: Tensor  # (batch, n_heads, d_head): the last position's values
    angle: Tensor  # (batch, n_heads, angles), in [0, 2 pi)


class Mamba3(SequenceMixer):
    """The block of Mamba-3: the scalar decay of `ssd`, a trapezoidal step and a rotating state; no convolution.

        z, u, B, C, dt, rate, trap, theta = W_in x
        dt = softplus(dt + b), alpha = exp(-dt max(f(rate), 1e-4)), lambda = sigmoid(trap)    per head
        angle_t = angle_{t-1} + pi dt_t tanh(theta_t)
        k = turn(RMSNorm(B) + b_B, angle), q = turn(RMSNorm(C) + b_C, angle)
        h_t = alpha_t h_{t-1} + (1 - lambda_t) dt_t alpha_t k_{t-1} u_{t-1}^T + lambda_t dt_t k_t u_t^T
        y   = out_proj(silu(z) (h^T q + D u))

    A step weighs the previous and the current position, and the state rotates by input-dependent angles. `rotated`
    selects half or all of the state's channels, which rotate in pairs (m, m + number of angles); any other pairing is a
    permutation of B and C.

    rank R makes it multi-input multi-output. There are R copies of B and C and R values u_r = m_r^u u, and h sums k_r
    u_r^T over r. The R outputs are gated by silu(m_r^z z) and summed with weights m_r^o: y = sum_r m_r^o silu(m_r^z z)
    (h^T q_r + D u_r).

    f makes the decay's rate positive and has two versions. The paper and its released code (March 2026,
    state-spaces/mamba before c69aaab) use rate_map softplus. Commit c69aaab (2 June 2026) replaced it by heavy_tail,
    the default here, so that rates that training lowers do not come close to zero. Weights trained with one version do
    not work with the other.

    Coefficients. q and k after rotation, alpha, lambda dt and (1 - lambda) dt, silu(z). The offset is zero.

    State. n_heads x (d_state d_head + rank d_state + d_head + angles) numbers, at least float32: h, the last position's
    keys and values, which the next step uses, and the angles, kept in [0, 2 pi). It does not grow.

    Interaction rank. The recurrence itself: n_heads, since decay, trapezoid and rotation act on keys; with rank R up to
    n_heads R^2, since the vectors m act on channels. The gate acts on channels too: min(d_inner, d_model^2) for generic
    input.

    Source. Lahoti et al. 2603.15569. As published, the biases b_B and b_C start at one, m^u and m^o at 1 / R, m^z and D
    at one, dt log-uniform in [1e-3, 1e-1]. As in the authors' code, weight decay excludes D and the bias of dt, but not
    b_B and b_C.

    Not here. The optional norm before the output projection of the authors' code.

    Args:
        d_model: width of input and output.
        d_state: state size of a channel (N).
        d_head: channels that share their dynamics; default the smaller of 64 and d_inner.
        n_groups: groups of heads that share B and C, except for their biases.
        expand: d_inner = expand * d_model.
        rank: inputs and outputs of a step (R); 1 is single-input single-output.
        rotated: share of the state's channels that rotate, half or all.
        rate_map: f, which makes the decay's rate positive: heavy_tail (1 + x for x >= 0, 1 / (1 - x) below; the
            authors' code since June 2026) or softplus (their code before, and the paper).
        dt_min, dt_max: range of dt at initialisation, log-uniform, at least 1e-4.

    Raises:
        ValueError: sizes that are not positive or do not divide evenly, a d_state that is not a multiple of 4 (rotated
            half) or 2 (all), an unknown choice, an empty range.
    """

    undecayed = ("dt_bias", "D")  # not B_bias and C_bias, as in the authors' code

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_head: int | None = None,
        n_groups: int = 1,
        expand: int = 2,
        rank: int = 1,
        rotated: Rotated = "half",
        rate_map: RateMap = "heavy_tail",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__(d_model)
        require_positive(d_state=d_state, d_head=d_head, n_groups=n_groups, expand=expand, rank=rank)
        require_choice("rotated", rotated, Rotated)
        require_choice("rate_map", rate_map, RateMap)
        require_range(dt_min=dt_min, dt_max=dt_max)
        per_angle = 4 if rotated == "half" else 2
        if d_state % per_angle:
            raise ValueError(f"d_state must be a multiple of {per_angle} with rotated={rotated}, got {d_state}")
        self.d_state, self.n_groups, self.rank, self.d_inner = d_state, n_groups, rank, expand * d_model
        self.rate_map: RateMap = rate_map
        self.d_head = d_head or min(_WIDEST_HEAD, self.d_inner)
        self.n_heads = self.d_inner // self.d_head
        if self.d_inner % self.d_head:
            raise ValueError(f"d_inner={self.d_inner} (expand * d_model) is not divisible by d_head={self.d_head}")
        if self.n_heads % n_groups:
            raise ValueError(f"n_heads={self.n_heads} (d_inner / d_head) is not divisible by n_groups={n_groups}")
        self.angles, self.dt_min, self.dt_max = d_state // per_angle, dt_min, dt_max
        directions = rank * n_groups * d_state
        self.widths = (self.d_inner, self.d_inner, 2 * directions, 3 * self.n_heads, self.angles)
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.dt_bias = nn.Parameter(torch.empty(self.n_heads))
        self.B_norm, self.C_norm = RMSNorm(d_state), RMSNorm(d_state)
        self.B_bias = nn.Parameter(torch.empty(self.n_heads, rank, d_state))
        self.C_bias = nn.Parameter(torch.empty(self.n_heads, rank, d_state))
        self.D = nn.Parameter(torch.empty(self.n_heads))
        # The vectors m of u, z and the outputs; with rank 1 there is nothing to mix.
        self.rank_mix = nn.Parameter(torch.empty(3, self.n_heads, rank, self.d_head)) if rank > 1 else None
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.dt_bias.copy_(draw_dt_bias(self.n_heads, self.dt_min, self.dt_max))
            for parameter in (self.B_bias, self.C_bias, self.D):
                parameter.fill_(1.0)
            if self.rank_mix is not None:
                self.rank_mix.copy_(torch.tensor([1 / self.rank, 1.0, 1 / self.rank]).view(3, 1, 1, 1))

    def rank_law(self, seq_len: int) -> int:
        # The gate acts on the channels between two fixed projections.
        return gated_rank(seq_len, self.d_inner, self.n_heads * self.rank**2)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Mamba3State:
        shapes = ((self.d_state, self.d_head), (self.rank, self.d_state), (self.d_head,), (self.angles,))
        wide = accumulator(dtype)
        return Mamba3State(
            *(torch.zeros(batch_size, self.n_heads, *shape, dtype=wide, device=device) for shape in shapes)
        )

    def mix(self, x: Tensor, state: Mamba3State, lengths: Tensor | None) -> tuple[Tensor, Mamba3State]:
        z, u, directions, steps, theta = self.in_proj(x).to(state.h.dtype).split(self.widths, dim=2)
        z, u = (rearrange(t, "batch seq (head d) -> batch head seq d", d=self.d_head) for t in (z, u))
        dt, log_decay, now = self._steps(steps, lengths)
        angle = advance_angles(math.pi * torch.tanh(theta).unsqueeze(1) * dt.unsqueeze(3), state.angle)
        k, q = (coefficient(t) for t in rotate_pairs(self._directions(directions), angle).unbind(0))
        log_decay, before, now = coefficient(log_decay), coefficient(dt - now), coefficient(now)

        k, u = torch.cat((state.k.unsqueeze(2), k), dim=2), torch.cat((state.u.unsqueeze(2), u), dim=2)
        v, gate, readout = u.unsqueeze(3), z.unsqueeze(3), None
        if self.rank_mix is not None:
            of_u, of_z, readout = self.rank_mix.to(u.dtype).unsqueeze(2).unbind(0)
            v, gate = of_u * v, of_z * gate
        y, h = trapezoidal_ssd(q, k, v, log_decay, before, now, state.h)
        y = silu_gate(gate, torch.addcmul(y, self.D.to(y.dtype).view(-1, 1, 1, 1), v[:, :, 1:]))
        y = y.squeeze(3) if readout is None else (readout * y).sum(3)

        k, u = (without_rest(t[:, :, -1], t) if lengths is None else _at(t, lengths) for t in (k, u))
        return self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)").to(x.dtype)), Mamba3State(
            h, k, u, without_rest(angle[:, :, -1], angle)
        )

    def _steps(self, steps: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return dt, the log-decay and lambda dt, each (batch, n_heads, seq); all are zero in padding."""
        # Contiguous: torch.compile gets the strides of softplus's gradient wrong if its layout is not the input's.
        dt, rate, trap = rearrange(steps, "batch seq (part head) -> part batch head seq", part=3).contiguous().unbind(0)
        dt = F.softplus(dt + self.dt_bias.unsqueeze(1))
        (dt,) = without_padding(lengths, dt)
        return dt, -dt * _RATE_MAPS[self.rate_map](rate).clamp(min=_RATE_FLOOR), dt * torch.sigmoid(trap)

    def _directions(self, t: Tensor) -> Tensor:
        """Return B and C of each head, normed and with their biases: (2, batch, n_heads, seq, rank, d_state)."""
        t = t.unflatten(2, (2, self.rank, self.n_groups, self.d_state))
        weight = torch.stack((self.B_norm.weight, self.C_norm.weight)).view(2, 1, 1, self.d_state)
        t = rms_norm(t, weight, self.B_norm.eps).repeat_interleave(self.n_heads // self.n_groups, 4)
        bias = torch.stack((self.B_bias, self.C_bias)).view(2, 1, self.n_heads, 1, self.rank, self.d_state)
        return rearrange(t, "batch seq two rank head n -> two batch head seq rank n") + bias


def _at(t: Tensor, lengths: Tensor) -> Tensor:
    """Return the entry of (batch, heads, seq, ...) at each row's position in `lengths`."""
    return t[torch.arange(t.shape[0], device=t.device), :, lengths]
