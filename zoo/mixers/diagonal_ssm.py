"""A linear time-invariant state space model with diagonal dynamics."""

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
TRUNCATED_STD = 0.87962566103423978  # of a standard normal number between -2 and 2


class DiagonalState(NamedTuple):
    h: Tensor  # (batch, poles), complex; real for real_log
    carried = ("h",)


class DiagonalSSM(SequenceMixer):
    """Linear time-invariant state space model with diagonal dynamics; every input drives every pole (MIMO).

        h_t = lambda h_{t-1} + gain B x_t
        y_t = Re(C h_t) + D x_t

    Complex poles represent conjugate pairs, d_state / 2 of them, and count twice in y. init s4d_lin has A_n = -1/2 + i
    pi n under zero-order hold; real_log has real poles, timescales log-spaced between 1/dt_max and 1/dt_min, under
    zero-order hold; ring has |lambda| uniform by area between r_min and r_max and gain sqrt(1 - |lambda|^2); lru is the
    LRU as published (`lru`): poles of ring, and a gain that starts as ring's and is learned; s5 is S5 as published
    (`s5`): the normal part of HiPPO-LegS in its eigenvectors, under zero-order hold.

    Coefficients. None: W_ij = Re(C lambda^(i-j) gain B), and D on top at lag zero, does not depend on x. The offset is
    zero.

    State. h: d_state real numbers, or d_state / 2 complex ones, at least float32. It does not grow.

    Interaction rank. min(d_state + 1, seq_len, d_model^2); the one is D's. Many slow or real poles read lower, since
    their lag operators are nearly dependent; `heads_needed` then says more than the rank.

    Source. s4d_lin of Gu et al. 2206.11893, ring and lru of Orvieto et al. 2303.06349. Poles, step sizes (log-uniform
    between dt_min and dt_max in s4d_lin) and gains are those of the papers; B and C (normal, of variance 1 / d_model
    and 1 / poles) and D (one) start in one way for the first three, which is this project's own. lru starts as in
    NicolasZucchet/minimal-LRU, commit bbd71b1, lru/model.py, but for the defaults of r_min and r_max: B and C normal,
    of variance 1 / (2 d_model) and 1 / poles for each part, D normal. It takes Re(C h) of single poles, without their
    conjugates, so that its C is twice ours. s5, of Smith et al. 2208.04933, starts as in lindermanlab/S5, commit
    3c18fdb, s5/ssm.py and s5/ssm_init.py with its defaults: a real B and a complex C, truncated normal of variance 1 /
    d_state, taken to the eigenvectors V of HiPPO-LegS's normal part (V^H B, C V), step sizes log-uniform for each pole,
    D normal. Its real parts are free there and stay below zero here.

    Not here. S5's initialisation by several HiPPO blocks, and its reading in both directions (`zoo.Bidirectional`).

    Args:
        d_model: width of input and output.
        d_state: real dimension of the state.
        init: s4d_lin (A_n = -1/2 + i pi n; Gu et al. 2206.11893), real_log (real poles with timescales log-spaced
            between 1/dt_max and 1/dt_min), both under zero-order hold; ring (|lambda| uniform by area between r_min
            and r_max, gain sqrt(1 - |lambda|^2); Orvieto et al. 2303.06349); lru (the same, the gain learned); s5
            (modes of HiPPO-LegS's normal part under zero-order hold; Smith et al. 2208.04933).
        dt_min, dt_max: range of the step sizes, log-uniform (s4d_lin, s5), log-spaced (real_log).
        r_min, r_max: ring of the poles (ring, lru).

    Raises:
        ValueError: an odd d_state with complex poles, an empty range, a ring that is not inside (0, 1).
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
        if self.init == "lru":  # C is half of theirs, which does not count the conjugate poles
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
        """B and C of the full real system in the basis of the kept eigenvectors."""
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
        """(rate, frequency, dt), (poles,) each: the poles are exp(dt (-rate + i frequency))."""
        n, draw = torch.arange(self.poles), torch.rand(self.poles)
        if self.init in ("ring", "lru"):
            radius = torch.sqrt(draw * (self.r_max**2 - self.r_min**2) + self.r_min**2)
            return -radius.log(), 2 * math.pi * torch.rand(self.poles), torch.ones(self.poles)
        where = n / max(1, self.poles - 1) if self.real else draw
        dt = self.dt_min * (self.dt_max / self.dt_min) ** where
        frequency = hippo_modes(2 * self.poles)[0].float() if self.init == "s5" else math.pi * n
        return torch.full((self.poles,), 1.0 if self.real else 0.5), frequency, dt

    def dynamics(self) -> tuple[Tensor, Tensor, Tensor]:
        """(log lambda (poles,), B with its gain (poles, d_model), C (d_model, poles)), in at least float32.

        A conjugate pair's factor of two is in C, so that y = Re(C h) + D x.
        """
        rate = -self._wide(self.log_rate).exp()
        A = rate if self.frequency is None else torch.complex(rate, self._wide(self.frequency))
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
        # One direction per pole (two per conjugate pair) and one for D; seq_len lag operators in all.
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
