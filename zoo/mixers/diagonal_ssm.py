"""Diagonal linear time-invariant state space models: S4D-Lin poles in one MIMO system, LRU and S5."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.ops.diagonal import diagonal_scan, hippo_modes, ring_gain, zero_order_hold
from zoo.ops.precision import Device, DType, accumulator, complex_accumulator, full_precision
from zoo.ops.time import state_after
from zoo.validate import require_choice, require_positive, require_range

Init = Literal["s4d_lin", "real_log", "ring", "lru", "s5"]
TRUNCATED_STD = 0.87962566103423978  # standard deviation of a standard normal truncated to [-2, 2]


class DiagonalState(NamedTuple):
    h: Tensor  # (batch, poles), complex; real for real_log
    carried = ("h",)


class DiagonalSSM(SequenceMixer):
    """Linear time-invariant state space model with diagonal dynamics; every input drives every pole (MIMO).

        h_t = lambda h_{t-1} + gain B x_t
        y_t = Re(C h_t) + D x_t

    init real_log has d_state real poles. The others have d_state / 2 complex ones, each of which represents a conjugate
    pair and counts twice in y.

    Coefficients. None: W_ij = Re(C lambda^(i-j) gain B), plus D at lag zero, does not depend on x. The offset is zero.

    State. h: d_state real numbers, or d_state / 2 complex ones, at least float32. It does not grow.

    Interaction rank. min(d_state + 1, seq_len, d_model^2); the + 1 is D. If many poles are slow or real, their lag
    operators are nearly dependent and the measured rank is lower; `heads_needed` is then the better measure.

    Source. s4d_lin: Gu et al. 2206.11893; ring and lru: Orvieto et al. 2303.06349. Poles, step sizes (log-uniform
    between dt_min and dt_max in s4d_lin) and gains are as in the papers. For s4d_lin, real_log and ring we start B and
    C normal with variance 1 / d_model and 1 / poles, and D at one. lru starts as in NicolasZucchet/minimal-LRU, commit
    bbd71b1, lru/model.py, except for the defaults of r_min and r_max: B and C normal, with variance 1 / (2 d_model) and
    1 / poles for each part, D normal. Their output Re(C h) leaves out the conjugate poles, so their C is twice ours. s5
    (Smith et al. 2208.04933) starts as in lindermanlab/S5, commit 3c18fdb, s5/ssm.py and s5/ssm_init.py with its
    defaults: a real B and a complex C, truncated normal with variance 1 / d_state, mapped to the eigenvectors V of
    HiPPO-LegS's normal part (V^H B, C V), step sizes log-uniform per pole, D normal. The real parts of its poles are
    unconstrained there and stay negative here.

    Not here. S5's initialisation by several HiPPO blocks, and its bidirectional form (`zoo.Bidirectional`).

    Args:
        d_model: width of input and output.
        d_state: real dimension of the state.
        init: initial poles: s4d_lin (A_n = -1/2 + i pi n; Gu et al. 2206.11893) or real_log (real poles with timescales
            log-spaced between 1/dt_max and 1/dt_min), both under zero-order hold; ring (|lambda| uniform by area
            between r_min and r_max, gain sqrt(1 - |lambda|^2); Orvieto et al. 2303.06349); lru (the published LRU: as
            ring, with a learned gain); s5 (the published S5: modes of HiPPO-LegS's normal part under zero-order hold;
            Smith et al. 2208.04933).
        dt_min, dt_max: range of the step sizes, log-uniform (s4d_lin, s5) or log-spaced (real_log).
        r_min, r_max: range of |lambda| (ring, lru).

    Raises:
        ValueError: an odd d_state with complex poles, an empty range, an r_max of 1 or more.
    """

    undecayed = ("log_rate", "frequency", "log_dt", "log_gain", "B", "D")
    slow = ("log_rate", "frequency", "log_dt", "log_gain", "B")

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        init: Init = "s4d_lin",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        r_min: float = 0.9,
        r_max: float = 0.999,
    ) -> None:
        super().__init__(d_model)
        require_positive(d_state=d_state)
        require_choice("init", init, Init)
        require_range(dt_min=dt_min, dt_max=dt_max)
        require_range(r_min=r_min, r_max=r_max)
        if r_max >= 1:
            raise ValueError(f"r_max must be below 1 for a stable recurrence, got {r_max}")
        self.init, self.real = init, init == "real_log"
        if not self.real and d_state % 2:
            raise ValueError(f"complex poles come in pairs: d_state must be even with init {init}, got {d_state}")
        self.dt_min, self.dt_max, self.r_min, self.r_max = dt_min, dt_max, r_min, r_max
        self.poles = poles = d_state if self.real else d_state // 2
        parts = () if self.real else (2,)  # complex numbers are stored as real pairs, so that any dtype cast works
        self.log_rate = nn.Parameter(torch.empty(poles))
        self.frequency = None if self.real else nn.Parameter(torch.empty(poles))
        self.log_dt = None if init in ("ring", "lru") else nn.Parameter(torch.empty(poles))
        self.log_gain = nn.Parameter(torch.empty(poles)) if init == "lru" else None
        self.B = nn.Parameter(torch.empty(poles, d_model, *parts))
        self.C = nn.Parameter(torch.empty(d_model, poles, *parts))
        self.D = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        rate, frequency, dt = self._initial_poles()
        with torch.no_grad():
            self.log_rate.copy_(rate.log())
            if self.frequency is not None:
                self.frequency.copy_(frequency)
            if self.log_dt is not None:
                self.log_dt.copy_(dt.log())
            if self.log_gain is not None:
                self.log_gain.copy_(ring_gain(-rate).log())
        if self.init == "lru":  # half of the authors' C, whose output leaves out the conjugate poles
            nn.init.normal_(self.B, std=(2 * self.d_model) ** -0.5)
            nn.init.normal_(self.C, std=self.poles**-0.5 / 2)
            nn.init.normal_(self.D)
        elif self.init == "s5":
            self._draw_maps_of_modes()
            nn.init.normal_(self.D)
        else:
            nn.init.normal_(self.B, std=self.d_model**-0.5)
            nn.init.normal_(self.C, std=self.poles**-0.5)
            nn.init.ones_(self.D)

    def _draw_maps_of_modes(self) -> None:
        """Draw B and C of the full real system and map them to the kept eigenvectors."""
        d_state = 2 * self.poles
        std = d_state**-0.5 / TRUNCATED_STD
        B, C = torch.empty(d_state, self.d_model), torch.empty(self.d_model, d_state, 2)
        for drawn in (B, C):
            nn.init.trunc_normal_(drawn, std=std, a=-2 * std, b=2 * std)
        vectors = hippo_modes(d_state)[1].to(B.device)
        with torch.no_grad():
            self.B.copy_(torch.view_as_real(vectors.mH @ B.to(vectors.dtype)))
            self.C.copy_(torch.view_as_real(torch.view_as_complex(C.double()) @ vectors))

    def _initial_poles(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (rate, frequency, dt) of the poles exp(dt (-rate + i frequency)), each of shape (poles,)."""
        n, draw = torch.arange(self.poles), torch.rand(self.poles)
        if self.init in ("ring", "lru"):
            radius = torch.sqrt(draw * (self.r_max**2 - self.r_min**2) + self.r_min**2)
            return -radius.log(), 2 * math.pi * torch.rand(self.poles), torch.ones(self.poles)
        exponent = n / max(1, self.poles - 1) if self.real else draw
        dt = self.dt_min * (self.dt_max / self.dt_min) ** exponent
        frequency = hippo_modes(2 * self.poles)[0].float() if self.init == "s5" else math.pi * n
        return torch.full((self.poles,), 1.0 if self.real else 0.5), frequency, dt

    def dynamics(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log lambda (poles,), gain B (poles, d_model) and C (d_model, poles), in at least float32.

        C includes the factor two of conjugate pairs, so that y = Re(C h) + D x.
        """
        real_part = -self._wide(self.log_rate).exp()
        A = real_part if self.frequency is None else torch.complex(real_part, self._wide(self.frequency))
        if self.log_gain is not None:
            log_decay, gain = A, self._wide(self.log_gain).exp()
        elif self.log_dt is None:
            log_decay, gain = A, ring_gain(A)
        else:
            log_decay, gain = zero_order_hold(A, self._wide(self.log_dt).exp())
        if self.real:
            B, C = self._wide(self.B), self._wide(self.C)
        else:
            B, C = torch.view_as_complex(self._wide(self.B)), 2 * torch.view_as_complex(self._wide(self.C))
        return log_decay, gain.unsqueeze(1) * B, C

    def rank_law(self, seq_len: int) -> int:
        # One direction per pole (two per conjugate pair) and one for D; at most one operator per lag.
        return min((self.poles if self.real else 2 * self.poles) + 1, seq_len)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> DiagonalState:
        kind = accumulator(dtype) if self.real else complex_accumulator(dtype)
        return DiagonalState(torch.zeros(batch_size, self.poles, dtype=kind, device=device))

    def mix(self, x: Tensor, state: DiagonalState, lengths: Tensor | None) -> tuple[Tensor, DiagonalState]:
        with full_precision(x.device):
            log_decay, B, C = self.dynamics()
            h = diagonal_scan(x.to(B.dtype) @ B.t(), log_decay, state.h)
            y = (h @ C.t()).real
        last = state_after(state.h, h, lengths)
        return y.to(x.dtype) + self.D * x, DiagonalState(last)

    @staticmethod
    def _wide(parameter: Tensor) -> Tensor:
        return parameter.to(accumulator(parameter.dtype))
