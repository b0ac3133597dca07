"""The Mamba block: a diagonal SSM whose step size, input and output directions depend on the input."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import silu, silu_gate
from zoo.ops.precision import Device, DType, accumulator, widest
from zoo.ops.scan import selective_scan
from zoo.ops.step_size import draw_dt_bias
from zoo.ops.time import without_padding
from zoo.validate import require_choice, require_distance, require_positive, require_range

Init = Literal["published", "recall"]
_STEPS: dict[Init, tuple[float, float]] = {"published": (1e-3, 1e-1), "recall": (0.3, 1.0)}
"""The initial range of dt."""

# Search for a token that closes the gates (`highway_input`).
_CANDIDATES = 512
_LENGTHS = (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)
_CLOSED = 1e-3  # largest total log-decay over the sequence of a channel that counts as closed
_CLOSED_SHARE = 1 / 4  # smallest share of closed channels


class SelectiveState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, d_inner)
    h: Tensor  # (batch, d_inner, d_state)
    carried = ("h",)


class SelectiveSSM(SequenceMixer):
    """The block of Mamba-1: a diagonal SSM per channel whose step, input and output directions depend on the input.

        u = silu(conv(W_u x)), z = W_z x
        dt = softplus(W_dt u + b), B = W_B u, C = W_C u
        h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t                   per channel, A < 0
        y   = out_proj(silu(z) (C_t . h_t + D u_t))

    Coefficients. The sigmoid factor of u's SiLU, dt, B, C, silu(z); with out_norm_eps also 1/rms. The convolution's
    bias makes the offset.

    State. h, d_inner d_state numbers, at least float32, and the convolution's last d_conv - 1 inputs of d_inner
    channels. It does not grow.

    Interaction rank. Up to min(d_inner, d_model^2): decay and gate act on channels, between two fixed projections.

    Source. Gu and Dao 2312.00752, section 3.4. As published, A_n = -n, dt starts log-uniform in [dt_min, dt_max] and D
    at one, and generic weight initialisation does not change them. init recall is ours, for use with norm_eps and
    out_norm_eps: A_n = -0.05 and dt log-uniform in [0.3, 1]. Writes dt B u are then a hundred times as large relative
    to the skip D u, and decay within some 20 to 70 positions; see `trainability` in docs/results.md.

    Args:
        d_model: width of input and output.
        d_state: state size of a channel (N).
        d_conv: width of the causal convolution.
        expand: d_inner = expand * d_model.
        dt_rank: rank of dt's projection; default d_model / 16, rounded up.
        init: initial values of A and dt, published or recall.
        dt_min, dt_max: range of dt at initialisation, log-uniform, at least 1e-4; the default depends on init.
        norm_eps: epsilon of an RMSNorm on B, on C and on dt before its projection to channels, as in Jamba (Lieber et
            al. 2403.19887, section 3.2); default no norms.
        out_norm_eps: epsilon of an RMSNorm before the output projection, as in Mamba-2; default no norm.

    Raises:
        ValueError: non-positive sizes, an unknown init, an empty range of dt, an epsilon that is not positive.
    """

    undecayed = ("A_log", "D")

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        init: Init = "published",
        dt_min: float | None = None,
        dt_max: float | None = None,
        norm_eps: float | None = None,
        out_norm_eps: float | None = None,
    ) -> None:
        super().__init__(d_model)
        require_choice("init", init, Init)
        self.init: Init = init
        dt_min, dt_max = (
            usual if given is None else given for given, usual in zip((dt_min, dt_max), _STEPS[init], strict=True)
        )
        require_positive(d_state=d_state, d_conv=d_conv, expand=expand, dt_rank=dt_rank)
        require_range(dt_min=dt_min, dt_max=dt_max)
        for name, eps in (("norm_eps", norm_eps), ("out_norm_eps", out_norm_eps)):
            if eps is not None and not 0 < eps < math.inf:
                raise ValueError(f"{name} must be positive and finite, or absent for no norm; got {eps}")
        self.d_state, self.d_inner = d_state, expand * d_model
        self.dt_rank = dt_rank or math.ceil(d_model / 16)
        self.dt_min, self.dt_max = dt_min, dt_max
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv = ShortConv(self.d_inner, d_conv, bias=True)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        sizes = (self.dt_rank, d_state, d_state)
        self.dt_b_c_norm = None if norm_eps is None else nn.ModuleList(RMSNorm(size, norm_eps) for size in sizes)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        self.A_log = nn.Parameter(torch.empty(self.d_inner, d_state))
        self.D = nn.Parameter(torch.empty(self.d_inner))
        self.out_norm = None if out_norm_eps is None else RMSNorm(self.d_inner, out_norm_eps)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        norms = cast(Iterable[RMSNorm], (*(self.dt_b_c_norm or ()), *filter(None, (self.out_norm,))))
        for layer in (self.in_proj, self.conv, self.x_proj, self.out_proj, *norms):
            layer.reset_parameters()
        rates = torch.arange(1, self.d_state + 1) if self.init == "published" else torch.full((self.d_state,), 0.05)
        with torch.no_grad():
            self.A_log.copy_(rates.log().expand_as(self.A_log))
            self.D.fill_(1.0)
            self.dt_proj.weight.uniform_(-1, 1).mul_(self.dt_rank**-0.5)
            self.dt_proj.bias.copy_(draw_dt_bias(self.d_inner, self.dt_min, self.dt_max))

    def rank_law(self, seq_len: int) -> int:
        # Decay, convolution and gate act on single channels between two fixed projections.
        return self.d_inner

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> SelectiveState:
        h = torch.zeros(batch_size, self.d_inner, self.d_state, dtype=accumulator(dtype), device=device)
        return SelectiveState(self.conv.empty_state(batch_size, dtype, device), h)

    def mix(self, x: Tensor, state: SelectiveState, lengths: Tensor | None) -> tuple[Tensor, SelectiveState]:
        u, z = self.in_proj(x).chunk(2, dim=2)
        u, conv = self.conv.mix(u, state.conv, lengths)
        u = silu(u)
        dt, B, C = self._dynamics(u)
        (dt,) = without_padding(lengths, dt, axis=1)  # a step of size zero leaves the state alone
        dt, B, C = coefficient(dt), coefficient(B), coefficient(C)
        # The signs are right by construction. A NaN of diverged training reaches the loss, which is monitored.
        y, h = selective_scan(u, dt, -self.A_log.exp(), B, C, self.D, state.h, check=False)
        y = silu_gate(z, y)
        return self.out_proj(y if self.out_norm is None else self.out_norm(y)), SelectiveState(conv, h)

    def _dynamics(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return dt (batch, seq, d_inner), B and C (batch, seq, d_state)."""
        low_rank, B, C = self.x_proj(u).split((self.dt_rank, self.d_state, self.d_state), dim=2)
        if self.dt_b_c_norm is not None:
            low_rank, B, C = (norm(t) for norm, t in zip(self.dt_b_c_norm, (low_rank, B, C), strict=True))
        return F.softplus(self.dt_proj(low_rank)), B, C

    @torch.no_grad()
    def highway_input(
        self, seq_len: int, distance: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "seq d_model"] | None:
        """Close the gates: repeat one token under which dt is nearly zero between a needle and the last position.

        dt has dt_rank degrees of freedom, so no token closes every channel; a closed channel keeps its state. Random
        tokens are tried at growing norms until one closes a quarter of the channels: the sum of dt |A| over seq_len,
        the convolution's transients at both ends included, is at most 1e-3. No other channel may fade slowly; the open
        ones forget at once. Needle and last token are random. Zeros precede the needle, so that it meets nearly the
        same state at any distance.

        Args:
            seq_len: length of the input.
            distance: distance of the needle from the last position, at least 1.
            generator: source of the draws, on the CPU; default seed 0.

        Returns:
            The input, in the dtype and on the device of the weights; None if no candidate closes enough channels.

        Raises:
            ValueError: a distance outside 1..seq_len - 1.
        """
        require_distance(seq_len, distance)
        source = torch.Generator().manual_seed(0) if generator is None else generator
        shape = (2 + _CANDIDATES, 1, self.d_model)
        draws = torch.randn(shape, generator=source, dtype=torch.float64).to(self.D)
        needle, last, candidates = draws[0], draws[1], draws[2:]
        past, width = F.pad(needle, (0, 0, seq_len - distance - 1, 0)), self.conv.weight.shape[1]
        for length in _LENGTHS:
            before, after = (t.expand(_CANDIDATES, -1, -1) for t in (F.pad(needle, (0, 0, width - 1, 0)), last))
            tried = torch.cat((before, length * candidates.expand(-1, 2 * width, -1), after), dim=1)
            u, _ = self.in_proj(tried).chunk(2, dim=2)
            u, _ = self.conv.mix(u, self.conv.empty_state(_CANDIDATES, last.dtype, last.device), None)
            dt = self._dynamics(silu(u))[0][:, -2 * width - 1 :]
            steady, slow, fast = seq_len * dt[:, -2], *self.A_log.exp().aminmax(dim=1)
            closed = (dt.sum(1) + steady) * fast <= _CLOSED
            fading = (steady * fast > _CLOSED) & (steady * slow < seq_len)
            share = closed.to(widest(closed.device)).mean(1).masked_fill(fading.any(1), 0.0)
            if share.max() >= _CLOSED_SHARE:
                closing = length * candidates[share.argmax()]
                return torch.cat((past, closing.expand(distance - 1, -1), last))
        return None
