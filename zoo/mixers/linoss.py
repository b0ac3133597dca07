"""LinOSS: a linear time-invariant state space model of forced harmonic oscillators."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.ops.diagonal import diagonal_scan, oscillators
from zoo.ops.precision import Device, DType, accumulator, complex_accumulator, full_precision
from zoo.ops.time import state_after
from zoo.validate import require_choice, require_positive

Scheme = Literal["implicit", "symplectic"]


class LinOSSState(NamedTuple):
    s: Tensor  # (batch, 2 d_state), complex
    carried = ("s",)


class LinOSS(SequenceMixer):
    """Linear time-invariant state space model with d_state oscillators h'' = -A h + B x as its modes.

        z_t = z_{t-1} + dt (B x_t - A h_t)       implicit: damped, |lambda|^2 = 1 / (1 + dt^2 A)
        z_t = z_{t-1} + dt (B x_t - A h_{t-1})   symplectic: undamped, |lambda| = 1
        h_t = h_{t-1} + dt z_t
        y_t = Re(C h_t) + D x_t

    A >= 0 and dt in (0, 1) are learned. B and C are complex and A is real, so the real and imaginary parts of B x drive
    two oscillators of the same frequency. Each oscillator is computed as one complex number s_t = lambda (s_{t-1} + dt
    B x_t), whose imaginary part is proportional to h_t: the recurrence of `diagonal_ssm`.

    Coefficients. None: W_ij = Re(C k(i-j) B) with a real kernel k per oscillator, plus D at lag zero, does not depend
    on x. The offset is zero.

    State. s: 2 d_state complex numbers, at least float32. It does not grow.

    Interaction rank. min(d_state + 1, seq_len, d_model^2): kernels are real, so the conjugate poles of an oscillator
    have one map Re(C B); the + 1 is D. Slow oscillators are nearly dependent and measure lower.

    Source. Rusch and Rus 2410.03943, sections 2 and 3, LinOSS-IM and LinOSS-IMEX. Initialised as in tk-rusch/linoss,
    commit 83e6318, models/LinOSS.py: A and the logit of dt uniform between 0 and 1, B and C uniform within 1 /
    sqrt(d_model) and 1 / sqrt(d_state), D normal. Their scan carries 2 x 2 matrices. Their symplectic scheme diverges
    once dt^2 A reaches 4; here A is kept below that.

    Not here. Their block: batch norm, GELU, a gated linear map and a residual.

    Args:
        d_model: width of input and output.
        d_state: number of oscillators.
        scheme: discretisation, implicit or symplectic.

    Raises:
        ValueError: a d_state below one, an unknown scheme.
    """

    undecayed = ("stiffness", "dt_logit", "B", "D")
    slow = ("stiffness", "dt_logit", "B")

    def __init__(self, d_model: int, d_state: int = 64, scheme: Scheme = "implicit") -> None:
        super().__init__(d_model)
        require_positive(d_state=d_state)
        require_choice("scheme", scheme, Scheme)
        self.d_state, self.scheme = d_state, scheme
        self.stiffness = nn.Parameter(torch.empty(d_state))
        self.dt_logit = nn.Parameter(torch.empty(d_state))
        self.B = nn.Parameter(torch.empty(2, d_state, d_model))  # real and imaginary part
        self.C = nn.Parameter(torch.empty(2, d_model, d_state))
        self.D = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.stiffness)
        nn.init.uniform_(self.dt_logit)
        for maps, width in ((self.B, self.d_model), (self.C, self.d_state)):
            nn.init.uniform_(maps, -(width**-0.5), width**-0.5)
        nn.init.normal_(self.D)

    def rank_law(self, seq_len: int) -> int:
        return min(self.d_state + 1, seq_len)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> LinOSSState:
        return LinOSSState(torch.zeros(batch_size, 2 * self.d_state, dtype=complex_accumulator(dtype), device=device))

    def mix(self, x: Tensor, state: LinOSSState, lengths: Tensor | None) -> tuple[Tensor, LinOSSState]:
        wide = accumulator(self.stiffness.dtype)
        with full_precision(x.device):
            A, dt = self.stiffness.to(wide), torch.sigmoid(self.dt_logit.to(wide))
            log_decay, gain, scale = (t.repeat(2) for t in oscillators(A, dt, symplectic=self.scheme == "symplectic"))
            C_re, C_im = self.C.to(wide)
            u = (x.to(wide) @ self.B.to(wide).flatten(0, 1).t()) * gain
            s = diagonal_scan(u, log_decay, state.s)
            y = (s.imag * scale) @ torch.cat((C_re, -C_im), dim=1).t()
        last = state_after(state.s, s, lengths)
        return y.to(x.dtype) + self.D * x, LinOSSState(last)
